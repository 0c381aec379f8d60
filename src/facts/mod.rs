//! What is known: values with their sources, no effects.

mod process;

pub use process::{ProcId, RuntimeDir, ShmObject, StopReport};
