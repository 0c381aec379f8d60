//! Faults of the engine: each ends with its own exit code, words that help, and nothing left.

use super::support::{Machine, Said, free_port, leftovers_in_shm};

/// Starts the fake engine with a fault; extra arguments follow.
fn up_with(fault: &str, extra: &[&str]) -> (Machine, Said) {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", fault);
    let (engine, model) = (machine.fake_engine(), machine.model());
    let port = free_port();
    let base =
        ["up", model.to_str().unwrap(), "--name", "t", "--engine", engine.to_str().unwrap(), "--port", &port];
    let said = machine.run(&[&base, extra].concat());
    (machine, said)
}

/// Nothing of a failed launch is left, by its own record.
#[track_caller]
fn assert_nothing_left(machine: &Machine) {
    let record = machine.record("t");
    assert_eq!(record["state"], "failed", "{record:#}");
    assert_eq!(leftovers_in_shm(&record), Vec::<String>::new());
    assert!(!std::path::Path::new(record["runtime"]["path"].as_str().unwrap()).exists());
    machine.run(&["status", "t"]).expect(1);
    machine.run(&["down", "t"]).expect(3);
}

#[test]
fn a_start_that_fails_shows_its_first_error_and_not_a_cascade() {
    for detach in [&["-d"][..], &[]] {
        let (machine, said) = up_with("exit-during-load", detach);
        let said = said.expect(81);
        assert!(said.stderr.contains("error[unknown-failure]"), "{said:?}");
        let words = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("NVFP4 quantization requires the following fields"),
            "the root line: {said:?}"
        );
        assert!(!said.stderr.contains("Engine core initialization failed"), "a cascade: {said:?}");
        assert!(said.stderr.contains("exit code 1") && said.stderr.contains("kdeploy logs t"), "{said:?}");
        assert_nothing_left(&machine);
    }
}

#[test]
fn the_failure_is_the_document_with_json() {
    let (_machine, said) = up_with("exit-during-load", &["-d", "--json"]);
    let document = said.expect(81).json();
    assert_eq!((&document["schema"], &document["exit"]), (&"kdeploy/error".into(), &81.into()));
    assert_eq!(document["error"]["code"], "unknown-failure");
    let evidence = document["error"]["evidence"].to_string();
    assert!(evidence.contains("engine.log:"), "{evidence}");
}

#[test]
fn a_start_that_stands_still_is_ended() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "hang-at-weights");
    let (engine, model) = (machine.fake_engine(), machine.model());
    let profile = machine.write("slow.toml", "schema = 1\n[launch]\nstart_stall = \"5s\"\n");
    let said = machine
        .run(&[
            "up",
            model.to_str().unwrap(),
            "--name",
            "t",
            "--engine",
            engine.to_str().unwrap(),
            "--profile",
            profile.to_str().unwrap(),
            "--port",
            &free_port(),
        ])
        .expect(82);
    assert!(said.stderr.contains("error[start-stalled]") && said.stderr.contains("`weights`"), "{said:?}");
    assert_nothing_left(&machine);
}

#[test]
fn a_healthy_engine_that_cannot_answer_is_not_ready() {
    let (machine, said) = up_with("die-on-first-request", &["-d"]);
    let said = said.expect(80);
    assert!(said.stderr.contains("error[warmup-failed]"), "{said:?}");
    assert!(
        said.stderr.contains("expected scalar type BFloat16 but found Float8_e4m3fn"),
        "the root line: {said:?}"
    );
    assert!(!said.stdout.contains("Ready"), "{said:?}");
    assert_nothing_left(&machine);
}

#[test]
fn an_engine_that_dies_while_serving_is_started_again_within_its_attempts() {
    let (machine, said) = up_with("die-after-ready", &["--max-attempts", "2", "--no-smoke"]);
    let said = said.expect(83);
    assert!(said.stderr.contains("error[engine-died]"), "{said:?}");
    assert!(said.stderr.contains("attempt 2 of 2 follows"), "{said:?}");
    assert!(said.stderr.contains("exit code 0"), "vLLM ends with 0 then, and that is no success: {said:?}");
    assert!(machine.path("state/t/attempts/2/engine.log").exists());
    assert!(!machine.path("state/t/attempts/3").exists());
    assert_nothing_left(&machine);
}

/// `/health` of a hung engine stays 200: only a request that is not answered tells.
#[test]
fn an_engine_that_hangs_is_found_by_a_request_when_nothing_else_is_asked() {
    let machine = Machine::new().with("FAKE_VLLM_FAULT", "hang-after-first");
    let profile = machine
        .write("probe.toml", "schema = 1\n[launch]\nidle_probe = \"1s\"\nidle_probe_timeout = \"1s\"\n");
    let (engine, model) = (machine.fake_engine(), machine.model());
    let said = machine
        .run(&[
            "up",
            model.to_str().unwrap(),
            "--name",
            "t",
            "--no-smoke",
            "--max-attempts",
            "1",
            "--engine",
            engine.to_str().unwrap(),
            "--profile",
            profile.to_str().unwrap(),
            "--port",
            &free_port(),
        ])
        .expect(83);
    assert!(said.stdout.contains("Ready:"), "{said:?}");
    assert!(said.stderr.contains("error[engine-died]: the engine served and then hung"), "{said:?}");
    assert_nothing_left(&machine);
}

#[test]
fn wrong_answers_are_told_apart() {
    for (fault, problem) in
        [("wrong-answer", "Paris"), ("empty-answer", "empty"), ("truncated", "max_tokens")]
    {
        let (machine, said) = up_with(fault, &["-d"]);
        if fault == "empty-answer" {
            // Not one token: it never becomes ready.
            assert_eq!(said.code, 80, "{said:?}");
            continue;
        }
        let said = said.expect(1);
        assert!(said.stderr.contains("smoke `capital-of-france`"), "{said:?}");
        let status = machine.run(&["status"]).expect(0);
        assert!(status.stdout.contains("smoke failed"), "{status:?}");
        let smoke = machine.run(&["smoke", "t"]).expect(1);
        assert!(smoke.stdout.contains("FAIL") && smoke.stdout.contains(problem), "{smoke:?}");
        machine.run(&["down", "t"]).expect(0);
    }
}

#[test]
fn reasoning_is_kept_apart_from_the_answer() {
    let (machine, said) = up_with("reasoning", &["-d"]);
    said.expect(0);
    let smoke = machine.run(&["smoke", "t", "--json"]).expect(0).json();
    let case = &smoke["cases"][0];
    assert_eq!(case["got"], "The capital of France is Paris.");
    assert!(case["reasoning_chars"].as_u64().is_some_and(|n| n > 0), "{smoke:#}");
    let bench = machine.run(&["bench", "t", "--requests", "1", "--json"]).expect(0).json();
    assert!(bench["runs"][1]["metrics"]["phases"]["thinking"]["ms"].as_f64().is_some(), "{bench:#}");
    machine.run(&["down", "t"]).expect(0);
}

#[test]
fn a_context_that_kdeploy_chose_is_lowered_to_what_the_engine_names() {
    for detach in [&["-d"][..], &["-d", "--events"]] {
        let machine = Machine::new().with("FAKE_VLLM_FITS", "5000");
        let (engine, model) = (machine.fake_engine(), machine.model());
        let port = free_port();
        let base = [
            "up",
            model.to_str().unwrap(),
            "--name",
            "t",
            "--engine",
            engine.to_str().unwrap(),
            "--port",
            &port,
        ];
        let said = machine.run(&[&base, detach].concat()).expect(0);
        let words = said.stdout.clone() + &said.stderr;
        assert!(words.contains("the engine named 5,000 tokens"), "{said:?}");
        let record = machine.record("t");
        assert_eq!(record["plan"]["context"], 4096, "rounded down: {record:#}");
        assert_eq!(record["attempt"], 2);
        assert!(
            machine.path("state/t/attempts/1/outcome.json").exists()
                || machine.path("state/t/attempts/1/events.jsonl").exists()
        );
        machine.run(&["down", "t"]).expect(0);
    }
}

#[test]
fn a_context_that_was_asked_for_is_never_lowered() {
    for (extra, asked) in [(&["--context", "8192"][..], "8,192"), (&["-p", "min.toml"], "8,192")] {
        let machine = Machine::new().with("FAKE_VLLM_FITS", "5000");
        machine.write("min.toml", "schema = 1\n[context]\nmin = 6000\n");
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
        let said = machine.run(&[&base, extra].concat()).expect(78);
        assert!(said.stderr.contains("error[kv-cache-too-small]"), "{said:?}");
        assert!(
            said.stderr.contains(&format!("the {asked}-token context does not fit after all")),
            "{said:?}"
        );
        assert!(said.stderr.contains("--context 5000"), "{said:?}");
        assert!(!machine.path("state/t/attempts/2").exists(), "no second load");
        assert_nothing_left(&machine);
    }
}

#[test]
fn an_engine_that_does_other_than_planned_is_not_ready() {
    let (machine, said) = up_with("other-context", &["-d"]);
    let said = said.expect(80);
    assert!(said.stderr.contains("error[plan-contradicted]"), "{said:?}");
    let words = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a context of 8,192 tokens was planned, the engine uses 1,234"), "{said:?}");
    assert_nothing_left(&machine);
}

#[test]
fn a_start_teaches_the_next_plan() {
    let (machine, said) = up_with("", &["-d", "--json"]);
    let ready_ms = said.expect(0).json()["ready"]["ready_ms"].as_u64().unwrap();
    let figures = machine.record("t")["figures"].clone();
    assert_eq!((&figures["tokens"], &figures["context"]), (&46_592.into(), &8192.into()), "{figures:#}");
    machine.run(&["down", "t"]).expect(0);
    let (engine, model) = (machine.path("venv"), machine.path("models/tiny"));
    let plan = ["plan", model.to_str().unwrap(), "--engine", engine.to_str().unwrap(), "--json"];
    let learned = machine.run(&plan).expect(0).json();
    assert_eq!(learned["eta_ms"], ready_ms, "{learned:#}");
    let other = machine.run(&[&plan[..], &["--set", "max_num_seqs=3"]].concat()).expect(0).json();
    assert!(other["eta_ms"].is_null(), "other options were not measured: {other:#}");
}
