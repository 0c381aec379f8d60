//! `/proc`, NVML, model files, installed engines → facts.
//!
//! Effects, thin: bytes are read here and parsed in `facts`; what something means is decided in `plan`.

mod engine;
mod files;
mod gpu;
mod host;
mod model;
mod model_places;
mod port;
mod weights;

pub use engine::{ENGINE_MARKER, EngineFindError, EnginePlaces, find_engine};
pub use gpu::{read_gpu_use, read_gpus};
pub use host::read_host;
pub use model::{ModelError, ModelPlaces, find_model, read_model};
pub use model_places::list_checkpoint;
pub use port::{PortState, check_port, find_free_port};
pub use weights::WeightFileError;
