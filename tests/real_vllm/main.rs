//! The built binary against a real vLLM, which `kdeploy quickstart` installs into the user's cache.
//!
//! The first run of all takes some minutes longer than later ones.

#![expect(clippy::panic, reason = "tests end with it")]

#[expect(dead_code, unused_imports, reason = "each test binary uses its own part")]
#[path = "../support/mod.rs"]
mod support;

mod patches;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use support::{Machine, Traces, free_port, send, way};

/// One engine at a time: two cores are not enough for two.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An isolated machine with the caller's cache of engines and models.
fn machine() -> Machine {
    let given = std::env::var_os("KDEPLOY_CACHE_DIR").map(PathBuf::from);
    let home = std::env::var_os("HOME").expect("HOME is set");
    let cache = given.unwrap_or_else(|| PathBuf::from(home).join(".cache/kdeploy"));
    let mut machine = Machine::patient(Duration::from_secs(1_500))
        .with("KDEPLOY_CACHE_DIR", cache.to_str().expect("UTF-8"));
    // Where the packages come from is the caller's business.
    for name in [
        "PIP_INDEX_URL",
        "PIP_CONFIG_FILE",
        "PIP_CERT",
        "UV_DEFAULT_INDEX",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "KDEPLOY_PYTHON",
    ] {
        if let Ok(value) = std::env::var(name) {
            machine = machine.with(name, &value);
        }
    }
    machine
}

/// Installs engine and model when they are not in the cache yet.
fn provision(machine: &Machine) {
    machine.run(&["quickstart", "--install-only"]).expect(0);
}

#[test]
fn quickstart_walks_the_whole_way() {
    let _turn = turn();
    let machine = machine();
    let shm_before = support::shm_names();
    let said = machine.run(&["quickstart", "--json"]).expect(0);
    let document = said.json();
    assert_eq!(
        (&document["schema"], &document["ok"]),
        (&"kdeploy/quickstart".into(), &true.into()),
        "{document:#}"
    );
    let cases = document["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2, "{document:#}");
    assert!(cases[0]["got"].as_str().is_some_and(|got| got.contains("Paris")), "{document:#}");
    assert!(cases[1]["got"].as_str().is_some_and(|got| got.starts_with("1. 1\n2. 2")), "{document:#}");
    let modes: Vec<&str> = document["bench"]["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .filter_map(|run| run["mode"].as_str())
        .collect();
    assert_eq!(modes, ["cold", "warm"]);
    let parts: Vec<&str> = document["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .filter_map(|part| part["part"].as_str())
        .collect();
    assert_eq!(parts, ["engine", "model", "start", "ask", "measure", "stop"]);
    assert!(document["stop"]["survivors"].as_array().is_some_and(Vec::is_empty), "{document:#}");
    machine.run(&["status"]).expect(3);
    machine.assert_no_processes();
    assert_eq!(support::shm_names(), shm_before);
}

#[test]
fn the_whole_way_step_by_step() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let port = free_port();
    // By its id, with the engine found among the managed ones.
    let up = ["SmolLM2-135M-Instruct", "--port", &port, "--", "--enforce-eager"];
    way::walk(&machine, &up, "real");
    machine.assert_no_processes();
}

#[test]
fn ctrl_c_during_the_load_leaves_nothing() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let child = machine.spawn(&["up", "SmolLM2-135M-Instruct", "--name", "real", "--port", &free_port()]);
    let pid = i32::try_from(child.id()).expect("a pid");
    machine.wait_until("the workers load", || {
        let text = std::fs::read_to_string(machine.path("state/real/launch.json")).unwrap_or_default();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        record["shm"].as_array().is_some_and(|shm| !shm.is_empty()) && record["detail"] != "imports"
    });
    let traces = Traces::of(&machine.record("real"));
    send(pid, Signal::SIGINT);
    machine.finish(child).expect(130);
    traces.assert_gone();
    machine.assert_no_processes();
}

/// Does this processor have it?
fn has_cpu_flag(flag: &str) -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
    text.lines().filter(|line| line.starts_with("flags")).any(|line| line.split(' ').any(|word| word == flag))
}

/// Tiny models, made with the managed engine's own Python.
fn tiny_models(machine: &Machine) -> PathBuf {
    let cache = PathBuf::from(machine.variable("KDEPLOY_CACHE_DIR"));
    let python = cache.join("engines/vllm-0.32.0-cpu/bin/python");
    let target = machine.path("tiny");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/tiny_models.py");
    let output = std::process::Command::new(python)
        .arg(script)
        .args([cache.join("models/SmolLM2-135M-Instruct"), target.clone()])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .expect("the engine's Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target
}

/// Grouped-query attention and MLA with three sizes of KV cache each, windows and recurrent state with
/// one: what is planned is what the engine prints.
#[test]
fn planned_tokens_are_what_the_engine_prints() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let models = tiny_models(&machine);
    let sizes = ["1", "2", "3"];
    for (model, context, spaces) in [
        ("gqa", "32768", &sizes[..]),
        ("mla", "20000", &sizes),
        ("sliding", "32768", &sizes[..1]),
        ("hybrid", "32768", &sizes[..1]),
    ] {
        for space in spaces {
            let profile = format!(
                "schema = 1\n[env]\nVLLM_CPU_KVCACHE_SPACE = {space}\n[vllm]\nenforce_eager = true\n"
            );
            let profile = machine.write("space.toml", &profile);
            let directory = models.join(model);
            machine
                .run(&[
                    "up",
                    "-d",
                    directory.to_str().expect("UTF-8"),
                    "--name",
                    model,
                    "-p",
                    profile.to_str().expect("UTF-8"),
                    "--context",
                    context,
                    "--no-smoke",
                    "--port",
                    &free_port(),
                ])
                .expect(0);
            let record = machine.record(model);
            let figures = &record["figures"];
            assert!(figures["tokens"].as_u64().is_some_and(|tokens| tokens > 100_000), "{figures:#}");
            assert_eq!(
                figures["tokens"], record["plan"]["kv_cache_tokens"],
                "{model}, {space} GiB: {figures:#}"
            );
            assert_eq!(figures["context"], record["plan"]["context"]);
            machine.run(&["down", model]).expect(0);
        }
    }
}

/// A plan that kdeploy chose meets an engine with less memory than planned: it is lowered once, to what
/// the engine names.
#[test]
fn a_refused_context_is_lowered_to_what_a_real_engine_names() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let model = tiny_models(&machine).join("mla");
    let port = free_port();
    let arguments = [
        "plan",
        model.to_str().expect("UTF-8"),
        "--name",
        "mla",
        "--port",
        &port,
        "--no-smoke",
        "--set",
        "enforce_eager=true",
        "--json",
    ];
    let mut plan = machine.run(&arguments).expect(0).json();
    assert_eq!(plan["context_tokens"], 1_048_576, "{plan:#}");
    // The memory that the plan counted on is not there.
    plan["launch"]["env"]["VLLM_CPU_KVCACHE_SPACE"] = "1".into();
    let file = machine.write("plan.json", &plan.to_string());
    let said = machine.run(&["up", "-d", "--plan", file.to_str().expect("UTF-8")]).expect(0);
    // Blocks of 128 tokens where the processor has AMX, of 16 elsewhere.
    let named = if has_cpu_flag("amx_tile") { "310,528" } else { "310,672" };
    assert!(said.stderr.contains(&format!("the engine named {named} tokens")), "{said:?}");
    let record = machine.record("mla");
    assert_eq!(
        (&record["plan"]["context"], &record["figures"]["context"]),
        (&310_272.into(), &310_272.into())
    );
    machine.run(&["down", "mla"]).expect(0);
    machine.assert_no_processes();
}
