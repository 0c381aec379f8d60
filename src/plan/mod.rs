//! Facts and settings to a plan: argv, environment, context window, memory, reasons.
//!
//! Pure. What the plan says is what happens; `kdeploy plan` prints it, `kdeploy up` executes it.

mod command;
mod cpu_memory;
mod defaults;
mod error;
mod fit;
mod gpu_fit;
mod gpu_memory;
pub mod install;
mod kv;
mod lint;
mod make;
mod model;
mod overheads;
mod revise;
mod weights;

pub use defaults::{default_smoke, default_warmup};
pub use error::PlanError;
pub use kv::KvLayout;
pub use make::make_plan;
pub use model::{
    Endpoint, EngineDevice, MemoryRow, PLAN_FORMAT, Plan, PlanChange, PlanWarning, PlannedEngine,
    PlannedModel, PlannedSetting, Timeouts, WarmupPlan,
};
pub use revise::{beside, contradictions, differences, expected_evidence, revise_context};

#[cfg(test)]
mod recorded;
