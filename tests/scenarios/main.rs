//! The built binary against the fake engine: the whole way, and every fault that can be injected.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests end with it")]

#[expect(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/mod.rs"]
mod support;

mod faults;
mod gpu;
mod install;
mod kills;
mod lifecycle;
mod patches;
mod reap;
mod surface;
mod systemd;

use support::{Machine, way};

#[test]
fn the_whole_way() {
    let machine = Machine::new();
    let (engine, model) = (machine.fake_engine(), machine.model());
    let port = support::free_port();
    let up = [model.to_str().unwrap(), "--engine", engine.to_str().unwrap(), "--port", &port];
    way::walk(&machine, &up, "tiny");
}
