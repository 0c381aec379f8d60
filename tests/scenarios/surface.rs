//! What a user sees without a running engine: plans, settings, errors, JSON.

use super::support::{Machine, free_port};
use std::process::Command;

#[test]
fn a_plan_explains_every_value_and_touches_nothing() {
    let machine = Machine::new().with("KDEPLOY_PORT", "8123");
    let (engine, model) = (machine.fake_engine(), machine.model());
    let profile = machine.write("p.toml", "schema = 1\n[vllm]\nmax_num_seqs = 7\n");
    let arguments = [
        "plan",
        model.to_str().unwrap(),
        "--engine",
        engine.to_str().unwrap(),
        "-p",
        profile.to_str().unwrap(),
        "--context",
        "4K",
        "--json",
        "--",
        "--enforce-eager",
    ];
    let plan = machine.run(&arguments).expect(0).json();
    assert_eq!((&plan["schema"], &plan["fits"]), (&"kdeploy/plan".into(), &true.into()), "{plan:#}");
    assert_eq!((&plan["context_tokens"], &plan["kv_cache_tokens"]), (&4096.into(), &46_592.into()));
    let origin = |name: &str| {
        let settings = plan["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["name"] == name);
        let origin = &setting.unwrap_or_else(|| panic!("no {name}: {plan:#}"))["origin"];
        (origin["kind"].as_str().unwrap().to_owned(), origin["detail"].as_str().unwrap().to_owned())
    };
    assert_eq!(origin("port"), ("env".to_owned(), "KDEPLOY_PORT".to_owned()));
    assert_eq!(origin("max_model_len"), ("flag".to_owned(), "--context".to_owned()));
    assert_eq!(origin("max_num_seqs"), ("profile".to_owned(), format!("{}:3", profile.display())));
    assert_eq!(origin("host").0, "default");
    let argv = plan["argv"].as_array().unwrap();
    assert_eq!(argv.last().unwrap(), "--enforce-eager");
    assert!(argv.iter().any(|word| word == "--max-num-seqs"), "{argv:?}");
    let left: Vec<_> = ["state", "cache", "run", "tmp"]
        .iter()
        .filter(|directory| std::fs::read_dir(machine.path(directory)).unwrap().next().is_some())
        .collect();
    assert!(left.is_empty(), "the plan wrote into {left:?}");
    let pasted = machine
        .run(&["plan", model.to_str().unwrap(), "--engine", engine.to_str().unwrap(), "--argv"])
        .expect(0);
    assert!(
        pasted.stdout.starts_with("env -u ") && pasted.stdout.contains("/venv/bin/vllm serve "),
        "{pasted:?}"
    );
}

/// The story: eight cards, a model whose own context does not fit in bfloat16.
#[test]
fn a_machine_elsewhere_is_planned_for_without_engine_or_weights() {
    let machine = Machine::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kimi-k2.5-nvfp4");
    let plan = |extra: &[&str]| {
        let base = [
            "plan",
            model,
            "--facts",
            "builtin:8x-rtx-pro-6000-server-turin-direct",
            "--kv-cache-dtype",
            "bfloat16",
        ];
        machine.run(&[&base, extra].concat())
    };
    let auto = plan(&["--json"]).expect(0).json();
    let context = auto["context_tokens"].as_u64().unwrap();
    assert!((131_072..262_144).contains(&context), "{auto:#}");
    assert_eq!(
        auto["settings"].as_array().unwrap().iter().find(|s| s["name"] == "tensor_parallel_size").unwrap()["value"],
        8
    );
    let bytes = |item: &str| {
        let row = auto["memory"].as_array().unwrap().iter().find(|row| row["item"] == item).unwrap();
        (
            row["bytes"].as_u64().unwrap() as f64 / f64::from(1 << 30),
            row["source"].as_str().unwrap().to_owned(),
        )
    };
    assert!((bytes("weights").0 - 70.6).abs() < 0.2, "{auto:#}");
    assert!(
        bytes("weights").1.contains("computed from the architecture")
            && bytes("KV cache").1.contains("= 70272 B a token")
    );
    let own = plan(&["--context", "262144"]).expect(78);
    assert!(
        own.stdout.contains("a 262,144-token context needs 17.2 GiB of KV cache per GPU"),
        "{}",
        own.stdout
    );
    assert!(own.stdout.contains("--context 19"), "what would fit is named: {}", own.stdout);
    plan(&["--context", "131072"]).expect(0);
    // Four of these cards do not hold the weights.
    let four = machine.run(&["plan", model, "--facts", "builtin:4x-rtx-pro-6000-server-node"]).expect(78);
    assert!(four.stdout.contains("fits       no"), "{}", four.stdout);
    for (facts, code, words) in [
        ("builtin:8x-h20", 64, "did you mean `builtin:8x-h200`?"),
        ("./nowhere.json", 66, "there is no facts file"),
    ] {
        assert!(
            machine.run(&["plan", model, "--facts", facts]).expect(code).stderr.contains(words),
            "{facts}"
        );
    }
    let broken = machine.write("facts.json", "{\"schema\": 1");
    machine.run(&["plan", model, "--facts", broken.to_str().unwrap()]).expect(78);
    let known =
        plan(&["--assume", "activations=1GiB", "--assume", "graphs=0.5GiB", "--json"]).expect(0).json();
    assert!(known["context_tokens"].as_u64().unwrap() > context, "{known:#}");
    assert!(known["memory"].to_string().contains("assumed, as given"), "{known:#}");
    plan(&["--assume", "luck=1GiB"]).expect(64);
    // A plan may be made of what is not whole; a launch may not.
    let engine = machine.fake_engine();
    let up = machine.run(&["up", model, "--engine", engine.to_str().unwrap()]).expect(65);
    assert!(up.stderr.contains("holds no weights"), "{up:?}");
}

#[test]
fn a_plan_that_was_kept_is_run_word_for_word() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), machine.model());
    let port = free_port();
    let made = [
        "plan",
        model.to_str().unwrap(),
        "--engine",
        engine.to_str().unwrap(),
        "--port",
        &port,
        "--context",
        "2K",
    ];
    let said = machine.run(&[&made[..], &["--name", "kept", "--json"]].concat()).expect(0);
    let file = machine.write("plan.json", &said.stdout);
    let file = file.to_str().unwrap();
    machine.run(&["up", "-d", "--plan", file]).expect(0);
    let record = machine.record("kept");
    assert_eq!(record["plan"], said.json()["launch"], "word for word");
    machine.run(&["down", "kept"]).expect(0);
    machine.run(&["up", "--plan", file, "--context", "4K"]).expect(64);
    machine.run(&["up", "--plan", "./nowhere"]).expect(66);
    let torn = machine.write("torn.json", "{\"launch\": {\"format\": 1}}");
    assert!(
        machine.run(&["up", "--plan", torn.to_str().unwrap()]).expect(78).stderr.contains("missing field")
    );
    let newer = machine.write("newer.json", "{\"format\": 99}");
    assert!(
        machine.run(&["up", "--plan", newer.to_str().unwrap()]).expect(78).stderr.contains("newer kdeploy")
    );
}

#[test]
fn a_model_that_is_not_here_is_left_to_the_engine_with_a_warning() {
    let machine = Machine::new();
    let engine = machine.fake_engine();
    let arguments = ["plan", "org/elsewhere", "--engine", engine.to_str().unwrap(), "--json"];
    let plan = machine.run(&arguments).expect(0).json();
    let warnings = plan["warnings"].to_string();
    assert!(warnings.contains("the engine fetches it while it starts"), "{plan:#}");
    assert!(
        plan["argv"].to_string().contains("\"org/elsewhere\"") && plan["env"]["HF_HUB_OFFLINE"].is_null(),
        "{plan:#}"
    );
    assert_eq!(plan["model"]["path"], serde_json::Value::Null);
}

#[test]
fn a_plan_that_does_not_fit_is_shown_and_never_run() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), machine.model());
    let large = "schema = 1\n[context]\nwant = 8192\n[env]\nVLLM_CPU_KVCACHE_SPACE = 60000\n";
    let profile = machine.write("large.toml", large);
    let tail =
        [model.to_str().unwrap(), "--engine", engine.to_str().unwrap(), "-p", profile.to_str().unwrap()];
    let plan = machine.run(&[&["plan"], &tail[..]].concat()).expect(78);
    assert!(plan.stdout.contains("fits       no"), "{plan:?}");
    let up = machine.run(&[&["up", "-d"], &tail[..]].concat()).expect(78);
    assert!(up.stderr.contains("error[context-does-not-fit]"), "{up:?}");
    assert!(!machine.path("state/large/attempts").exists());
}

#[test]
fn mistakes_have_a_code_a_place_and_a_next_step() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), machine.model());
    let (engine, model) = (engine.to_str().unwrap(), model.to_str().unwrap());
    let typo = machine.write("typo.toml", "schema = 1\n[contxt]\nwant = 1\n");
    let newer = machine.write("newer.toml", "schema = 1\n[engine]\nvllm = \">=99\"\n");
    let torn = machine.write("torn/config.json", "{\"architectures\": [");
    let torn = torn.parent().unwrap().to_str().unwrap();
    for (arguments, code, words) in [
        (vec!["up"], 64, "nothing says which model"),
        (vec!["up", model, "--frob"], 64, "--frob"),
        (vec!["up", "./nowhere", "--engine", engine], 66, "model-not-found"),
        (vec!["up", "org/not-here", "--engine", engine, "--offline"], 66, "hf download org/not-here"),
        (vec!["up", torn, "--engine", engine], 65, "torn/config.json"),
        (vec!["plan", model], 69, "error[engine-not-installed]"),
        (vec!["plan", model, "--engine", "/nowhere"], 69, "/nowhere/bin/vllm"),
        (
            vec!["plan", model, "--engine", engine, "-p", typo.to_str().unwrap()],
            78,
            "typo.toml:2: unknown key `contxt`; did you mean `context`?",
        ),
        (
            vec!["plan", model, "--engine", engine, "-p", newer.to_str().unwrap()],
            78,
            "error[engine-version-refused]",
        ),
        (vec!["plan", model, "--engine", engine, "-p", "quickstrat"], 66, "did you mean `quickstart`?"),
        (vec!["plan", model, "--engine", engine, "--context", "9000"], 78, "longer than the model's own"),
        (
            vec!["plan", model, "--engine", engine, "--tp", "2"],
            78,
            "must divide the model's 9 attention heads",
        ),
        (vec!["smoke", "ghost"], 66, "there is no deployment `ghost`"),
        (vec!["smoke", "--url", "http://127.0.0.1:1"], 69, "error[server-unreachable]"),
        (vec!["bench", "--url", "ftp://x"], 64, "error[usage]"),
        (vec!["quickstart", "--offline"], 69, "--offline was given"),
    ] {
        let said = machine.run(&arguments).expect(code);
        let text = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{arguments:?}: `{words}` is not in\n{}", said.stderr);
        assert!(said.stdout.is_empty(), "{arguments:?}: {said:?}");
        // The same as a document, also when it fails.
        let document = machine.run(&[&arguments[..], &["--json"]].concat()).expect(code).json();
        assert_eq!((&document["exit"], &document["ok"]), (&code.into(), &false.into()), "{document:#}");
        assert!(document["error"]["code"].is_string(), "{document:#}");
    }
}

#[test]
fn what_does_not_run_is_an_answer_and_no_error() {
    let machine = Machine::new();
    for (arguments, schema) in [
        (&["status"][..], "kdeploy/status"),
        (&["status", "ghost"], "kdeploy/status"),
        (&["down"], "kdeploy/down"),
        (&["down", "ghost"], "kdeploy/down"),
        (&["logs", "ghost"], "kdeploy/logs"),
    ] {
        let said = machine.run(arguments).expect(3);
        assert!(!said.stderr.contains("error["), "{said:?}");
        let document = machine.run(&[arguments, &["--json"]].concat()).expect(3).json();
        assert_eq!((&document["schema"], &document["exit"]), (&schema.into(), &3.into()), "{document:#}");
    }
    machine.run(&["down", "--all"]).expect(0);
}

#[test]
fn secrets_stay_out_of_command_lines_files_and_words() {
    let secret = "s3cr3t-k3y-0815";
    let machine = Machine::new().with("VLLM_API_KEY", secret).with("HF_TOKEN", "hf-s3cr3t");
    let (engine, model) = (machine.fake_engine(), machine.model());
    let port = free_port();
    let base = [
        "up",
        "-d",
        model.to_str().unwrap(),
        "--name",
        "t",
        "--engine",
        engine.to_str().unwrap(),
        "--port",
        &port,
    ];
    for refused in [&["--set", "api_key=s3cr3t"][..], &["--", "--api-key", "s3cr3t"]] {
        let said = machine.run(&[&base, refused].concat()).expect(78);
        assert!(!said.stderr.contains("s3cr3t") && said.stderr.contains("secret"), "{said:?}");
    }
    let up = machine.run(&base).expect(0); // kdeploy's own requests carry the key, or it never got ready
    let without = machine.command(&["smoke", "t"]).env_remove("VLLM_API_KEY").output().unwrap();
    assert_eq!(without.status.code(), Some(77), "{}", String::from_utf8_lossy(&without.stderr));
    let mut words = up.stdout + &up.stderr;
    for arguments in
        [&["status", "--json"][..], &["smoke", "--json"], &["bench", "--requests", "1", "--json"], &["logs"]]
    {
        let said = machine.run(arguments).expect(0);
        words += &(said.stdout + &said.stderr);
    }
    assert!(!words.contains(secret), "in the output");
    for member in machine.record("t")["members"].as_array().unwrap() {
        let pid = if member["pid"].is_null() { &member["id"]["pid"] } else { &member["pid"] };
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&cmdline).contains(secret), "in a command line");
    }
    machine.run(&["down", "t"]).expect(0);
    for directory in ["state", "cache"] {
        let found = Command::new("grep").args(["-rl", secret]).arg(machine.path(directory)).output().unwrap();
        assert!(found.stdout.is_empty(), "in {}", String::from_utf8_lossy(&found.stdout));
    }
}

#[test]
fn odd_surroundings_are_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let machine = Machine::new();
    let run = |change: &dyn for<'a> Fn(&'a mut Command) -> &'a mut Command| {
        let mut command = machine.command(&["status"]);
        change(&mut command);
        machine.finish(command.spawn().unwrap())
    };
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    assert!(run(&|c| c.env("KDEPLOY_NAME", bytes)).expect(78).stderr.contains("KDEPLOY_NAME is not UTF-8"));
    run(&|c| c.arg(bytes)).expect(64);
    let homeless = run(&|c| c.env_remove("HOME").env_remove("KDEPLOY_STATE_DIR")).expect(78);
    assert!(homeless.stderr.contains("set HOME, or KDEPLOY_STATE_DIR"), "{homeless:?}");
    run(&|c| c.env_remove("HOME")).expect(3); // a service has its directories and no home
    machine.write("state/torn/launch.json", "{\"form");
    assert!(machine.run(&["status"]).expect(74).stderr.contains("launch.json.corrupt"));
    machine.run(&["status"]).expect(3);
    let file = machine.write("file", "");
    run(&|c| c.env("KDEPLOY_STATE_DIR", &file)).expect(73);
    // A reader that goes away ends it quietly.
    let mut child = machine.spawn(&["status"]);
    drop(child.stdout.take());
    let said = machine.finish(child);
    assert!(said.code == 3 && said.stderr.is_empty(), "{said:?}");
}

#[test]
fn completions_and_the_man_page_are_generated() {
    let machine = Machine::new();
    assert!(machine.run(&["completions", "bash"]).expect(0).stdout.contains("quickstart"));
    assert!(machine.run(&["man"]).expect(0).stdout.contains(".TH kdeploy"));
    let version = machine.run(&["--version"]).expect(0).stdout;
    assert_eq!(version.trim(), concat!("kdeploy ", env!("CARGO_PKG_VERSION")));
}
