//! The whole way, with the assertions that hold on every engine, real or fake.

use super::{Machine, Traces, contract};
use serde_json::Value;

/// `up -d` → `status` → `logs` → `smoke` → `bench` → `down`, then the proof that nothing is left.
pub fn walk(machine: &Machine, up: &[&str], name: &str) {
    let started = machine.run(&[&["up", "-d", "--json", "--name", name], up].concat()).expect(0).json();
    assert_eq!(
        (&started["schema"], &started["state"]),
        (&"kdeploy/up".into(), &"ready".into()),
        "{started:#}"
    );
    let ready = &started["ready"];
    assert!(ready["cold_e2e_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{ready:#}");
    assert_eq!(ready["smoke_passed"], ready["smoke_total"], "{ready:#}");
    let url = ready["url"].as_str().expect("a URL").to_owned();

    check_status(machine, name, &url);
    check_logs(machine, name);
    check_smoke(machine, &[name]);
    check_smoke(machine, &["--url", &url]);
    check_bench(machine, name);

    let record = machine.record(name);
    contract::check(&record);
    let traces = Traces::of(&record);
    let down = machine.run(&["down", name, "--json"]).expect(0).json();
    assert_eq!(down["schema"], "kdeploy/down");
    assert!(down["stopped"].as_array().expect("stopped").len() >= 3, "{down:#}");
    assert_eq!(down["survivors"], Value::Array(Vec::new()), "{down:#}");
    traces.assert_gone();

    let again = machine.run(&["down", name]).expect(3);
    assert!(again.stdout.contains("not running"), "{again:?}");
    machine.run(&["status", name]).expect(3);
    machine.run(&["logs", name, "-n", "1"]).expect(0); // kept for looking at
}

fn check_status(machine: &Machine, name: &str, url: &str) {
    let status = machine.run(&["status", name, "--json"]).expect(0).json();
    assert_eq!(status["schema"], "kdeploy/status");
    let deployment = &status["deployments"][0];
    assert_eq!(deployment["state"], "ready", "{status:#}");
    assert_eq!(deployment["url"], url);
    assert!(deployment["processes"].as_u64().is_some_and(|n| n >= 3), "{status:#}");
    assert!(deployment["memory_bytes"].as_u64().is_some_and(|n| n > 0), "{status:#}");
    let text = machine.run(&["status"]).expect(0);
    assert!(text.stdout.starts_with("NAME"), "{text:?}");
}

fn check_logs(machine: &Machine, name: &str) {
    let whole = machine.run(&["logs", name]).expect(0).stdout;
    let stages = [
        "version 0.",
        "Resolved architecture: LlamaForCausalLM",
        "Initializing a V1 LLM engine",
        "world_size=1 rank=0",
        "Starting to load model",
        "Loading weights took",
        "KV cache size: 46,592 tokens",
        "Application startup complete.",
    ];
    let mut from = 0;
    for stage in stages {
        let at = whole[from..]
            .find(stage)
            .unwrap_or_else(|| panic!("`{stage}` is missing or out of order:\n{whole}"));
        from += at;
    }
    let end = machine.run(&["logs", name, "-n", "2"]).expect(0).stdout;
    assert_eq!(end.lines().count(), 2, "{end}");
}

fn check_smoke(machine: &Machine, target: &[&str]) {
    let smoke = machine.run(&[&["smoke", "--json"], target].concat()).expect(0).json();
    assert_eq!(smoke["schema"], "kdeploy/smoke");
    let case = &smoke["cases"][0];
    assert_eq!(case["ok"], true, "{smoke:#}");
    assert!(case["got"].as_str().is_some_and(|got| got.contains("Paris")), "{smoke:#}");
    assert_eq!(case["finish_reason"], "stop", "{smoke:#}");
    assert_eq!((&smoke["summary"]["failed"], &case["truncated"]), (&0.into(), &false.into()), "{smoke:#}");
}

fn check_bench(machine: &Machine, name: &str) {
    let bench = machine.run(&["bench", name, "--requests", "3", "--json"]).expect(0).json();
    assert_eq!(bench["schema"], "kdeploy/bench");
    assert_eq!(bench["workload"]["prompt"], "Count from 1 to 50.");
    assert_eq!(bench["workload"]["max_tokens"], 512);
    let runs = bench["runs"].as_array().expect("runs");
    let modes: Vec<&str> = runs.iter().map(|run| run["mode"].as_str().expect("a mode")).collect();
    assert_eq!(modes, ["cold", "warm"], "{bench:#}");
    for (run, sent) in runs.iter().zip([1, 3]) {
        assert_eq!((&run["counts"]["sent"], &run["counts"]["ok"]), (&sent.into(), &sent.into()), "{run:#}");
        let metrics = &run["metrics"];
        for figure in ["ttft_ms", "tpot_ms", "e2el_ms", "decode_tokens_per_s", "output_tokens"] {
            assert!(metrics[figure]["p50"].as_f64().is_some_and(|p50| p50 > 0.0), "{figure}: {run:#}");
        }
        assert!(metrics["itl_p50_ms"].as_f64().is_some_and(|itl| itl > 0.0), "{run:#}");
        assert!(metrics["prompt_tokens"].as_u64().is_some_and(|n| n > 5), "{run:#}");
        let (ttft, e2e) = (metrics["ttft_ms"]["p50"].as_f64(), metrics["e2el_ms"]["p50"].as_f64());
        assert!(ttft < e2e, "{run:#}");
    }
    assert_eq!(runs[0]["metrics"]["output_tokens"]["p50"], 122.0, "the story's count: {bench:#}");
}
