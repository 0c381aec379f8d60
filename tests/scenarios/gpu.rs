//! GPUs, as NVIDIA's library tells of them: here a stand-in that is loaded in its place.

use super::support::{Machine, Said, Traces, free_port};

fn up(machine: &Machine) -> Said {
    let (engine, model, port) = (machine.fake_cuda_engine(), machine.model(), free_port());
    let (engine, model) = (engine.to_str().unwrap(), model.to_str().unwrap());
    let flags = ["--name", "g", "--no-smoke", "-d", "--context", "4096", "--engine", engine, "--port", &port];
    machine.run(&[&["up", model], &flags[..]].concat())
}

#[test]
fn a_stop_waits_until_the_gpu_has_its_memory_back() {
    let machine = Machine::new().with_gpu();
    up(&machine).expect(0);
    let traces = Traces::of(&machine.record("g"));
    machine.run(&["down", "g"]).expect(0);
    traces.assert_gone();
}

#[test]
fn memory_that_does_not_come_back_is_named() {
    let machine = Machine::new().with_gpu().with("FAKE_VLLM_FAULT", "gpu-memory-stuck");
    up(&machine).expect(0);
    let said = machine.run(&["down", "g"]).expect(84);
    let words = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("error[stop-incomplete]"), "{said:?}");
    assert!(words.contains("4.88 GiB of memory on GPU 0 (no process is listed for it)"), "{said:?}");
    // Once it is back, the record goes.
    machine.write("gpus", "gpu 97887 600 12.0 NVIDIA RTX PRO 6000 Blackwell Server Edition\n");
    machine.run(&["reap"]).expect(0);
    machine.run(&["down", "g"]).expect(3);
    machine.run(&["status", "g"]).expect(3);
}
