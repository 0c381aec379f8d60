//! Weights of one rank: counted from the checkpoint's tensors, or computed from its architecture.

use crate::facts::{LayerWeights, ModelConfig, Quantization, WeightInventory};
use crate::units::Bytes;

/// How weights are spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub tensor_parallel: u64,
    pub pipeline_parallel: u64,
    /// Ranks that share the experts, when expert parallelism is on.
    pub expert_parallel: Option<u64>,
    /// Are the prediction layers loaded?
    pub prediction: bool,
}

/// Weights of each pipeline stage's ranks, and which stage binds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankWeights {
    /// Bytes of the heaviest rank.
    pub heaviest: Bytes,
    /// Its stage, from 0.
    pub stage: u64,
    /// What it is made of, in words.
    pub source: String,
}

/// Spreads an inventory (vllm-memory.md 5). `embedding_is_head`: one tensor for both.
pub(crate) fn rank_weights(inventory: &WeightInventory, config: &ModelConfig, spread: Spread) -> RankWeights {
    let tp = spread.tensor_parallel.max(1);
    let stages = spread.pipeline_parallel.max(1);
    let layers = u64::try_from(inventory.layers.len()).unwrap_or(u64::MAX);
    let kv_share = tp.min(config.kv_heads.unwrap_or(tp).max(1));
    let experts_share = spread.expert_parallel.unwrap_or(tp).max(1);
    let share = |bytes: Bytes, by: u64| bytes.as_u64().div_ceil(by);
    let absorbed = mla_absorbed(config, tp);
    let of_layer = |layer: &LayerWeights| {
        share(layer.sharded, tp)
            + share(layer.key_value, kv_share)
            + share(layer.experts, experts_share)
            + layer.replicated.as_u64()
            + absorbed
    };
    let tied = config.tied_embeddings == Some(true) || inventory.head == Bytes::ZERO;
    let mut stage_bytes = Vec::new();
    let mut numbered = inventory.layers.values();
    for stage in 0..stages {
        let count = usize::try_from(layers_of_stage(layers, stages, stage)).unwrap_or(0);
        let mut bytes: u64 = numbered.by_ref().take(count).map(of_layer).sum();
        bytes += inventory.other.as_u64();
        if stage == 0 {
            bytes += share(inventory.embedding, tp) + share(inventory.encoder, tp);
        }
        if stage + 1 == stages {
            let head = if tied && stage > 0 { inventory.embedding } else { inventory.head };
            bytes += share(head, tp);
            if spread.prediction {
                bytes += share(inventory.prediction, tp);
            }
        }
        stage_bytes.push(bytes);
    }
    let heaviest = stage_bytes.iter().copied().max().unwrap_or(0);
    let stage = stage_bytes.iter().position(|bytes| *bytes == heaviest).unwrap_or(0) as u64;
    let origin = if inventory.tensors > 0 {
        format!("{} tensors", inventory.tensors)
    } else {
        "computed from the architecture".to_owned()
    };
    let binding = if stages > 1 { format!(", stage {stage} is the heaviest") } else { String::new() };
    RankWeights {
        heaviest: Bytes::new(heaviest),
        stage,
        source: format!("{origin} over TP {tp} x PP {stages}{binding}"),
    }
}

/// Layers of a pipeline stage: evenly, the remainder one each from the second-last stage backwards.
fn layers_of_stage(layers: u64, stages: u64, stage: u64) -> u64 {
    let rest = layers % stages;
    let from_behind = stages - 1 - stage;
    layers / stages + u64::from(from_behind >= 1 && from_behind <= rest)
}

/// MLA keeps the up-projections of keys and values a second time, transposed, in the activation type:
/// bytes of one layer.
fn mla_absorbed(config: &ModelConfig, tp: u64) -> u64 {
    let Some(mla) = config.mla else { return 0 };
    let sizes = &config.sizes;
    let (Some(heads), Some(nope), Some(value)) = (config.heads, sizes.qk_nope_head_dim, sizes.v_head_dim)
    else {
        return 0;
    };
    (heads / tp).max(1) * (nope + value) * mla.kv_lora_rank * 2
}

/// Computes the inventory of a model whose weights are not there. An error says what is missing.
pub(crate) fn computed_inventory(config: &ModelConfig) -> Result<WeightInventory, String> {
    let sizes = &config.sizes;
    let missing = |what: &str| format!("{what} is not in config.json");
    let layers = config.layers.ok_or_else(|| missing("num_hidden_layers"))?;
    let hidden = sizes.hidden.ok_or_else(|| missing("hidden_size"))?;
    let vocab = config.vocab.ok_or_else(|| missing("vocab_size"))?;
    if config.attention.state.is_some() || !config.irregular_attention.is_empty() {
        return Err("the sizes of its layers are not all known".to_owned());
    }
    let element = match config.dtype.as_deref() {
        Some("float32" | "float") => 4.0,
        _ => 2.0,
    };
    let widths = Widths::of(config.quantization.as_ref(), element)?;
    let attention = attention_weights(config, hidden, widths)?;
    let mut inventory = WeightInventory {
        embedding: Bytes::new(scaled(vocab * hidden, element)),
        head: if config.tied_embeddings == Some(true) {
            Bytes::ZERO
        } else {
            Bytes::new(scaled(vocab * hidden, element))
        },
        ..WeightInventory::default()
    };
    for layer in 0..layers {
        let mut weights = attention;
        let dense = sizes.experts.is_none() || layer < sizes.dense_layers;
        if dense {
            let width = sizes.intermediate.ok_or_else(|| missing("intermediate_size"))?;
            add(&mut weights.sharded, scaled(3 * hidden * width, widths.dense));
        } else {
            let experts = sizes.experts.unwrap_or(0);
            let width = sizes.expert_intermediate.ok_or_else(|| missing("moe_intermediate_size"))?;
            add(&mut weights.experts, scaled(3 * hidden * width, widths.experts).saturating_mul(experts));
            add(&mut weights.replicated, scaled(experts * hidden, element));
            let shared = sizes.shared_intermediate.unwrap_or(width * sizes.shared_experts);
            add(&mut weights.sharded, scaled(3 * hidden * shared, widths.dense));
        }
        add(&mut weights.replicated, scaled(2 * hidden, element));
        inventory.layers.insert(layer, weights);
    }
    Ok(inventory)
}

/// Attention of one layer, without norms.
fn attention_weights(config: &ModelConfig, hidden: u64, widths: Widths) -> Result<LayerWeights, String> {
    let heads = config.heads.ok_or("num_attention_heads is not in config.json")?;
    let mut weights = LayerWeights::default();
    if let Some(mla) = config.mla {
        let sizes = &config.sizes;
        let nope = sizes.qk_nope_head_dim.ok_or("qk_nope_head_dim is not in config.json")?;
        let value = sizes.v_head_dim.ok_or("v_head_dim is not in config.json")?;
        let query = heads * (nope + mla.qk_rope_head_dim);
        match sizes.q_lora_rank {
            Some(rank) => {
                add(&mut weights.replicated, scaled(hidden * rank, widths.attention));
                add(&mut weights.sharded, scaled(rank * query, widths.attention));
            }
            None => add(&mut weights.sharded, scaled(hidden * query, widths.attention)),
        }
        add(
            &mut weights.replicated,
            scaled(hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim), widths.attention),
        );
        add(&mut weights.sharded, scaled(mla.kv_lora_rank * heads * (nope + value), widths.attention));
        add(&mut weights.sharded, scaled(heads * value * hidden, widths.attention));
        return Ok(weights);
    }
    let dim = config.head_dim.ok_or("head_dim is not in config.json")?;
    let kv_heads = config.kv_heads.ok_or("num_key_value_heads is not in config.json")?;
    add(&mut weights.sharded, scaled(2 * hidden * heads * dim, widths.attention));
    add(&mut weights.key_value, scaled(2 * hidden * kv_heads * dim, widths.attention));
    Ok(weights)
}

fn add(sum: &mut Bytes, bytes: u64) {
    *sum = sum.checked_add(Bytes::new(bytes)).unwrap_or(*sum);
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "far below 2^53"
)]
fn scaled(parameters: u64, bytes_each: f64) -> u64 {
    (parameters as f64 * bytes_each) as u64
}

/// Bytes of one parameter, scales included.
#[derive(Debug, Clone, Copy)]
struct Widths {
    attention: f64,
    dense: f64,
    experts: f64,
}

impl Widths {
    /// By the checkpoint's method (vllm-memory.md 5, "Formats"). What is excluded stays unquantised.
    fn of(quantization: Option<&Quantization>, element: f64) -> Result<Self, String> {
        let Some(quantization) = quantization else {
            return Ok(Self { attention: element, dense: element, experts: element });
        };
        let width = quantization
            .bytes_per_parameter()
            .ok_or_else(|| format!("the size of weights of method `{}` is not known", quantization.method))?;
        let unless = |excluded: bool| if excluded { element } else { width };
        Ok(Self {
            attention: unless(quantization.excludes("self_attn")),
            dense: unless(quantization.excludes("mlp") || quantization.excludes("shared_experts")),
            experts: width,
        })
    }
}

#[cfg(test)]
mod tests;
