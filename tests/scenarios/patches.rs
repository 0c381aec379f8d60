//! Patches: what they change and what they never touch, from the command line.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Machine, Said, free_port};

const DROP: [&str; 2] = ["--patches", "drop-fp8-kv-cache"];
const CONFIG: &str = r#"{
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
  "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
  "head_dim": 32, "intermediate_size": 128, "vocab_size": 49152, "max_position_embeddings": 8192,
  "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": null,
  "rms_norm_eps": 1e-05, "x-unknown": [1.0, -0.0, 123456789012345678901234567890, "é\u00e9"],
  "quantization_config": {
    "quant_method": "modelopt",
    "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
    "quant_algo": "NVFP4", "ignore": ["*"]
  }
}
"#;
const HF_QUANT: &str = r#"{
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*"]}
}"#;

/// A checkpoint with MLA that asks for an FP8 KV cache in both of its files.
fn checkpoint(machine: &Machine) -> PathBuf {
    let model = machine.model();
    machine.write("models/tiny/config.json", CONFIG);
    machine.write("models/tiny/hf_quant_config.json", HF_QUANT);
    machine.write("models/tiny/modeling_x.py", "print('code')\n");
    model
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// `up` with the fake engine under a name.
fn up(machine: &Machine, model: &Path, name: &str, extra: &[&str]) -> Said {
    let engine = machine.path("venv/bin/vllm");
    let port = free_port();
    let base =
        ["up", text(model), "-d", "--name", name, "--engine", text(&engine), "--port", &port, "--no-smoke"];
    machine.run(&[&base, extra].concat())
}

/// Bytes, mode, time and inode of every file below a directory.
fn state_of(root: &Path) -> Vec<(PathBuf, Vec<u8>, u32, i64, i64, u64)> {
    let mut found: Vec<_> = fs::read_dir(root)
        .unwrap()
        .flatten()
        .map(|entry| {
            let meta = entry.metadata().unwrap();
            let bytes = if meta.is_file() { fs::read(entry.path()).unwrap() } else { Vec::new() };
            (entry.path(), bytes, meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.ino())
        })
        .collect();
    found.sort();
    found
}

fn overlays(machine: &Machine) -> Vec<PathBuf> {
    let entries = fs::read_dir(machine.path("cache/overlays"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn patches_are_listed_explained_and_shown_as_diffs() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let before = state_of(&model);
    let shipped = machine.run(&["patch", "list"]).expect(0);
    for name in [
        "drop-fp8-kv-cache",
        "sync-quant-configs",
        "materialise-remote-code",
        "exclude-mtp-layers",
        "exclude-quantised-lm-head",
        "fix-chat-template",
    ] {
        assert!(shipped.stdout.contains(name), "{shipped:?}");
        let shown = machine.run(&["patch", "show", name, "--json"]).expect(0).json();
        assert_eq!(shown["schema"], "kdeploy/patch");
        let links = shown["patches"][0]["links"].as_array().map_or(0, Vec::len);
        assert!(links > 0, "each says where it is from: {shown:#}");
    }
    let unknown = machine.run(&["patch", "show", "drop-fp8-kv-cash"]).expect(66);
    assert!(unknown.stderr.contains("drop-fp8-kv-cache"), "the nearest name: {unknown:?}");

    let with = |command: &str, extra: &[&str]| {
        machine.run(&[&["patch", command, text(&model), "--engine", text(&engine)], extra].concat())
    };
    let listed = with("list", &["--json"]).expect(0).json();
    let entry = |name: &str| {
        let patches = listed["patches"].as_array().unwrap();
        patches.iter().find(|patch| patch["name"] == name).unwrap_or_else(|| panic!("{listed:#}")).clone()
    };
    assert_eq!(entry("drop-fp8-kv-cache")["needed"], true);
    assert_eq!(entry("sync-quant-configs")["needed"], false);
    assert!(entry("sync-quant-configs")["because"].is_string(), "{listed:#}");

    let diff = with("diff", &DROP).expect(0).stdout;
    let changed: Vec<&str> = diff
        .lines()
        .filter(|line| line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---"))
        .collect();
    assert_eq!(
        changed,
        [
            r#"-    "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},"#,
            r#"-    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*"]}"#,
            r#"+    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": null, "exclude_modules": ["*"]}"#,
        ],
        "{diff}"
    );
    let plan = machine
        .run(&[&["plan", text(&model), "--engine", text(&engine), "--show-patches"], &DROP[..]].concat())
        .expect(0);
    assert!(plan.stdout.contains("kv_cache_quant_algo\": null"), "{plan:?}");
    assert_eq!(state_of(&model), before);
    assert!(overlays(&machine).is_empty(), "looking makes nothing");
}

/// The diff is one that `patch` itself takes.
#[test]
fn a_diff_is_one_that_other_programs_take() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let base = ["patch", "diff", text(&model), "--engine", text(&engine)];
    let diff = machine.run(&[&base, &DROP[..]].concat()).expect(0).stdout;
    machine
        .run(&[&["patch", "apply", text(&model), "--engine", text(&engine)], &DROP[..]].concat())
        .expect(0);
    let overlay = overlays(&machine).remove(0);
    let file = machine.write("x.diff", &diff);
    let copy = machine.path("copy");
    fs::create_dir(&copy).unwrap();
    for name in ["config.json", "hf_quant_config.json"] {
        fs::copy(model.join(name), copy.join(name)).unwrap();
    }
    let applied = Command::new("git").args(["apply", text(&file)]).current_dir(&copy).output().expect("git");
    assert!(applied.status.success(), "{}\n{diff}", String::from_utf8_lossy(&applied.stderr));
    for name in ["config.json", "hf_quant_config.json"] {
        assert_eq!(fs::read(copy.join(name)).unwrap(), fs::read(overlay.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn an_overlay_is_made_used_again_and_taken_away() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let before = state_of(&model);
    let with = |command: &str, extra: &[&str]| {
        machine.run(&[&["patch", command, text(&model), "--engine", text(&engine)], extra].concat())
    };
    with("apply", &DROP).expect(0);
    let made = overlays(&machine);
    assert_eq!(made.len(), 1);
    let overlay = made[0].clone();
    assert!(fs::symlink_metadata(overlay.join("model.safetensors")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(overlay.join("modeling_x.py")).unwrap().is_file(), "code is copied");
    // Odd numbers, unknown keys and their order survive: only the intended lines differ.
    let edited = fs::read_to_string(overlay.join("config.json")).unwrap();
    let kept = CONFIG.lines().filter(|line| !line.contains("kv_cache_scheme")).collect::<Vec<_>>();
    assert_eq!(edited.lines().collect::<Vec<_>>(), kept);

    let status = with("status", &["--json"]).expect(0).json();
    assert_eq!(status["overlays"][0]["in_use"], false, "{status:#}");
    up(&machine, &model, "a", &DROP).expect(0);
    let second = up(&machine, &model, "b", &DROP).expect(0);
    assert!(second.stdout.contains("kv_cache_dtype=auto"), "the evidence is shown: {second:?}");
    assert_eq!(overlays(&machine), made, "two launches share it");
    let status = with("status", &["--json"]).expect(0).json();
    assert_eq!(status["overlays"][0]["in_use"], true, "{status:#}");
    let record = machine.record("a");
    let files = record["plan"]["overlay"]["files"].as_array().unwrap();
    let change = |file: usize| files[file]["changes"][0].clone();
    assert_eq!(change(0)["pointer"], "/quantization_config/kv_cache_scheme", "{record:#}");
    assert_eq!(change(1)["pointer"], "/quantization/kv_cache_quant_algo");
    assert!(
        files.iter().all(|file| file["sha256_before"].is_string() && file["sha256_after"].is_string()),
        "{record:#}"
    );
    assert!(record["evidence"][0].as_str().unwrap().contains("kv_cache_dtype=auto"), "{record:#}");

    let revert = with("revert", &[]).expect(0);
    assert!(revert.stdout.contains("stays: a launch uses it"), "{revert:?}");
    assert_eq!(overlays(&machine), made);
    machine.run(&["down", "a"]).expect(0);
    assert_eq!(overlays(&machine), made, "the other one still uses it");
    machine.run(&["down", "b", "--keep-overlay"]).expect(0);
    assert_eq!(overlays(&machine), made, "kept on request");
    with("revert", &[]).expect(0);
    assert!(overlays(&machine).is_empty());
    assert_eq!(state_of(&model), before, "the checkpoint is untouched");
}

#[test]
fn several_at_once_end_with_one_whole_overlay() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let base = ["patch", "apply", text(&model), "--engine", text(&engine)];
    let running: Vec<_> = (0..6).map(|_| machine.spawn(&[&base, &DROP[..]].concat())).collect();
    for child in running {
        machine.finish(child).expect(0);
    }
    assert_eq!(overlays(&machine).len(), 1);
    let edited = fs::read_to_string(overlays(&machine)[0].join("config.json")).unwrap();
    assert!(!edited.contains("kv_cache_scheme"));
}

#[test]
fn in_place_only_on_request_with_an_exact_way_back() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    fs::set_permissions(model.join("config.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let before = state_of(&model);
    let with = |command: &str, extra: &[&str]| {
        machine.run(&[&["patch", command, text(&model), "--engine", text(&engine)], extra].concat())
    };
    with("apply", &[&DROP[..], &["--in-place"]].concat()).expect(0);
    assert!(!fs::read_to_string(model.join("config.json")).unwrap().contains("kv_cache_scheme"));
    assert!(fs::read_to_string(model.join("hf_quant_config.json")).unwrap().contains("_algo\": null"));
    assert_eq!(fs::metadata(model.join("config.json")).unwrap().mode() & 0o777, 0o640);
    let status = with("status", &["--json"]).expect(0).json();
    assert_eq!(status["in_place"]["patches"][0], "drop-fp8-kv-cache", "{status:#}");
    // It now needs nothing, and does not get it twice.
    let listed = with("list", &["--json"]).expect(0).json();
    assert_eq!(listed["patches"][0]["needed"], false, "{listed:#}");
    with("revert", &[]).expect(0);
    let comparable = |state: Vec<(PathBuf, Vec<u8>, u32, i64, i64, u64)>| {
        state.into_iter().map(|(path, bytes, mode, s, ns, _)| (path, bytes, mode, s, ns)).collect::<Vec<_>>()
    };
    assert_eq!(comparable(state_of(&model)), comparable(before));
    assert!(with("revert", &[]).stdout.contains("nothing"), "the second time there is nothing to do");
}

/// A snapshot of the Hugging Face cache: its files are links to blobs that other snapshots share.
#[test]
fn links_into_a_shared_cache_are_refused_in_place_and_fine_in_an_overlay() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let hub = machine.path("home/.cache/huggingface/hub/models--a--b");
    let snapshot = hub.join("snapshots/0123abcd");
    fs::create_dir_all(hub.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (number, entry) in fs::read_dir(&model).unwrap().flatten().enumerate() {
        let blob = hub.join(format!("blobs/{number}"));
        fs::copy(entry.path(), &blob).unwrap();
        symlink(format!("../../blobs/{number}"), snapshot.join(entry.file_name())).unwrap();
    }
    let blobs = state_of(&hub.join("blobs"));
    let base = ["patch", "apply", text(&snapshot), "--engine", text(&engine)];
    let refused = machine.run(&[&base[..], &DROP, &["--in-place"]].concat());
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(
        refused.stderr.contains("model cache") && refused.stderr.contains("kdeploy patch apply"),
        "{refused:?}"
    );
    machine.run(&[&base[..], &DROP].concat()).expect(0);
    let overlay = overlays(&machine).remove(0);
    let target = fs::read_link(overlay.join("model.safetensors")).unwrap();
    assert!(target.is_absolute() && target.starts_with(hub.join("blobs")), "links are resolved: {target:?}");
    assert_eq!(state_of(&hub.join("blobs")), blobs);
}

#[test]
fn a_checkpoint_that_changed_since_the_plan_stops_with_65() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let base = ["plan", text(&model), "--engine", text(&engine), "--name", "t", "--json"];
    let plan = machine.run(&[&base, &DROP[..]].concat()).expect(0).stdout;
    let file = machine.write("plan.json", &plan);
    machine.write("models/tiny/config.json", &CONFIG.replace("\"ignore\": [\"*\"]", "\"ignore\": [\"a*\"]"));
    let said = machine.run(&["up", "-d", "--plan", text(&file)]).expect(65);
    assert!(said.stderr.contains("error[patch-does-not-apply]"), "{said:?}");
    assert!(said.stderr.contains("config.json"), "{said:?}");
    assert!(overlays(&machine).is_empty() && !machine.path("state/t/attempts").exists());
}

/// Evidence is a line that confirms, not the absence of an error.
#[test]
fn a_log_that_does_not_confirm_the_kv_cache_type_fails_the_launch() {
    for (fault, words) in [("other-kv-type", "fp8_e4m3"), ("no-kv-line", "kv_cache_dtype")] {
        let machine = Machine::new().with("FAKE_VLLM_FAULT", fault);
        machine.fake_engine();
        let model = checkpoint(&machine);
        let said = up(&machine, &model, "t", &[&DROP[..], &["--max-attempts", "1"]].concat());
        assert_ne!(said.code, 0, "{fault}: {said:?}");
        assert!(said.stderr.contains("error[plan-contradicted]"), "{fault}: {said:?}");
        assert!(said.stderr.contains(words) && said.stderr.contains("engine.log"), "{fault}: {said:?}");
        assert!(!said.stdout.contains("Ready"), "{said:?}");
        machine.assert_no_processes();
    }
}

#[test]
fn without_patches_it_is_refused_and_by_force_explained() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "die-on-first-request");
    machine.fake_engine();
    let model = checkpoint(&machine);
    let refused = up(&machine, &model, "t", &["--patches", "none"]).expect(78);
    assert!(refused.stderr.contains("error[kv-dtype-unsupported]"), "{refused:?}");
    assert!(refused.stderr.contains("config.json quantization_config.kv_cache_scheme"), "{refused:?}");
    let forced =
        up(&machine, &model, "t", &["--patches", "none", "--force-preflight", "kv-dtype-unsupported"])
            .expect(78);
    assert!(forced.stderr.contains("error[kv-dtype-unsupported]"), "{forced:?}");
    assert!(forced.stderr.contains("config.json quantization_config.kv_cache_scheme"), "{forced:?}");
    assert!(forced.stderr.contains("but found Float8_e4m3fn"), "the line that proves it: {forced:?}");
    assert!(!machine.path("state/t/attempts/2").exists(), "no other attempt would end differently");
    assert_eq!(forced.stderr.matches("error[").count(), 1, "told once: {forced:?}");
}

#[test]
fn the_users_own_patches_count_and_their_mistakes_point_at_the_line() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    let own = "schema = 1\nname = \"longer\"\nwhy = \"Ours is longer.\"\nlinks = [\"https://example.org/x\"]\n\n\
        [[file]]\npath = \"config.json\"\nops = [\n    { op = \"test\", path = \"/max_position_embeddings\", json = \"8192\" },\n    \
        { op = \"replace\", path = \"/max_position_embeddings\", json = \"16384\" },\n]\n";
    let file = "home/.config/kdeploy/patches/longer.toml";
    machine.write(file, own);
    let run = |command: &str| {
        let base = ["patch", command, text(&model), "--engine", text(&engine)];
        machine.run(&[&base[..], &["--patches", "longer,drop-fp8-kv-cache"]].concat())
    };
    let diff = run("diff").expect(0).stdout;
    assert!(
        diff.contains("+  \"head_dim\": 32") && diff.contains("\"max_position_embeddings\": 16384"),
        "{diff}"
    );
    // Its `test` fails: nothing is made, and the reason is shown.
    machine.write(file, &own.replace("\"8192\"", "\"4096\""));
    let said = run("apply").expect(65);
    assert!(said.stderr.contains("/max_position_embeddings") && said.stderr.contains("8192"), "{said:?}");
    assert!(overlays(&machine).is_empty());
    // A mistake in it.
    machine.write(file, &own.replace("op = \"replace\"", "op = \"repalce\""));
    let said = run("diff").expect(78);
    assert!(said.stderr.contains("longer.toml") && said.stderr.contains("repalce"), "{said:?}");
    machine.write(file, &format!("when = [\"gpu.cc ==\"]\n{own}"));
    let said = run("diff").expect(78);
    assert!(said.stderr.contains("longer.toml:1"), "{said:?}");
}

/// Bytes that no engine could read get a clear error, and nothing is made.
#[test]
fn hostile_checkpoints_are_refused_in_words() {
    let mut bom = vec![0xef, 0xbb, 0xbf];
    bom.extend(CONFIG.as_bytes());
    let mut latin = CONFIG.as_bytes().to_vec();
    latin.splice(4..4, *b"\"name\": \"\xe9\", ");
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(200 << 20));
    for (what, bytes) in [
        ("BOM", bom),
        ("invalid UTF-8", latin),
        ("nesting of 100,000", deep.into_bytes()),
        ("200 MB", huge.into_bytes()),
        ("torn", CONFIG.as_bytes()[..300].to_vec()),
        ("empty", Vec::new()),
        ("NULs", vec![0; 4096]),
        ("an array", b"[1, 2]".to_vec()),
    ] {
        let machine = Machine::new();
        let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
        fs::write(model.join("config.json"), bytes).unwrap();
        let base = ["patch", "apply", text(&model), "--engine", text(&engine)];
        let said = machine.run(&[&base[..], &DROP].concat());
        assert!(matches!(said.code, 65 | 66 | 78), "{what}: {said:?}");
        assert!(said.stderr.contains("config.json"), "{what}: {said:?}");
        assert!(said.stderr.len() < 4_000, "{what}: the message is short");
        assert!(overlays(&machine).is_empty(), "{what}");
    }
}

#[test]
fn files_that_are_no_files_are_refused_in_words() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 4] = [
        ("a symlink loop", |path| symlink(path, path).unwrap()),
        ("a dangling link", |path| symlink("gone.json", path).unwrap()),
        ("a directory", |path| fs::create_dir(path).unwrap()),
        ("a FIFO", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR).unwrap()),
    ];
    for (what, spoil) in spoils {
        for name in ["config.json", "hf_quant_config.json"] {
            let machine = Machine::new();
            let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
            fs::remove_file(model.join(name)).unwrap();
            spoil(&model.join(name));
            let base = ["patch", "apply", text(&model), "--engine", text(&engine)];
            let said = machine.run(&[&base[..], &DROP].concat());
            assert_ne!(said.code, 70, "{what} as {name}: {said:?}");
            assert!(said.code != 0, "{what} as {name}: {said:?}");
            assert!(said.stderr.contains(name), "{what} as {name}: {said:?}");
            assert!(overlays(&machine).is_empty(), "{what} as {name}");
        }
    }
}

/// A write that fails in the middle, as on a full disk.
#[test]
fn a_write_that_fails_in_the_middle_leaves_nothing_half_made() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), checkpoint(&machine));
    // The code is copied; no file may grow beyond 64 KiB.
    fs::write(model.join("modeling_x.py"), "#".repeat(200_000)).unwrap();
    let arguments = [&["patch", "apply", text(&model), "--engine", text(&engine)], &DROP[..]].concat();
    let run = |limit: &str| {
        let kdeploy = machine.command(&arguments);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' XFSZ; {limit} exec \"$@\""), "sh"]);
        shell.arg(kdeploy.get_program()).args(kdeploy.get_args()).env_clear();
        shell.envs(kdeploy.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(machine.path("")).output().expect("sh")
    };
    let before = state_of(&model);
    let said = run("ulimit -f 128;");
    let stderr = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code().is_some_and(|code| code > 0 && code != 70), "{stderr}");
    assert!(stderr.contains("modeling_x.py") && stderr.contains("large"), "{stderr}");
    assert!(overlays(&machine).is_empty(), "{:?}", overlays(&machine));
    assert_eq!(state_of(&model), before);
    assert!(run("").status.success());
    assert_eq!(overlays(&machine).len(), 1);
}
