//! What is known of the model: where its files are and what its `config.json` says.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::architecture::ArchitectureSizes;
use super::attention::AttentionLayout;
use super::quant_marks::QuantMarks;
use super::weights::WeightInventory;
use crate::units::{Bytes, Tokens};

/// The model. Absent means unknown: a model that is only an id so far has no `config`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelFacts {
    /// As the user named it.
    pub id: String,
    /// Complete local directory; `None` when the engine itself has to fetch the id.
    pub path: Option<Utf8PathBuf>,
    /// Commit of the model cache's snapshot.
    pub revision: Option<String>,
    /// What `config.json` says.
    pub config: Option<ModelConfig>,
    /// Sum of the weight files.
    pub weights: Option<Bytes>,
    /// What their tensors weigh, by how they are spread.
    pub inventory: Option<WeightInventory>,
    /// Does the tokenizer come with a chat template?
    pub has_chat_template: Option<bool>,
    /// Sampling defaults of its `generation_config.json`.
    pub sampling_defaults: BTreeMap<String, serde_json::Value>,
    /// What else a reader should know: a partly cached model, …
    pub notes: Vec<String>,
    /// The small files that decide how it is loaded, by name: what patches work on.
    pub texts: BTreeMap<String, Vec<u8>>,
    /// Everything in its directory.
    pub entries: Vec<CheckpointEntry>,
    /// What the names of its tensors prove about quantization.
    pub marks: QuantMarks,
}

/// Something in a checkpoint's directory, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Its name.
    pub name: String,
    /// The file or directory itself, all links resolved.
    pub target: Utf8PathBuf,
    /// Is it a directory?
    pub is_dir: bool,
    /// Is it a link here?
    pub is_link: bool,
    /// Bytes of a file.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub modified_ns: i128,
}

/// What a `config.json` says, as far as a plan needs it. Text models in a multimodal wrapper are
/// read from `text_config`, as vLLM does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelConfig {
    /// First of `architectures`.
    pub architecture: Option<String>,
    /// `model_type` of the text model.
    pub model_type: Option<String>,
    /// `dtype` (or `torch_dtype`), without `torch.`.
    pub dtype: Option<String>,
    /// Transformer layers.
    pub layers: Option<u64>,
    /// Attention heads.
    pub heads: Option<u64>,
    /// KV heads; equal to `heads` where the config does not say.
    pub kv_heads: Option<u64>,
    /// Size of one head: as declared, otherwise hidden size / heads.
    pub head_dim: Option<u64>,
    /// Sizes of multi-head latent attention.
    pub mla: Option<MlaRanks>,
    /// Longest sequence the engine accepts: smallest of the known keys times the RoPE factor
    /// (vLLM 0.32 `vllm/config/model.py`, `_get_and_verify_max_len`).
    pub max_len: Option<Tokens>,
    /// Where `--max-model-len auto` starts, when that is less (longrope).
    pub auto_len: Option<Tokens>,
    /// Quantization of the checkpoint.
    pub quantization: Option<Quantization>,
    /// Input and output embedding are one tensor.
    pub tied_embeddings: Option<bool>,
    /// Size of the vocabulary.
    pub vocab: Option<u64>,
    /// Does loading need Python code of the checkpoint (`auto_map`)?
    pub needs_remote_code: bool,
    /// Which layers keep what between tokens; empty when that is not known.
    pub attention: AttentionLayout,
    /// Does it read images or sound too?
    pub has_encoder: bool,
    /// Sizes that weights can be computed from.
    pub sizes: ArchitectureSizes,
    /// Why it is not known: keys whose meaning for the cache is unknown here.
    pub irregular_attention: Vec<String>,
}

/// Sizes of multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaRanks {
    /// `kv_lora_rank`.
    pub kv_lora_rank: u64,
    /// `qk_rope_head_dim`.
    pub qk_rope_head_dim: u64,
}

/// Quantization of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantization {
    /// `quant_method`, or the producer where only that is given.
    pub method: String,
    /// What is declared for the KV cache.
    pub kv_cache: Option<DeclaredKvCache>,
    /// Where that stands: `config.json quantization_config.kv_cache_scheme`.
    pub kv_cache_source: Option<String>,
    /// Format of the quantised weights, where it is known here.
    pub weights: Option<WeightFormat>,
    /// Patterns of modules that stay unquantised.
    pub excluded: Vec<String>,
}

/// Format of quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// 4-bit float, a scale for 16.
    Nvfp4,
    /// 4-bit float, a scale for 32.
    Mxfp4,
    /// 8-bit float, with a scale for a block of so many.
    Fp8 {
        /// Elements of a block; `None` means one scale for a tensor or channel.
        block: Option<u64>,
    },
    /// Integers with a scale for a group.
    Integer {
        /// Bits of one.
        bits: u64,
        /// Size of a group.
        group: Option<u64>,
    },
}

/// A data type that a checkpoint declares for the KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredKvCache {
    /// 8-bit float.
    Fp8,
    /// 4-bit float with block scales.
    Nvfp4,
    /// Anything else, as written.
    Other(String),
}
