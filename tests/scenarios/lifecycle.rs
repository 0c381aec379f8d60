//! Ends of every kind: asked for, urged, and violent.

use super::support::{Machine, Traces, free_port, send};
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader};

fn up_arguments(machine: &Machine) -> Vec<String> {
    let (engine, model) = (machine.fake_engine(), machine.model());
    let engine = engine.to_str().unwrap();
    ["up", model.to_str().unwrap(), "--name", "t", "--engine", engine, "--port", &free_port()]
        .map(str::to_owned)
        .to_vec()
}

fn as_strs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn ctrl_c_ends_a_serving_foreground_in_order() {
    let machine = Machine::new();
    let child = machine.spawn(&as_strs(&up_arguments(&machine)));
    let pid = i32::try_from(child.id()).unwrap();
    machine.wait_for_state("t", "ready");
    let traces = Traces::of(&machine.record("t"));
    send(pid, Signal::SIGINT);
    let said = machine.finish(child).expect(0);
    assert!(said.stdout.contains("Ready: http://127.0.0.1:"), "{said:?}");
    traces.assert_gone();
    machine.run(&["status", "t"]).expect(3);
}

#[test]
fn ctrl_c_during_the_start_ends_it_although_vllm_swallows_signals_then() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "hang-at-weights");
    let child = machine.spawn(&as_strs(&up_arguments(&machine)));
    let pid = i32::try_from(child.id()).unwrap();
    machine.wait_until("the engine's processes", || {
        let text = std::fs::read_to_string(machine.path("state/t/launch.json")).unwrap_or_default();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        record["detail"] == "weights" && record["shm"].as_array().is_some_and(|shm| shm.len() >= 3)
    });
    let traces = Traces::of(&machine.record("t"));
    send(pid, Signal::SIGINT);
    let said = machine.finish(child).expect(130);
    assert!(said.stderr.contains("error[interrupted]"), "{said:?}");
    traces.assert_gone();
}

#[test]
fn a_killed_kdeploy_is_seen_and_cleaned_up_after() {
    let machine = Machine::new();
    let arguments = up_arguments(&machine);
    machine.run(&[&as_strs(&arguments)[..], &["-d"]].concat()).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    let supervisor = record["supervisor"]["pid"].as_i64().unwrap();
    send(i32::try_from(supervisor).unwrap(), Signal::SIGKILL);
    machine.wait_until("status says crashed", || machine.run(&["status", "t"]).code == 1);
    let status = machine.run(&["status", "t", "--json"]).expect(1).json();
    assert_eq!(status["deployments"][0]["state"], "crashed", "{status:#}");
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
    machine.run(&["down", "t"]).expect(3);
}

#[test]
fn the_next_up_cleans_up_after_a_killed_one() {
    let machine = Machine::new();
    let arguments = up_arguments(&machine);
    let detached = [&as_strs(&arguments)[..], &["-d"]].concat();
    machine.run(&detached).expect(0);
    let record = machine.record("t");
    let traces = Traces::of(&record);
    send(i32::try_from(record["supervisor"]["pid"].as_i64().unwrap()).unwrap(), Signal::SIGKILL);
    // The orphaned engine still listens on the port: it is ended first, then the port is free.
    let said = machine.run(&detached).expect(0);
    assert!(said.stderr.contains("cleaned up after an earlier launch"), "{said:?}");
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
}

#[test]
fn requests_in_flight_are_finished_at_a_stop() {
    let machine = Machine::new().with("FAKE_VLLM_TOKEN_MS", "10");
    machine.run(&[&as_strs(&up_arguments(&machine))[..], &["-d", "--no-smoke"]].concat()).expect(0);
    let bench = machine.spawn(&["smoke", "t", "--json"]);
    machine.wait_until("the request runs", || {
        let status = machine.run(&["status", "t", "--json"]).json();
        let running = status["deployments"][0]["requests"].as_u64() == Some(1);
        running || machine.run(&["logs", "t"]).stdout.matches("POST /v1/chat").count() >= 2
    });
    machine.run(&["down", "t"]).expect(0);
    let smoke = machine.finish(bench).expect(0).json();
    assert_eq!(smoke["summary"]["passed"], 1, "{smoke:#}");
}

#[test]
fn waiting_may_end_before_the_start_does() {
    let machine = Machine::new().with("FAKE_VLLM_STEP_MS", "700");
    let arguments = up_arguments(&machine);
    let detached = [&as_strs(&arguments)[..], &["-d", "--json", "--wait-timeout", "500ms"]].concat();
    let said = machine.run(&detached).expect(4).json();
    assert_eq!(said["state"], "starting", "{said:#}");
    let status = machine.run(&["status", "t", "--json"]).expect(4).json();
    assert_eq!(status["deployments"][0]["state"], "starting", "{status:#}");
    machine.wait_for_state("t", "ready");
    machine.run(&["status", "t"]).expect(0);
    machine.run(&["down", "t"]).expect(0);
    // And a start that is still going on can be taken down.
    machine.run(&detached).expect(4);
    machine.wait_until("the engine's processes", || {
        let text = std::fs::read_to_string(machine.path("state/t/launch.json")).unwrap_or_default();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        record["shm"].as_array().is_some_and(|shm| shm.len() >= 3)
    });
    let traces = Traces::of(&machine.record("t"));
    machine.run(&["down", "t"]).expect(0);
    traces.assert_gone();
}

#[test]
fn an_engine_that_ignores_its_stop_is_killed() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "ignore-term");
    let profile = machine.write("quick.toml", "schema = 1\n[launch]\ndrain = \"1s\"\n");
    let arguments = up_arguments(&machine);
    machine.run(&[&as_strs(&arguments)[..], &["-d", "-p", profile.to_str().unwrap()]].concat()).expect(0);
    let traces = Traces::of(&machine.record("t"));
    machine.run(&["down", "t", "--timeout", "1s"]).expect(0);
    traces.assert_gone();
}

#[test]
fn one_name_runs_once_and_a_taken_port_is_refused_before_the_load() {
    let machine = Machine::new();
    let arguments = up_arguments(&machine);
    let detached = [&as_strs(&arguments)[..], &["-d"]].concat();
    machine.run(&detached).expect(0);
    let again = machine.run(&detached).expect(75);
    assert!(again.stderr.contains("error[already-running]"), "{again:?}");
    let mut other = arguments.clone();
    other[3] = "other".to_owned();
    let busy = machine.run(&[&as_strs(&other)[..], &["-d"]].concat()).expect(75);
    assert!(busy.stderr.contains("error[port-busy]") && busy.stderr.contains("held by"), "{busy:?}");
    assert!(!machine.path("state/other/attempts").exists(), "nothing was started");
    machine.run(&["down", "t"]).expect(0);
}

#[test]
fn several_deployments_must_be_named() {
    let machine = Machine::new();
    let mut arguments = up_arguments(&machine);
    for (name, port) in [("one", free_port()), ("two", free_port())] {
        arguments[3] = name.to_owned();
        arguments[7] = port;
        machine.run(&[&as_strs(&arguments)[..], &["-d", "--no-smoke"]].concat()).expect(0);
    }
    for command in ["smoke", "bench", "logs", "down"] {
        let said = machine.run(&[command]).expect(64);
        assert!(said.stderr.contains("one, two"), "{said:?}");
    }
    let status = machine.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["deployments"].as_array().unwrap().len(), 2, "{status:#}");
    let named = machine.command(&["smoke"]).env("KDEPLOY_NAME", "two").output().unwrap();
    assert!(named.status.success());
    let down = machine.run(&["down", "--all", "--json"]).expect(0).json();
    assert_eq!(down["names"].as_array().unwrap().len(), 2, "{down:#}");
    machine.run(&["status"]).expect(3);
}

#[test]
fn following_the_log_ends_with_the_deployment() {
    let machine = Machine::new();
    machine.run(&[&as_strs(&up_arguments(&machine))[..], &["-d"]].concat()).expect(0);
    let mut follower = machine.spawn(&["logs", "-f", "t", "-n", "1"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("HTTP/1.1"));
    machine.run(&["down", "t"]).expect(0);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("Finished server process")), "{rest:?}");
    machine.finish(follower).expect(0);
}

#[test]
fn the_log_is_picked_by_level_and_rank_and_shown_as_it_is() {
    let machine = Machine::new();
    machine.run(&[&as_strs(&up_arguments(&machine))[..], &["-d"]].concat()).expect(0);
    let lines = |arguments: &[&str]| machine.run(&[&["logs", "t"], arguments].concat()).expect(0).stdout;
    let all = lines(&[]);
    assert!(all.contains("shards: 100% Completed") && !all.contains('\r'), "{all}");
    assert!(lines(&["--raw"]).contains('\r'));
    let warnings = lines(&["--level", "warning"]);
    assert!(warnings.contains("WARNING") && !warnings.contains("INFO "), "{warnings}");
    let worker = lines(&["--rank", "0", "-n", "3"]);
    assert_eq!(worker.lines().count(), 3, "{worker}");
    assert!(lines(&["--rank", "7"]).is_empty());
    let document = machine.run(&["logs", "t", "--json", "-n", "2"]).expect(0).json();
    assert_eq!(document["lines"].as_array().unwrap().len(), 2, "{document:#}");
    assert!(machine.run(&["logs", "t", "--level", "loud"]).expect(64).stderr.contains("`loud` is no level"));
    machine.run(&["down", "t"]).expect(0);
}

#[test]
fn events_are_lines_of_json_in_order() {
    let machine = Machine::new();
    let arguments = up_arguments(&machine);
    let said = machine.run(&[&as_strs(&arguments)[..], &["-d", "--events"]].concat()).expect(0);
    let events: Vec<serde_json::Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"attempt_started"), Some(&"ready")), "{kinds:?}");
    let stages: Vec<&str> = events
        .iter()
        .filter(|event| event["event"] == "stage_started")
        .filter_map(|event| event["stage"].as_str())
        .collect();
    assert!(stages.windows(2).all(|pair| pair[0] != pair[1]) && stages.contains(&"weights"), "{stages:?}");
    machine.run(&["down", "t"]).expect(0);
}

/// Several API servers each say that they are up, the last of them after the first one answered.
#[test]
fn late_lines_of_a_start_do_not_undo_ready() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "late-lines");
    machine.run(&[&as_strs(&up_arguments(&machine))[..], &["-d", "--no-smoke"]].concat()).expect(0);
    machine.run(&["smoke", "t"]).expect(0);
    machine.wait_until("the second server's lines are captured", || {
        machine.run(&["logs", "t"]).stdout.matches("Application startup complete.").count() == 2
    });
    // Each line of the log is captured before it is read: ask until it must have been read.
    for _ in 0..5 {
        machine.run(&["smoke", "t"]).expect(0);
        machine.run(&["status", "t"]).expect(0);
    }
    assert_eq!(machine.record("t")["state"], "ready");
    let events = std::fs::read_to_string(machine.path("state/t/attempts/1/events.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "ready", "{events}");
    machine.run(&["down", "t"]).expect(0);
}

/// vLLM swallows SIGTERM while it loads and goes on saying how far it is.
#[test]
fn a_start_that_is_being_stopped_is_not_called_starting_again() {
    let machine = Machine::new().with("FAKE_VLLM_STEP_MS", "400");
    let child = machine.spawn(&as_strs(&up_arguments(&machine)));
    machine.wait_until("the weights are read", || machine.record_now("t")["detail"] == "weights");
    send(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    machine.finish(child).expect(130);
    let events = std::fs::read_to_string(machine.path("state/t/attempts/1/events.jsonl")).unwrap();
    let kinds: Vec<String> = events
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].to_string())
        .skip_while(|kind| kind != "\"stopping\"")
        .collect();
    assert_eq!(kinds, ["\"stopping\"", "\"stopped\""], "{events}");
}
