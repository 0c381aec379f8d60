//! Facts and settings to a plan: argv, environment, context window, memory, reasons.
//!
//! Pure. What the plan says is what happens; `kdeploy plan` prints it, `kdeploy up` executes it.

mod model;

pub use model::{
    Endpoint, EngineDevice, MemoryRow, Origin, OriginKind, PLAN_FORMAT, Plan, PlanWarning, PlannedEngine,
    PlannedModel, PlannedSetting, Timeouts, WarmupPlan,
};
