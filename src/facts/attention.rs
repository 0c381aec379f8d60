//! Which layers of a model keep what between tokens, read from its `config.json`.

use serde_json::Value;

/// Layers by what they keep. All counts are of the whole model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttentionLayout {
    /// Layers that cache every token (also MLA's).
    pub full: u64,
    /// Layers that cache the last tokens only.
    pub sliding: Option<WindowedLayers>,
    /// Layers that cache the current chunk only.
    pub chunked: Option<WindowedLayers>,
    /// Layers of a decoder that look at the encoder: they cache its tokens, once per request.
    pub cross: Option<WindowedLayers>,
    /// Layers with a state of fixed size per request.
    pub state: Option<StateLayers>,
    /// Head size of the sparse indexer, which has one more cache beside each full layer's.
    pub indexer: Option<u64>,
    /// Layers of multi-token prediction that the checkpoint brings; cached only when they are used.
    pub prediction_layers: u64,
}

/// Layers that look back a bounded number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowedLayers {
    /// How many.
    pub layers: u64,
    /// How far, in tokens.
    pub tokens: u64,
}

/// Layers with a state of fixed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayers {
    /// How many.
    pub layers: u64,
    /// Their shape.
    pub shape: StateShape,
    /// Bytes of one element of the recurrent state; `None` means the model's data type.
    pub state_element: Option<u64>,
}

/// Shapes of recurrent state (vLLM 0.32 `vllm/model_executor/layers/mamba/mamba_utils.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateShape {
    /// Gated delta net (Qwen3-Next, Qwen3.5, Qwen3.6).
    Gdn {
        /// Key heads.
        key_heads: u64,
        /// Value heads.
        value_heads: u64,
        /// Size of a key head.
        key_dim: u64,
        /// Size of a value head.
        value_dim: u64,
        /// Convolution kernel.
        conv: u64,
    },
    /// Kimi delta attention (Kimi-Linear).
    Kda {
        /// Heads.
        heads: u64,
        /// Size of a head.
        dim: u64,
        /// Convolution kernel.
        conv: u64,
    },
    /// Mamba 2 (Nemotron-H).
    Mamba2 {
        /// Heads.
        heads: u64,
        /// Size of a head.
        dim: u64,
        /// Groups of B and C.
        groups: u64,
        /// State size.
        state: u64,
        /// Convolution kernel.
        conv: u64,
    },
}

/// Keys whose meaning for the cache is not known here.
const UNKNOWN_KEYS: &[&str] = &[
    "block_configs",
    "compress_ratios",
    "cross_attention_layers",
    "global_head_dim",
    "layers_block_type",
    "mamba_d_state",
    "num_kv_shared_layers",
    "ssm_cfg",
];

/// Models all of whose layers slide when `sliding_window` is set and no pattern is given.
const ALL_SLIDE: &[&str] = &["mistral", "mixtral", "phi3", "phimoe", "starcoder2"];

/// Whisper: a decoder whose layers each have a cache of their own and one of the encoder's tokens.
#[must_use]
pub fn parse_encoder_decoder(config: &Value) -> Option<AttentionLayout> {
    if config.get("model_type").and_then(Value::as_str) != Some("whisper") {
        return None;
    }
    let whole = |key: &str| config.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let layers = whole("decoder_layers")?;
    let cross = Some(WindowedLayers { layers, tokens: whole("max_source_positions")? });
    Some(AttentionLayout { full: layers, cross, ..AttentionLayout::default() })
}

/// Reads the layout of `layers` layers. What is not known is named and leaves the layout empty.
#[must_use]
pub fn parse_attention(text: &Value, layers: u64) -> (AttentionLayout, Vec<String>) {
    let mut unknown: Vec<String> =
        UNKNOWN_KEYS.iter().filter(|key| is_set(text, key)).map(|key| (*key).to_owned()).collect();
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let model = text.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let mut layout = AttentionLayout {
        indexer: whole("index_head_dim"),
        prediction_layers: whole("num_nextn_predict_layers").or(whole("mtp_num_hidden_layers")).unwrap_or(0),
        ..AttentionLayout::default()
    };
    let counted = if let Some(state) = parse_kda(text).or_else(|| parse_mamba2(text)) {
        layout.full = state.1;
        layout.state = Some(state.0);
        Ok(())
    } else if let Some(types) = layer_types(text, layers, model) {
        count_types(&mut layout, &types, text)
    } else {
        count_by_window(&mut layout, text, layers, model)
    };
    if let Err(key) = counted {
        unknown.push(key);
    }
    let sum = layout.full
        + layout.sliding.map_or(0, |sliding| sliding.layers)
        + layout.chunked.map_or(0, |chunked| chunked.layers)
        + layout.state.map_or(0, |state| state.layers);
    // Nemotron-H has layers of neither kind (MLP).
    if unknown.is_empty() && (sum > layers || (sum < layers && layout.state.is_none())) {
        unknown.push("layer_types".to_owned());
    }
    if !unknown.is_empty() {
        layout = AttentionLayout::default();
    }
    (layout, unknown)
}

fn is_set(text: &Value, key: &str) -> bool {
    match text.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::Number(number)) => number.as_u64() != Some(0),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

/// Types of the layers, given or by the model's own rule.
fn layer_types(text: &Value, layers: u64, model: &str) -> Option<Vec<String>> {
    if let Some(types) = text.get("layer_types").and_then(Value::as_array) {
        return types.iter().map(|kind| kind.as_str().map(str::to_owned)).collect();
    }
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let every = |n: u64, rest: &str| {
        let kind = |layer| if (layer + 1) % n == 0 { "full_attention" } else { rest };
        Some((0..layers).map(|layer| kind(layer).to_owned()).collect())
    };
    let window = whole("sliding_window").is_some();
    match model {
        "qwen3_next" | "qwen3_5" | "qwen3_5_moe" | "qwen3_5_text" | "qwen3_5_moe_text" => {
            every(whole("full_attention_interval").unwrap_or(4), "linear_attention")
        }
        "gemma2" | "gpt_oss" if window => every(2, "sliding_attention"),
        "gemma3" | "gemma3_text" if window => every(
            whole("sliding_window_pattern").or(whole("_sliding_window_pattern")).unwrap_or(6),
            "sliding_attention",
        ),
        "cohere2" if window => every(whole("sliding_window_pattern").unwrap_or(4), "sliding_attention"),
        "llama4_text" => {
            let chunked = whole("attention_chunk_size").is_some();
            let step = whole("no_rope_layer_interval").unwrap_or(4);
            every(step, if chunked { "chunked_attention" } else { "full_attention" })
        }
        _ => None,
    }
}

fn count_types(layout: &mut AttentionLayout, types: &[String], text: &Value) -> Result<(), String> {
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let count = |kind: &str| types.iter().filter(|known| *known == kind).count() as u64;
    let known = ["full_attention", "sliding_attention", "chunked_attention", "linear_attention"];
    if let Some(other) = types.iter().find(|kind| !known.contains(&kind.as_str())) {
        return Err(format!("layer_types `{}`", other.chars().take(40).collect::<String>()));
    }
    layout.full = count("full_attention");
    let windowed = |kind: &str, key: &str| match count(kind) {
        0 => Ok(None),
        layers => {
            whole(key).map(|tokens| Some(WindowedLayers { layers, tokens })).ok_or_else(|| key.to_owned())
        }
    };
    layout.sliding = windowed("sliding_attention", "sliding_window")?;
    layout.chunked = windowed("chunked_attention", "attention_chunk_size")?;
    let linear = count("linear_attention");
    if linear > 0 {
        let shape = parse_gdn(text).ok_or("linear_attention")?;
        layout.state = Some(StateLayers { layers: linear, shape, state_element: Some(4) });
    }
    Ok(())
}

fn count_by_window(
    layout: &mut AttentionLayout,
    text: &Value,
    layers: u64,
    model: &str,
) -> Result<(), String> {
    let window = text.get("sliding_window").and_then(Value::as_u64).filter(|n| *n > 0);
    let used = text.get("use_sliding_window").and_then(Value::as_bool);
    if is_set(text, "attention_chunk_size") {
        return Err("attention_chunk_size".to_owned());
    }
    match window {
        Some(tokens) if used != Some(false) && ALL_SLIDE.contains(&model) => {
            layout.sliding = Some(WindowedLayers { layers, tokens });
        }
        Some(_) if used != Some(false) => return Err("sliding_window".to_owned()),
        _ => layout.full = layers,
    }
    Ok(())
}

fn parse_gdn(text: &Value) -> Option<StateShape> {
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    Some(StateShape::Gdn {
        key_heads: whole("linear_num_key_heads")?,
        value_heads: whole("linear_num_value_heads")?,
        key_dim: whole("linear_key_head_dim")?,
        value_dim: whole("linear_value_head_dim")?,
        conv: whole("linear_conv_kernel_dim").unwrap_or(4),
    })
}

/// Kimi-Linear: lists of layers in `linear_attn_config`. Returns the full layers too.
fn parse_kda(text: &Value) -> Option<(StateLayers, u64)> {
    let config = text.get("linear_attn_config")?;
    let whole = |key: &str| config.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let list = |key: &str| config.get(key).and_then(Value::as_array).map(|list| list.len() as u64);
    let shape = StateShape::Kda {
        heads: whole("num_heads")?,
        dim: whole("head_dim")?,
        conv: whole("short_conv_kernel_size").unwrap_or(4),
    };
    let state = StateLayers { layers: list("kda_layers")?, shape, state_element: Some(4) };
    Some((state, list("full_attn_layers")?))
}

/// Nemotron-H: a pattern with one letter a layer (`M` Mamba, `*` attention, others neither).
fn parse_mamba2(text: &Value) -> Option<(StateLayers, u64)> {
    let pattern = text.get("hybrid_override_pattern")?.as_str()?;
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let count = |letter: char| pattern.chars().filter(|c| *c == letter).count() as u64;
    let shape = StateShape::Mamba2 {
        heads: whole("mamba_num_heads")?,
        dim: whole("mamba_head_dim")?,
        groups: whole("n_groups")?,
        state: whole("ssm_state_size")?,
        conv: whole("conv_kernel").unwrap_or(4),
    };
    let dtype = text.get("mamba_ssm_cache_dtype").and_then(Value::as_str);
    let state_element = dtype.map(|dtype| if dtype == "float32" { 4 } else { 2 });
    Some((StateLayers { layers: count('M'), shape, state_element }, count('*')))
}

#[cfg(test)]
mod tests {
    use super::{AttentionLayout, StateShape, WindowedLayers, parse_attention, parse_encoder_decoder};
    use serde_json::{Value, json};

    fn parse(value: &Value, layers: u64) -> AttentionLayout {
        let (layout, unknown) = parse_attention(value, layers);
        assert!(unknown.is_empty(), "{value}: {unknown:?}");
        layout
    }

    #[test]
    fn plain_and_windowed_models_are_counted() {
        let full = AttentionLayout { full: 30, ..AttentionLayout::default() };
        assert_eq!(parse(&json!({"model_type": "llama", "sliding_window": null}), 30), full);
        assert_eq!(parse(&json!({"sliding_window": 4096, "use_sliding_window": false}), 30), full);
        let window = |layers, tokens| Some(WindowedLayers { layers, tokens });
        let gemma = parse(&json!({"model_type": "gemma3_text", "sliding_window": 1024}), 62);
        assert_eq!((gemma.full, gemma.sliding), (10, window(52, 1024)));
        let gemma2 = parse(&json!({"model_type": "gemma2", "sliding_window": 4096}), 26);
        assert_eq!((gemma2.full, gemma2.sliding), (13, window(13, 4096)));
        let types = json!({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128});
        assert_eq!((parse(&types, 2).full, parse(&types, 2).sliding), (1, window(1, 128)));
        let mistral = parse(&json!({"model_type": "mistral", "sliding_window": 4096}), 32);
        assert_eq!((mistral.full, mistral.sliding), (0, window(32, 4096)));
        let scout = parse(&json!({"model_type": "llama4_text", "attention_chunk_size": 8192}), 48);
        assert_eq!((scout.full, scout.chunked), (12, window(36, 8192)));
    }

    #[test]
    fn hybrids_keep_their_state_shapes() {
        let qwen = parse(
            &json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 16, "linear_num_value_heads": 48,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
                "full_attention_interval": 4}),
            64,
        );
        assert_eq!((qwen.full, qwen.state.map(|state| state.layers)), (16, Some(48)));
        let kimi = parse(
            &json!({"linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
                "full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}}),
            8,
        );
        assert_eq!((kimi.full, kimi.state.map(|state| state.layers)), (2, Some(6)));
        let nemotron = parse(
            &json!({"hybrid_override_pattern": "M-M*-E", "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 8,
                "ssm_state_size": 128, "conv_kernel": 4}),
            6,
        );
        assert_eq!((nemotron.full, nemotron.state.map(|state| state.layers)), (1, Some(2)));
        assert!(matches!(nemotron.state.map(|s| s.shape), Some(StateShape::Mamba2 { state: 128, .. })));
        let sparse = parse(&json!({"index_head_dim": 128, "num_nextn_predict_layers": 1}), 61);
        assert_eq!((sparse.full, sparse.indexer, sparse.prediction_layers), (61, Some(128), 1));
    }

    #[test]
    fn a_decoder_that_looks_at_an_encoder_is_counted() {
        let config = json!({"model_type": "whisper", "decoder_layers": 32, "max_source_positions": 1500});
        let layout = parse_encoder_decoder(&config).expect("whisper");
        assert_eq!((layout.full, layout.cross), (32, Some(WindowedLayers { layers: 32, tokens: 1500 })));
        assert_eq!(parse_encoder_decoder(&json!({"model_type": "t5", "decoder_layers": 32})), None);
    }

    #[test]
    fn what_is_not_known_is_named_and_never_guessed() {
        for (value, key) in [
            (json!({"compress_ratios": [4]}), "compress_ratios"),
            (json!({"sliding_window": 4096, "model_type": "novel"}), "sliding_window"),
            (json!({"layer_types": ["full_attention", "hologram"]}), "layer_types `hologram`"),
            (json!({"layer_types": ["full_attention"]}), "layer_types"),
            (json!({"layer_types": ["full_attention", "linear_attention"]}), "linear_attention"),
        ] {
            let (layout, unknown) = parse_attention(&value, 2);
            assert!(unknown.iter().any(|found| found == key), "{value}: {unknown:?}");
            assert_eq!(layout, AttentionLayout::default());
        }
    }
}
