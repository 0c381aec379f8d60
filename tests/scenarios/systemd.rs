//! Under a service manager: what it is told on a real socket, and the units that it reads.

use super::support::{Machine, Said, free_port, send};
use nix::sys::signal::Signal;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    /// Messages with the time at which they came.
    heard: Vec<(Instant, String)>,
}

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self { socket, heard: Vec::new() }
    }

    fn listen(&mut self) {
        let mut block = [0; 4096];
        if let Ok(length) = self.socket.recv(&mut block) {
            self.heard.push((Instant::now(), String::from_utf8(block[..length].to_vec()).unwrap()));
        }
    }

    /// Waits for a message with a line that begins so, and returns all that came until then.
    #[track_caller]
    fn wait_for(&mut self, beginning: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        let has = |heard: &[(Instant, String)]| {
            heard.iter().any(|(_, text)| text.lines().any(|line| line.starts_with(beginning)))
        };
        while !has(&self.heard) {
            assert!(Instant::now() < deadline, "no `{beginning}` in {:#?}", self.heard);
            self.listen();
        }
        self.heard.iter().map(|(_, text)| format!("{text}\n")).collect()
    }

    fn count(&self, line: &str) -> usize {
        self.heard.iter().flat_map(|(_, text)| text.lines()).filter(|found| *found == line).count()
    }
}

fn up(machine: &Machine, extra: &[&str]) -> std::process::Child {
    let (engine, model, port) = (machine.fake_engine(), machine.model(), free_port());
    let (engine, model) = (engine.to_str().unwrap(), model.to_str().unwrap());
    let base = ["up", model, "--name", "s", "--no-smoke", "--engine", engine, "--port", &port];
    machine.spawn(&[&base, extra].concat())
}

#[test]
fn a_start_tells_its_manager_where_it_is_and_says_ready_only_after_an_answer() {
    let machine = Machine::new();
    let path = machine.path("notify");
    let mut manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    // An engine that takes its time with the first answer.
    let machine = machine
        .with("NOTIFY_SOCKET", path.to_str().unwrap())
        .with("WATCHDOG_USEC", "2000000")
        .with("FAKE_VLLM_STEP_MS", "100");
    let mut child = up(&machine, &[]);
    let told = manager.wait_for("READY=1");
    for expected in ["STATUS=starting: imports", "STATUS=starting: weights", "STATUS=warming up"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let before = told.split("READY=1").next().unwrap();
    assert!(before.contains("EXTEND_TIMEOUT_USEC="), "{told}");
    assert!(before.contains("STATUS=warming up"), "ready is what has answered: {told}");
    assert!(told.lines().all(|line| line.len() <= 80 + "STATUS=".len()), "{told}");
    assert_eq!(machine.record("s")["state"], "ready");
    // The engine knows nothing of it.
    let main = machine.record("s")["main"]["pid"].as_i64().unwrap();
    let environment = std::fs::read_to_string(format!("/proc/{main}/environ")).unwrap();
    assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("WATCHDOG_USEC"));

    let pings = manager.count("WATCHDOG=1");
    let deadline = Instant::now() + Duration::from_secs(30);
    while manager.count("WATCHDOG=1") < pings + 2 {
        assert!(Instant::now() < deadline, "the watchdog is not fed: {:#?}", manager.heard);
        manager.listen();
    }
    send(i32::try_from(child.id()).unwrap(), Signal::SIGTERM);
    let told = manager.wait_for("STOPPING=1");
    assert!(told.contains("STATUS=stopping"), "{told}");
    assert_eq!(child.wait().unwrap().code(), Some(0), "a requested stop");
    manager.wait_for("STATUS=stopped");
    assert_eq!(manager.count("READY=1"), 1);
}

/// An abstract socket, as some managers give; a killed engine is restarted inside the service, which
/// therefore neither stops nor becomes ready again.
#[test]
fn a_restart_of_the_engine_is_none_of_the_service() {
    let name = format!("kdeploy-scenario-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let mut manager = Manager::new(UnixDatagram::bind_addr(&address).unwrap());
    let machine = Machine::new().with("NOTIFY_SOCKET", &format!("@{name}"));
    let mut child = up(&machine, &["--max-attempts", "2"]);
    manager.wait_for("READY=1");
    let main = i32::try_from(machine.record("s")["main"]["pid"].as_i64().unwrap()).unwrap();
    send(main, Signal::SIGKILL);
    manager.wait_for("STATUS=failed; ending what is left");
    manager.wait_for("STATUS=attempt 2 of 2 in ");
    machine.wait_until("it is ready again", || {
        let record = machine.record_now("s");
        record["state"] == "ready" && record["attempt"] == 2
    });
    manager.listen();
    assert_eq!((manager.count("READY=1"), manager.count("STOPPING=1")), (1, 0), "{:#?}", manager.heard);
    send(i32::try_from(child.id()).unwrap(), Signal::SIGTERM);
    manager.wait_for("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The supervisor that `-d` leaves behind is not the service's main process and says nothing.
#[test]
fn what_was_left_behind_does_not_speak_for_a_service() {
    let machine = Machine::new();
    let path = machine.path("notify");
    let mut manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    let machine = machine.with("NOTIFY_SOCKET", path.to_str().unwrap());
    let mut child = up(&machine, &["-d"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    machine.run(&["down", "s"]).expect(0);
    manager.listen();
    assert!(manager.heard.is_empty(), "{:#?}", manager.heard);
}

// --- units ---------------------------------------------------------------------------------------

#[track_caller]
fn analyze(arguments: &[&str]) -> String {
    let said = Command::new("systemd-analyze")
        .args(arguments)
        .env("XDG_RUNTIME_DIR", "/tmp")
        .output()
        .expect("systemd-analyze is needed: install systemd (`apt-get install systemd`)");
    format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}

/// `verify` exits 0 even for unknown keys: any line is a failure.
#[track_caller]
fn assert_verified(unit: &Path, user: bool) {
    let unit = unit.to_str().unwrap();
    let user: &[&str] = if user { &["--user"] } else { &[] };
    let said = analyze(&[user, &["verify", "--man=no", unit]].concat());
    assert_eq!(said, "", "{unit}");
}

#[track_caller]
fn exposure(unit: &Path) -> f64 {
    let said = analyze(&["security", "--offline=yes", "--no-pager", unit.to_str().unwrap()]);
    let line = said.lines().find(|line| line.contains("Overall exposure level")).expect("a verdict");
    let number = line.split(": ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    number.parse().unwrap_or_else(|_| panic!("{said}"))
}

/// A unit that comes with kdeploy, with a program in it that exists here.
fn shipped(machine: &Machine, path: &str, program: &str) -> std::path::PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(path);
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(program).count(), 2, "start and cleaning");
    let here = text.replace(program, env!("CARGO_BIN_EXE_kdeploy"));
    machine.write(&format!("units/{path}"), &here)
}

#[test]
fn the_units_that_come_with_kdeploy_are_accepted_and_tight() {
    let machine = Machine::new();
    let system = shipped(&machine, "kdeploy@.service", "/usr/local/bin/kdeploy");
    assert_verified(&system, false);
    let score = exposure(&system);
    assert!(score <= 2.0, "exposure {score}");
    let user = shipped(&machine, "user/kdeploy@.service", "%h/.local/bin/kdeploy");
    assert_verified(&user, true);
    // A key that systemd does not know is told by a line, and only by it.
    let text = std::fs::read_to_string(&system).unwrap().replace("KillMode=", "KilMode=");
    let wrong = machine.write("units/wrong@.service", &text);
    assert!(analyze(&["verify", "--man=no", wrong.to_str().unwrap()]).contains("KilMode"));
}

fn export(machine: &Machine, model: &Path, extra: &[&str]) -> Said {
    let engine = machine.fake_engine();
    let base = ["export", "systemd", model.to_str().unwrap(), "--engine", engine.to_str().unwrap()];
    machine.run(&[&base, extra].concat())
}

#[test]
fn an_exported_unit_is_accepted_tight_and_says_what_was_asked() {
    let machine = Machine::new().with("KDEPLOY_MAX_ATTEMPTS", "2").with("KDEPLOY_API_KEY", "sk-secret");
    // A path and values that need every kind of quoting.
    let odd = machine.path("models/a b $HOME 100% \"q\" é;");
    std::fs::rename(machine.model(), &odd).unwrap();
    let flags = ["--name", "odd", "--set", "max_num_seqs=8", "--port", "8123", "--", "--seed", "1"];
    let said = export(&machine, &odd, &flags).expect(0);
    let unit = machine.write("units/odd.service", &said.stdout);
    assert_verified(&unit, false);
    let score = exposure(&unit);
    assert!(score <= 2.0, "exposure {score}");
    for expected in [
        "\nUser=kdeploy\n",
        "a b $$HOME 100%% \\\"q\\\" é;\" --name=odd",
        " --set=max_num_seqs=8 ",
        " --port=8123 ",
        " -- --seed 1\n",
        " reap odd\n",
        "\nEnvironment=KDEPLOY_MAX_ATTEMPTS=2\n",
        "\nRestartPreventExitStatus=64 65 66 77 78\n",
    ] {
        assert!(said.stdout.contains(expected), "{expected}: {}", said.stdout);
    }
    assert!(!said.stdout.contains("sk-secret"), "{said:?}");
    let document = export(&machine, &odd, &["--name", "odd", "--user", "--json"]).expect(0).json();
    assert_eq!((&document["schema"], &document["format"]), (&"kdeploy/export".into(), &"systemd".into()));
    let unit = machine.write("units/user/odd.service", document["text"].as_str().unwrap());
    assert_verified(&unit, true);
}

#[test]
fn a_file_that_somebody_edited_is_not_replaced_without_asking() {
    let machine = Machine::new();
    let (model, file) = (machine.model(), machine.path("m.service"));
    let to = ["--name", "m", "-o", file.to_str().unwrap()];
    let said = export(&machine, &model, &to).expect(0);
    assert!(said.stdout.contains("systemctl enable --now m.service"), "{said:?}");
    export(&machine, &model, &to).expect(0); // the same text
    std::fs::write(&file, "edited").unwrap();
    let said = export(&machine, &model, &to).expect(64);
    assert!(said.stderr.contains("exists and is different"), "{said:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "edited");
    export(&machine, &model, &[&to[..], &["--yes"]].concat()).expect(0);
    assert!(std::fs::read_to_string(&file).unwrap().contains("[Service]"));
}
