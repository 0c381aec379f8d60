//! What a checkpoint's tensors weigh, by how an engine spreads them over ranks.

use std::collections::BTreeMap;

use crate::units::Bytes;

/// How a tensor is spread (vllm-memory.md 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Divided by the tensor parallel size.
    Sharded,
    /// Key and value projections: divided at most by the number of KV heads.
    KeyValue,
    /// Routed experts: divided by tensor or expert parallel size.
    Expert,
    /// A full copy on each rank.
    Replicated,
    /// Input embedding.
    Embedding,
    /// Output projection.
    Head,
    /// Encoder of images or sound, and its projector.
    Encoder,
    /// Layers of multi-token prediction.
    Prediction,
}

/// Bytes of one layer by placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerWeights {
    /// [`Placement::Sharded`].
    pub sharded: Bytes,
    /// [`Placement::KeyValue`].
    pub key_value: Bytes,
    /// [`Placement::Expert`].
    pub experts: Bytes,
    /// [`Placement::Replicated`].
    pub replicated: Bytes,
}

/// Bytes of a whole checkpoint by placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightInventory {
    /// Layers by their number.
    pub layers: BTreeMap<u64, LayerWeights>,
    /// Input embedding.
    pub embedding: Bytes,
    /// Output projection; zero when it is the embedding.
    pub head: Bytes,
    /// Encoder and projector.
    pub encoder: Bytes,
    /// Layers of multi-token prediction.
    pub prediction: Bytes,
    /// Everything else; a full copy on each rank.
    pub other: Bytes,
    /// Tensors counted; zero when computed from the architecture.
    pub tensors: u64,
}

impl WeightInventory {
    /// Adds a tensor. `layers` is the number of layers of the model: what is numbered above them
    /// belongs to multi-token prediction. Returns where it was put, and the number of its layer.
    pub fn add(&mut self, name: &str, bytes: u64, layers: Option<u64>) -> (Placement, Option<u64>) {
        let (placement, layer) = classify(name);
        let above = layer.zip(layers).is_some_and(|(layer, layers)| layer >= layers);
        let add = |sum: &mut Bytes| *sum = sum.checked_add(Bytes::new(bytes)).unwrap_or(*sum);
        self.tensors += 1;
        match (placement, layer) {
            (Placement::Encoder, _) => add(&mut self.encoder),
            (Placement::Prediction, _) => add(&mut self.prediction),
            _ if above => add(&mut self.prediction),
            (Placement::Embedding, _) => add(&mut self.embedding),
            (Placement::Head, _) => add(&mut self.head),
            (_, None) => add(&mut self.other),
            (placement, Some(layer)) => {
                let weights = self.layers.entry(layer).or_default();
                add(match placement {
                    Placement::Sharded => &mut weights.sharded,
                    Placement::KeyValue => &mut weights.key_value,
                    Placement::Expert => &mut weights.experts,
                    _ => &mut weights.replicated,
                });
            }
        }
        (if above { Placement::Prediction } else { placement }, layer)
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let of_layer =
            |l: &LayerWeights| [l.sharded, l.key_value, l.experts, l.replicated].into_iter().sum::<Bytes>();
        let layers: Bytes = self.layers.values().map(of_layer).sum();
        [layers, self.embedding, self.head, self.encoder, self.prediction, self.other].into_iter().sum()
    }
}

/// Parts of names that mean an encoder.
const ENCODERS: &[&str] = &[
    "vision_tower",
    "vision_model",
    "visual.",
    "vision_encoder",
    "mm_projector",
    "multi_modal_projector",
    "audio_tower",
    "audio_encoder",
    "vit.",
    "image_newline",
    "patch_merger",
    "embed_vision",
];

/// Placement of a tensor and the number of its layer, by its name.
#[must_use]
pub fn classify(name: &str) -> (Placement, Option<u64>) {
    let layer = layer_number(name);
    let has = |part: &str| name.contains(part);
    if ENCODERS.iter().any(|part| has(part)) {
        return (Placement::Encoder, None);
    }
    if has("mtp.") || has("nextn.") || has("eagle") {
        return (Placement::Prediction, layer);
    }
    if layer.is_none() {
        let placement =
            if has("embed_tokens") || has("wte.") || has("word_embeddings") || has("tok_embeddings") {
                Placement::Embedding
            } else if has("lm_head") || name.ends_with("output.weight") {
                Placement::Head
            } else {
                Placement::Replicated
            };
        return (placement, None);
    }
    let placement = if has(".experts.") {
        Placement::Expert
    } else if has("norm")
        || has("router")
        || has(".gate.")
        || has("e_score_correction")
        || has("q_a_proj")
        || has("kv_a_proj")
        || has("fused_qkv_a")
        || has("indexer.")
        || has("shared_expert_gate")
        || has("rotary")
    {
        Placement::Replicated
    } else if has("k_proj") || has("v_proj") && !has("qkv_proj") {
        Placement::KeyValue
    } else {
        Placement::Sharded
    };
    (placement, layer)
}

/// The number after `layers.`, `h.` or `blocks.`.
fn layer_number(name: &str) -> Option<u64> {
    let mut parts = name.split('.').peekable();
    while let Some(part) = parts.next() {
        if matches!(part, "layers" | "h" | "blocks" | "layer") {
            return parts.peek()?.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Placement, WeightInventory, classify};
    use crate::units::Bytes;

    #[test]
    fn names_tell_how_tensors_are_spread() {
        for (name, placement, layer) in [
            ("model.embed_tokens.weight", Placement::Embedding, None),
            ("lm_head.weight", Placement::Head, None),
            ("model.norm.weight", Placement::Replicated, None),
            ("model.layers.3.self_attn.q_proj.weight", Placement::Sharded, Some(3)),
            ("model.layers.3.self_attn.k_proj.weight_scale", Placement::KeyValue, Some(3)),
            ("model.layers.3.self_attn.qkv_proj.weight", Placement::Sharded, Some(3)),
            ("language_model.model.layers.60.mlp.experts.383.down_proj.weight", Placement::Expert, Some(60)),
            ("model.layers.1.mlp.shared_experts.up_proj.weight", Placement::Sharded, Some(1)),
            ("model.layers.1.mlp.gate.weight", Placement::Replicated, Some(1)),
            ("model.layers.1.mlp.gate_proj.weight", Placement::Sharded, Some(1)),
            ("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", Placement::Replicated, Some(1)),
            ("model.layers.1.self_attn.kv_b_proj.weight", Placement::Sharded, Some(1)),
            ("model.layers.1.input_layernorm.weight", Placement::Replicated, Some(1)),
            ("vision_tower.encoder.blocks.1.wqkv.weight", Placement::Encoder, None),
            ("mtp.layers.0.mlp.up_proj.weight", Placement::Prediction, Some(0)),
            ("transformer.h.7.mlp.c_fc.weight", Placement::Sharded, Some(7)),
        ] {
            assert_eq!(classify(name), (placement, layer), "{name}");
        }
    }

    #[test]
    fn nothing_is_lost_or_counted_twice() {
        let mut inventory = WeightInventory::default();
        let names = [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "model.norm.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.61.mlp.up_proj.weight",
            "visual.patch_embed.weight",
            "odd",
        ];
        for (index, name) in names.iter().enumerate() {
            inventory.add(name, 1 << index, Some(61));
        }
        assert_eq!(inventory.total(), Bytes::new((1 << names.len()) - 1));
        assert_eq!((inventory.prediction, inventory.encoder), (Bytes::new(16), Bytes::new(32)));
        assert_eq!(inventory.tensors, names.len() as u64);
    }
}
