//! After a kdeploy that was killed: `reap`, by its record and nothing else.

use super::support::{Machine, Traces, free_port, send};
use nix::sys::signal::Signal;

fn up(machine: &Machine, name: &str, port: &str) -> i32 {
    let (engine, model) = (machine.fake_engine(), machine.model());
    let (engine, model) = (engine.to_str().unwrap(), model.to_str().unwrap());
    machine
        .run(&["up", model, "--name", name, "--no-smoke", "-d", "--engine", engine, "--port", port])
        .expect(0);
    i32::try_from(machine.record(name)["supervisor"]["pid"].as_i64().unwrap()).unwrap()
}

fn kill_supervisor(machine: &Machine, name: &str, pid: i32) {
    send(pid, Signal::SIGKILL);
    machine.wait_until("the supervisor is gone", || {
        machine.run(&["status", name, "--json"]).json()["deployments"][0]["state"] == "crashed"
    });
}

#[test]
fn what_a_killed_kdeploy_left_is_shown_then_ended_and_only_that() {
    let machine = Machine::new();
    let killed = up(&machine, "killed", &free_port());
    up(&machine, "alive", &free_port());
    let alive = Traces::of(&machine.record("alive"));
    let said = machine.run(&["reap"]).expect(0);
    assert_eq!(said.stdout, "no killed kdeploy left anything\n");
    kill_supervisor(&machine, "killed", killed);

    let traces = Traces::of(&machine.record("killed"));
    let said = machine.run(&["reap", "--dry-run"]).expect(0);
    assert!(said.stdout.contains("`killed` would be cleaned up: stopped 4 processes"), "{said:?}");
    assert!(said.stdout.contains("/dev/shm/psm_"), "{said:?}");
    assert_eq!(machine.run(&["status", "killed", "--json"]).json()["deployments"][0]["processes"], 4);

    let document = machine.run(&["reap", "killed", "--json"]).expect(0).json();
    assert_eq!(document["schema"], "kdeploy/reap");
    assert_eq!(document["launches"][0]["name"], "killed");
    assert_eq!(document["launches"][0]["report"]["stopped"].as_array().unwrap().len(), 4);
    traces.assert_gone();
    let said = machine.run(&["status", "killed"]).expect(1);
    assert!(said.stdout.contains("failed (its kdeploy was killed; what it left is cleaned up)"), "{said:?}");
    assert_eq!(machine.run(&["reap"]).expect(0).stdout, "no killed kdeploy left anything\n", "again");

    machine.run(&["status", "alive"]).expect(0);
    machine.run(&["down", "alive"]).expect(0);
    alive.assert_gone();
}

#[test]
fn the_next_up_cleans_up_after_killed_ones_of_other_names_too() {
    let machine = Machine::new();
    let killed = up(&machine, "killed", &free_port());
    kill_supervisor(&machine, "killed", killed);
    let traces = Traces::of(&machine.record("killed"));
    up(&machine, "next", &free_port());
    traces.assert_gone();
    machine.run(&["status", "next"]).expect(0);
    machine.run(&["down", "next"]).expect(0);
}

/// What no record knows is listed with age and owner, and touched only after an answer.
#[test]
fn what_no_record_knows_is_only_touched_after_asking() {
    let machine = Machine::new();
    let (killed, port) = (up(&machine, "lost", &free_port()), free_port());
    let traces = Traces::of(&machine.record("lost"));
    let main = i32::try_from(machine.record("lost")["main"]["pid"].as_i64().unwrap()).unwrap();
    send(killed, Signal::SIGKILL);
    send(main, Signal::SIGKILL);
    // Another state directory: nothing there knows of these processes.
    let stranger = Machine::new();
    let listed = || stranger.run(&["reap", "--unrecorded", "--dry-run"]).expect(0);
    stranger.wait_until("the orphans are seen", || listed().stdout.contains("VLLM::EngineCore"));
    let said = listed();
    assert!(said.stdout.contains("VLLM::Worker") && said.stdout.contains("OWNER"), "{said:?}");
    let said = stranger.run(&["status"]).expect(3);
    assert!(said.stdout.contains("orphaned engine processes"), "{said:?}");
    let said = stranger.run(&["reap", "--unrecorded"]).expect(64);
    assert!(said.stderr.contains("nobody can be asked here"), "{said:?}");
    assert!(said.stderr.contains("kdeploy reap --unrecorded --yes"), "{said:?}");

    // They are still there, and the launch's own record ends them.
    let report = machine.run(&["reap", "--json"]).expect(0).json()["launches"][0]["report"].clone();
    assert!(report["stopped"].as_array().unwrap().len() >= 2, "{report:#}");
    traces.assert_gone();
    up(&machine, "lost", &port);
    machine.run(&["down", "lost"]).expect(0);
}
