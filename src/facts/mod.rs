//! What is known: values with their sources, no effects.

mod architecture;
mod assemble;
mod attention;
mod checkpoint;
mod engine;
mod engine_figures;
mod engine_schema;
mod gathered;
mod gpu;
mod hardware;
mod host;
mod kv_support;
mod leftover;
mod model;
mod model_config;
mod named;
mod process;
mod quant_marks;
mod quantization;
mod safetensors;
mod version;
mod weights;

pub use architecture::{ArchitectureSizes, parse_architecture};
pub use assemble::{BrokenText, assemble_config};
pub use attention::{
    AttentionLayout, StateLayers, StateShape, WindowedLayers, parse_attention, parse_encoder_decoder,
};
pub use checkpoint::{
    MAX_INDEX_BYTES, TokenizerFacts, WeightIndex, parse_generation_config, parse_tokenizer_config,
    parse_weight_index,
};
pub use engine::{
    Distribution, EngineFacts, Shebang, choose_distribution, parse_dist_info_name, parse_shebang,
};
pub use engine_figures::{EngineFigures, Learned, LearnedBook};
pub use engine_schema::EngineSchema;
pub use gathered::Facts;
pub use gpu::{ComputeCapability, Gpu, GpuFacts, GpuProcess, GpuUse, ParseCapabilityError, UnreadableGpu};
pub use hardware::{BUILTIN_HARDWARE, HardwareFileError, parse_hardware};
pub use host::{HostFacts, MemoryReading, apply_memory_limit, parse_cpu_flags, parse_meminfo};
pub use kv_support::{AttentionKind, KvDevice, KvQuestion, KvSupport, followed_kv_cache, is_fp8, kv_support};
pub use leftover::{OrphanObject, OrphanProcess, Unrecorded};
pub use model::{
    CheckpointEntry, DeclaredKvCache, MlaRanks, ModelConfig, ModelFacts, Quantization, WeightFormat,
};
pub use model_config::{MAX_CONFIG_BYTES, ModelConfigError, parse_json_object, parse_model_config};
pub use named::{FACT_NAMES, FactKind, FactSet, FactValue, fact_kind};
pub use process::{CgroupId, ProcId, RuntimeDir, ShmObject, StopReport};
pub use quant_marks::{QuantMarks, covers};
pub use quantization::parse_quantization;
pub use safetensors::{
    HEADER_PREFIX, MAX_HEADER_BYTES, SafetensorsError, TensorInfo, parse_safetensors_header,
};
pub use version::{EngineVersion, ParseVersionError};
pub use weights::{LayerWeights, Placement, WeightInventory, classify};
