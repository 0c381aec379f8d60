//! Violent ends of single processes: whatever dies, nothing of the launch is left and the end is told
//! as what it was. The rows are those of vLLM's own kill matrix.

use super::support::{Machine, Traces, free_port, send, shm_names};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

/// `up` of the fake engine under the name `t`.
fn up(machine: &Machine, extra: &[&str]) -> Vec<String> {
    let (engine, model) = (machine.fake_engine(), machine.model());
    let (engine, model, port) = (engine.to_str().unwrap(), model.to_str().unwrap(), free_port());
    let base = ["up", model, "--name", "t", "--no-smoke", "--engine", engine, "--port", &port];
    base.iter().chain(extra).map(|word| (*word).to_owned()).collect()
}

fn spawn(machine: &Machine, extra: &[&str]) -> Child {
    machine.spawn(&up(machine, extra).iter().map(String::as_str).collect::<Vec<_>>())
}

fn run(machine: &Machine, extra: &[&str]) -> super::support::Said {
    machine.run(&up(machine, extra).iter().map(String::as_str).collect::<Vec<_>>())
}

/// The youngest process of the launch with this in its command line.
#[track_caller]
fn pid_of(record: &Value, title: &str) -> i32 {
    let members = record["members"].as_array().unwrap().iter();
    let pids = members.map(|member| i32::try_from(member["pid"].as_i64().unwrap()).unwrap());
    let is_titled = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&cmdline).replace('\0', " ").contains(title)
    };
    pids.filter(is_titled).max().unwrap_or_else(|| panic!("no `{title}`: {record:#}"))
}

fn supervisor(record: &Value) -> i32 {
    i32::try_from(record["supervisor"]["pid"].as_i64().unwrap()).unwrap()
}

/// Waits until a start that hangs has its whole tree and its shared memory on record.
fn wait_for_load(machine: &Machine) {
    machine.wait_until("the engine loads", || {
        let record = machine.record_now("t");
        record["detail"] == "weights" && record["shm"].as_array().is_some_and(|shm| shm.len() >= 3)
    });
}

#[test]
fn a_process_that_is_killed_while_serving_takes_the_launch_down_and_nothing_stays() {
    for title in ["vllm serve", "VLLM::EngineCore", "VLLM::Worker"] {
        let machine = Machine::new();
        let child = spawn(&machine, &["--max-attempts", "1"]);
        machine.wait_for_state("t", "ready");
        let record = machine.record("t");
        let traces = Traces::of(&record);
        // The main process shows its interpreter first; its pid is recorded.
        let main = i32::try_from(record["main"]["pid"].as_i64().unwrap()).unwrap();
        send(if title == "vllm serve" { main } else { pid_of(&record, title) }, Signal::SIGKILL);
        let said = machine.finish(child).expect(83);
        assert!(said.stderr.contains("error[engine-died]"), "{title}: {said:?}");
        traces.assert_gone();
        machine.assert_no_processes();
    }
}

#[test]
fn a_process_that_is_killed_during_the_load_ends_the_start_and_nothing_stays() {
    for title in ["vllm serve", "VLLM::EngineCore"] {
        let machine = Machine::new().with("FAKE_VLLM_STEP_MS", "1000");
        let child = spawn(&machine, &[]);
        wait_for_load(&machine);
        let record = machine.record("t");
        let traces = Traces::of(&record);
        let main = i32::try_from(record["main"]["pid"].as_i64().unwrap()).unwrap();
        send(if title == "vllm serve" { main } else { pid_of(&record, title) }, Signal::SIGKILL);
        let said = machine.finish(child);
        assert!([80, 81].contains(&said.code), "{title}: {said:?}");
        assert!(!said.stdout.contains("Ready"), "{title}: {said:?}");
        traces.assert_gone();
        machine.assert_no_processes();
    }
}

#[test]
fn a_killed_engine_is_started_again_on_the_same_port() {
    let machine = Machine::new();
    run(&machine, &["-d"]).expect(0);
    let first = machine.record("t");
    let traces = Traces::of(&first);
    send(pid_of(&first, "VLLM::EngineCore"), Signal::SIGKILL);
    machine.wait_until("the second attempt is ready", || {
        let record = machine.record_now("t");
        record["attempt"] == 2 && record["state"] == "ready"
    });
    let second = machine.record("t");
    assert_eq!(second["plan"]["port"], first["plan"]["port"]);
    assert_ne!(second["main"], first["main"]);
    machine.run(&["smoke", "t"]).expect(0);
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
}

#[test]
fn a_followed_log_goes_on_with_the_next_attempt() {
    let machine = Machine::new();
    run(&machine, &["-d"]).expect(0);
    let pinned = machine.spawn(&["logs", "-f", "t", "-n", "1", "--attempt", "1"]);
    let mut follower = machine.spawn(&["logs", "-f", "t", "-n", "1"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.next().unwrap(); // it follows
    send(pid_of(&machine.record("t"), "VLLM::EngineCore"), Signal::SIGKILL);
    machine.wait_until("the second attempt is ready", || {
        let record = machine.record_now("t");
        record["attempt"] == 2 && record["state"] == "ready"
    });
    let one = machine.finish(pinned).expect(0);
    assert!(!one.stdout.contains("Resolved architecture") && !one.stderr.contains("not running"), "{one:?}");
    machine.run(&["down", "t"]).expect(0);
    let rest: Vec<String> = lines.collect();
    let said = machine.finish(follower).expect(0);
    for line in ["Resolved architecture", "Application startup complete.", "Finished server process"] {
        assert!(rest.iter().any(|said| said.contains(line)), "no `{line}` of attempt 2: {rest:#?}\n{said:?}");
    }
    assert_eq!(said.stderr.matches("not running any more").count(), 1, "{said:?}");
}

#[test]
fn a_stop_between_two_attempts_begins_no_other() {
    let machine = Machine::new();
    run(&machine, &["-d"]).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    send(pid_of(&record, "VLLM::EngineCore"), Signal::SIGKILL);
    machine.wait_for_state("t", "restarting");
    machine.run(&["status", "t"]).expect(4);
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
    machine.assert_no_processes();
    assert!(!machine.path("state/t/attempts/2").exists());
    machine.run(&["down", "t"]).expect(3);
}

#[test]
fn a_kdeploy_that_is_killed_during_the_load_is_cleaned_up_after() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "hang-at-weights");
    run(&machine, &["-d", "--wait-timeout", "100ms"]).expect(4);
    wait_for_load(&machine);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    send(supervisor(&record), Signal::SIGKILL);
    machine.wait_until("status says crashed", || machine.run(&["status", "t"]).code == 1);
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
    machine.assert_no_processes();
}

/// With the resource tracker dead too, what is registered with it is removed from the record alone; an
/// object of the same form that was never the launch's stays.
#[test]
fn shared_memory_of_a_launch_that_was_killed_whole_is_removed_and_no_other() {
    let foreign = format!("psm_{:08x}", std::process::id());
    let path = format!("/dev/shm/{foreign}");
    std::fs::write(&path, "of another program").unwrap();
    let machine = Machine::new();
    run(&machine, &["-d"]).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    // The tracker first, or it would clean up after the others.
    let mut victims = vec![supervisor(&record), pid_of(&record, "resource_tracker")];
    let members = record["members"].as_array().unwrap();
    victims.extend(members.iter().map(|member| i32::try_from(member["pid"].as_i64().unwrap()).unwrap()));
    for pid in victims {
        send(pid, Signal::SIGKILL);
    }
    machine.wait_until("all are dead", || machine.run(&["status", "t"]).code == 1);
    let left: Vec<_> =
        shm_names().into_iter().filter(|name| record["shm"].to_string().contains(name)).collect();
    assert!(left.iter().filter(|name| name.starts_with("psm_")).count() >= 2, "they leak: {left:?}");
    let down = machine.run(&["down", "t", "--json"]).expect(0).json();
    traces.assert_gone();
    assert!(shm_names().contains(&foreign), "another program's object was removed: {down:#}");
    std::fs::remove_file(path).unwrap();
}

/// The supervisor that is left behind does not listen to signals from its first instant on.
#[test]
fn ctrl_c_right_after_a_detached_start_is_no_bug() {
    let machine = Machine::new();
    let child = spawn(&machine, &["-d"]);
    let plan = machine.path("state/t/plan.json");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !plan.exists() {
        std::hint::spin_loop(); // a pause would miss the instant
        assert!(Instant::now() < deadline, "no plan was kept");
    }
    send(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let said = machine.finish(child).expect(130);
    assert!(said.stderr.contains("error[interrupted]"), "{said:?}");
    machine.assert_no_processes();
    machine.run(&["down", "t"]).expect(3);
    run(&machine, &["-d"]).expect(0);
    machine.run(&["down", "t"]).expect(0);
}

/// A drain that outlasts every patience of these tests: only an urged end is in time.
const LONG_DRAIN: &str = "schema = 1\n[launch]\ndrain = \"10m\"\n";

#[test]
fn a_second_ctrl_c_skips_the_wait_and_not_the_cleaning() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "ignore-term");
    let profile = machine.write("long.toml", LONG_DRAIN);
    let child = spawn(&machine, &["-p", profile.to_str().unwrap()]);
    let pid = i32::try_from(child.id()).unwrap();
    machine.wait_for_state("t", "ready");
    let traces = Traces::of(&machine.record("t"));
    send(pid, Signal::SIGINT);
    machine.wait_for_state("t", "stopping");
    send(pid, Signal::SIGINT);
    machine.finish(child).expect(0);
    traces.assert_gone();
    machine.assert_no_processes();
}

#[test]
fn a_forced_down_does_not_wait_for_requests() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "ignore-term");
    let profile = machine.write("long.toml", LONG_DRAIN);
    run(&machine, &["-d", "-p", profile.to_str().unwrap()]).expect(0);
    let traces = Traces::of(&machine.record("t"));
    machine.run(&["down", "t", "--force"]).expect(0);
    traces.assert_gone();
    machine.assert_no_processes();
}

#[test]
fn a_stopped_engine_does_not_hold_up_the_end() {
    let machine = Machine::new();
    run(&machine, &["-d"]).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    send(pid_of(&record, "VLLM::EngineCore"), Signal::SIGSTOP);
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
    machine.assert_no_processes();
}

#[test]
fn a_lost_terminal_ends_a_foreground_and_no_supervisor() {
    let machine = Machine::new();
    let child = spawn(&machine, &[]);
    machine.wait_for_state("t", "ready");
    let traces = Traces::of(&machine.record("t"));
    send(i32::try_from(child.id()).unwrap(), Signal::SIGHUP);
    machine.finish(child).expect(0);
    traces.assert_gone();

    run(&machine, &["-d"]).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    send(supervisor(&record), Signal::SIGHUP);
    machine.run(&["smoke", "t"]).expect(0);
    machine.run(&["status", "t"]).expect(0);
    assert_eq!(machine.record("t")["main"], record["main"]);
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
}

#[test]
fn the_key_of_kdeploy_itself_is_not_handed_to_the_engine() {
    let secret = "k3y-of-kdeploy-4711";
    let machine = Machine::new().with("KDEPLOY_API_KEY", secret);
    run(&machine, &["-d"]).expect(0);
    for member in machine.record("t")["members"].as_array().unwrap() {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{}/{file}", member["pid"])).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&bytes).contains(secret), "in {file} of {member}");
        }
    }
    machine.run(&["down", "t"]).expect(0);
    let found = std::process::Command::new("grep").args(["-rl", secret]).arg(machine.path("state")).output();
    assert!(found.unwrap().stdout.is_empty());
}
