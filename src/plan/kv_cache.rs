//! How many tokens a KV cache of a given size holds.

use crate::facts::{DeclaredKvCache, ModelConfig};
use crate::units::{Bytes, Tokens};

/// Tokens in one block of the CPU backend (vLLM 0.32): 128, and 16 for MLA.
const CPU_BLOCK: u64 = 128;
const CPU_BLOCK_MLA: u64 = 16;

/// Shape of the KV cache of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvShape {
    /// Bytes of one token in all layers.
    pub per_token: Bytes,
    /// Tokens in one block.
    pub block: u64,
    /// Layers, which share the memory evenly.
    pub layers: u64,
    /// The formula with its numbers.
    pub formula: String,
}

/// Parallel sizes and options that the shape depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvOptions<'a> {
    pub tensor_parallel: u64,
    pub pipeline_parallel: u64,
    /// `--kv-cache-dtype`; `None` or `auto` means the checkpoint's.
    pub dtype: Option<&'a str>,
    pub block: Option<u64>,
}

/// Works out the shape; an error says why it is not known. Only plain attention is known here:
/// every layer caches every token in the same form (vllm-memory.md 3.2: MHA/GQA/MQA and MLA).
pub(super) fn kv_shape(config: &ModelConfig, options: KvOptions<'_>) -> Result<KvShape, String> {
    if !config.irregular_attention.is_empty() {
        return Err(format!("not every layer caches alike ({})", config.irregular_attention.join(", ")));
    }
    let element = element_bytes(config, options.dtype)?;
    let layers = config.layers.ok_or("the number of layers is not given")?;
    let layers = layers.div_ceil(options.pipeline_parallel.max(1));
    let (per_layer, formula, block) = match config.mla {
        Some(mla) => (
            mla.kv_lora_rank.saturating_add(mla.qk_rope_head_dim).saturating_mul(element),
            format!("({} + {}) x {element} B", mla.kv_lora_rank, mla.qk_rope_head_dim),
            CPU_BLOCK_MLA,
        ),
        None => {
            let heads = config.kv_heads.ok_or("the number of KV heads is not given")?;
            let size = config.head_dim.ok_or("the size of a head is not given")?;
            let heads = (heads / options.tensor_parallel.max(1)).max(1);
            let bytes = heads.saturating_mul(size).saturating_mul(2).saturating_mul(element);
            (bytes, format!("2 x {heads} KV heads x {size} x {element} B"), CPU_BLOCK)
        }
    };
    let per_token = per_layer.saturating_mul(layers);
    if per_token == 0 || per_token == u64::MAX {
        return Err("the sizes in config.json make no sense".to_owned());
    }
    Ok(KvShape {
        per_token: Bytes::new(per_token),
        block: options.block.unwrap_or(block).max(1),
        layers,
        formula: format!("{layers} layers x {formula} = {per_token} B a token"),
    })
}

fn element_bytes(config: &ModelConfig, dtype: Option<&str>) -> Result<u64, String> {
    let of_model = || match config.dtype.as_deref() {
        Some("float32" | "float") => 4,
        _ => 2,
    };
    match dtype.filter(|dtype| *dtype != "auto") {
        Some("float32") => Ok(4),
        Some("float16" | "bfloat16" | "half") => Ok(2),
        Some(fp8) if fp8 == "fp8" || fp8.starts_with("fp8_e") => Ok(1),
        Some(other) => Err(format!("the size of KV cache type `{other}` is not known")),
        None => {
            let quantization = config.quantization.as_ref();
            match quantization.and_then(|quantization| quantization.kv_cache.as_ref()) {
                None => Ok(of_model()),
                // vLLM's MLA layers pass over the scheme of compressed-tensors (vllm-process.md 7.1).
                Some(_)
                    if config.mla.is_some()
                        && quantization.is_some_and(|q| q.method == "compressed-tensors") =>
                {
                    Ok(of_model())
                }
                Some(DeclaredKvCache::Fp8) => Ok(1),
                Some(other) => {
                    Err(format!("the size of the declared KV cache type is not known ({other:?})"))
                }
            }
        }
    }
}

impl KvShape {
    /// What the engine prints as its KV cache size.
    pub(super) fn capacity(&self, space: Bytes) -> Tokens {
        let page = self.per_token.as_u64() / self.layers.max(1) * self.block;
        let blocks = (space.as_u64() / self.layers.max(1)).checked_div(page).unwrap_or(0);
        Tokens::new(blocks * self.block)
    }

    /// The longest request: one block is reserved (vLLM 0.32).
    pub(super) fn longest(&self, space: Bytes) -> Tokens {
        Tokens::new(self.capacity(space).as_u64().saturating_sub(self.block))
    }

    /// Memory that one request of this length needs, the reserved block included.
    pub(super) fn needed(&self, context: Tokens) -> Bytes {
        let blocks = context.as_u64().div_ceil(self.block).saturating_add(1);
        Bytes::new(blocks.saturating_mul(self.block).saturating_mul(self.per_token.as_u64()))
    }
}

#[cfg(test)]
mod tests {
    use super::{KvOptions, kv_shape};
    use crate::facts::{DeclaredKvCache, MlaRanks, ModelConfig, Quantization};
    use crate::units::{Bytes, Tokens};

    const PLAIN: KvOptions<'static> =
        KvOptions { tensor_parallel: 1, pipeline_parallel: 1, dtype: None, block: None };

    fn smollm2() -> ModelConfig {
        ModelConfig {
            layers: Some(30),
            heads: Some(9),
            kv_heads: Some(3),
            head_dim: Some(64),
            dtype: Some("bfloat16".to_owned()),
            ..ModelConfig::default()
        }
    }

    /// DeepSeek-V3-shaped, three layers: recorded as 3,456 B a token and 310,688 tokens per GiB.
    fn tiny_mla() -> ModelConfig {
        let mla = Some(MlaRanks { kv_lora_rank: 512, qk_rope_head_dim: 64 });
        ModelConfig { layers: Some(3), mla, ..ModelConfig::default() }
    }

    #[test]
    fn capacity_is_what_real_engines_printed() {
        let gib = Bytes::from_gib(1);
        let shape = kv_shape(&smollm2(), PLAIN).expect("plain");
        assert_eq!((shape.per_token, shape.capacity(gib)), (Bytes::new(23_040), Tokens::new(46_592)));
        let shape = kv_shape(&tiny_mla(), PLAIN).expect("mla");
        assert_eq!((shape.per_token, shape.capacity(gib)), (Bytes::new(3_456), Tokens::new(310_688)));
        assert_eq!(shape.longest(gib), Tokens::new(310_672), "the estimate in vLLM's own error");
        assert!(shape.needed(Tokens::new(310_672)) <= gib && shape.needed(Tokens::new(310_673)) > gib);
    }

    #[test]
    fn parallel_sizes_and_types_change_the_bytes() {
        let per_token = |options| kv_shape(&smollm2(), options).map(|shape| shape.per_token.as_u64());
        assert_eq!(per_token(KvOptions { tensor_parallel: 3, ..PLAIN }), Ok(7_680));
        assert_eq!(per_token(KvOptions { tensor_parallel: 9, ..PLAIN }), Ok(7_680), "never below one head");
        assert_eq!(per_token(KvOptions { pipeline_parallel: 2, ..PLAIN }), Ok(11_520));
        assert_eq!(per_token(KvOptions { dtype: Some("fp8"), ..PLAIN }), Ok(11_520));
        assert_eq!(per_token(KvOptions { dtype: Some("auto"), ..PLAIN }), Ok(23_040));
        assert!(per_token(KvOptions { dtype: Some("turboquant_k3v4_nc"), ..PLAIN }).is_err());
        let mla = kv_shape(&tiny_mla(), KvOptions { tensor_parallel: 8, ..PLAIN }).expect("mla");
        assert_eq!(mla.per_token.as_u64(), 3_456, "MLA is never divided");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let irregular = ModelConfig { irregular_attention: vec!["sliding_window".to_owned()], ..smollm2() };
        assert!(kv_shape(&irregular, PLAIN).expect_err("hybrid").contains("sliding_window"));
        assert!(kv_shape(&ModelConfig::default(), PLAIN).is_err());
        let declared = |method: &str| {
            Some(Quantization {
                method: method.to_owned(),
                kv_cache: Some(DeclaredKvCache::Fp8),
                kv_cache_source: None,
            })
        };
        let bytes = |config: ModelConfig| kv_shape(&config, PLAIN).expect("known").per_token.as_u64();
        assert_eq!(bytes(ModelConfig { quantization: declared("modelopt"), ..tiny_mla() }), 1_728);
        assert_eq!(bytes(ModelConfig { quantization: declared("compressed-tensors"), ..tiny_mla() }), 3_456);
    }
}
