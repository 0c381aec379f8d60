//! Facts and settings to a plan: argv, environment, context window, memory, reasons.
//!
//! Pure. What the plan says is what happens; `kdeploy plan` prints it, `kdeploy up` executes it.

mod command;
mod cpu_memory;
mod defaults;
mod error;
mod evidence;
mod fit;
mod gpu_fit;
mod gpu_memory;
pub mod install;
mod kv;
mod kv_type;
mod lint;
mod make;
mod model;
mod named;
mod overheads;
mod remedy;
mod revise;
mod rules;
mod weights;

pub use defaults::{default_smoke, default_warmup};
pub use error::{KvRefusal, PlanError};
pub use evidence::{EvidenceScan, EvidenceVerdict};
pub use kv::KvLayout;
pub use kv_type::PlannedKvType;
pub use make::{PatchOutlook, PlannedPatches, make_plan, patch_outlook, plan_patches};
pub use model::{
    Endpoint, EngineDevice, MemoryRow, PLAN_FORMAT, Plan, PlanChange, PlanWarning, PlannedEngine,
    PlannedModel, PlannedSetting, Timeouts, WarmupPlan,
};
pub(crate) use remedy::overlay_digest;
pub use remedy::{KV_DTYPE_UNSUPPORTED, PatchKind, PlannedOverlay, PlannedPatch};
pub use revise::{beside, contradictions, differences, expected_evidence, revise_context};

#[cfg(test)]
mod recorded;
