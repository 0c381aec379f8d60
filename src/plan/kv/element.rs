//! Bytes of one cached element, by `--kv-cache-dtype` and what the checkpoint declares
//! (vllm-memory.md 3.1).

use crate::facts::{DeclaredKvCache, EngineVersion, ModelConfig, followed_kv_cache};

/// Bytes of one head's key (or value) of `dim` elements, or a fixed size of a whole MLA token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// So many bytes an element.
    Plain(u64),
    /// So many bytes per 16 elements plus an inline scale per head.
    Packed {
        /// Bytes of 16 elements.
        per_16: u64,
        /// Bytes of the scale of each head's key and value.
        scale: u64,
    },
    /// An MLA token of a fixed size.
    MlaToken(u64),
}

impl Element {
    /// Bytes of one vector of `dim` elements.
    pub fn vector(self, dim: u64) -> u64 {
        match self {
            Self::Plain(bytes) => dim.saturating_mul(bytes),
            Self::Packed { per_16, scale } => (dim.saturating_mul(per_16) / 16).saturating_add(scale),
            Self::MlaToken(bytes) => bytes,
        }
    }
}

/// Bytes of an element of the model's own data type.
pub(super) fn model_element(config: &ModelConfig) -> u64 {
    match config.dtype.as_deref() {
        Some("float32" | "float") => 4,
        _ => 2,
    }
}

/// The element of the KV cache; an error says why its size is not known.
pub(super) fn kv_element(
    config: &ModelConfig,
    dtype: Option<&str>,
    version: &EngineVersion,
) -> Result<Element, String> {
    let dtype = match dtype.filter(|dtype| *dtype != "auto") {
        Some(given) => given.to_ascii_lowercase(),
        None => match declared(config, version)? {
            Some(declared) => declared.to_owned(),
            None => return Ok(Element::Plain(model_element(config))),
        },
    };
    let sparse_mla = config.mla.is_some() && config.attention.indexer.is_some();
    Ok(match dtype.as_str() {
        "float32" => Element::Plain(4),
        "float16" | "bfloat16" | "half" => Element::Plain(2),
        // The sparse backends turn every quantised type into their own.
        "fp8_ds_mla" => Element::MlaToken(656),
        "nvfp4_ds_mla" => Element::MlaToken(352),
        fp8 if sparse_mla && fp8.starts_with("fp8") => Element::MlaToken(656),
        "fp8" | "fp8_e4m3" | "fp8_e5m2" | "fp8_inc" => Element::Plain(1),
        "int8_per_token_head" | "fp8_per_token_head" => Element::Packed { per_16: 16, scale: 4 },
        "int4_per_token_head" => Element::Packed { per_16: 8, scale: 4 },
        "nvfp4" | "nvfp4_4over6" => Element::Packed { per_16: 9, scale: 0 },
        other => return Err(format!("the size of KV cache type `{other}` is not known")),
    })
}

/// What the checkpoint declares, as far as this version follows it.
fn declared(config: &ModelConfig, version: &EngineVersion) -> Result<Option<&'static str>, String> {
    match followed_kv_cache(config, version) {
        None => Ok(None),
        Some(DeclaredKvCache::Fp8) => Ok(Some("fp8")),
        Some(DeclaredKvCache::Nvfp4) => Ok(Some("nvfp4")),
        Some(DeclaredKvCache::Other(name)) => {
            Err(format!("the declared KV cache type `{name}` is not known"))
        }
    }
}
