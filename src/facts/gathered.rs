//! Everything the planner looks at, together.

use super::{EngineFacts, GpuFacts, HostFacts, LearnedBook, ModelFacts};

/// All facts of one machine, model and engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The machine.
    pub host: HostFacts,
    /// Its GPUs.
    pub gpus: GpuFacts,
    /// What is to be served.
    pub model: ModelFacts,
    /// What will serve it.
    pub engine: EngineFacts,
    /// What earlier starts taught.
    pub learned: LearnedBook,
}
