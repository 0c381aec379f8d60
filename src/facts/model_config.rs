//! `config.json` bytes → [`ModelConfig`]: bounded, with the place of each mistake.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::architecture::parse_architecture;
use super::attention::{AttentionLayout, parse_attention, parse_encoder_decoder};
use super::model::{MlaRanks, ModelConfig};
use super::quantization::parse_quantization;
use crate::units::Tokens;

/// Largest `config.json` that is read; the largest seen in the wild are below 1 MiB.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Why a model's file could not be read. The file's path is added by the reader.
#[derive(Debug, thiserror::Error)]
pub enum ModelConfigError {
    /// Larger than any real one.
    #[error("it has {bytes} bytes, more than the {MAX_CONFIG_BYTES} that any real one has")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The engine's JSON reader refuses a byte order mark.
    #[error("it starts with a byte order mark, which vLLM's JSON reader refuses")]
    ByteOrderMark,
    /// Not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error("it holds {found} where an object is expected")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// A value of the wrong type.
    #[error("at `{path}`: {message}")]
    Field {
        /// Dotted path.
        path: String,
        /// What serde says.
        message: String,
    },
}

/// A count that some architectures give per layer.
#[derive(Debug, Clone, PartialEq)]
enum Count {
    One(u64),
    PerLayer,
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Count;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number or a list with one per layer")
            }

            fn visit_u64<E>(self, count: u64) -> Result<Count, E> {
                Ok(Count::One(count))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Count::PerLayer)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawText {
    model_type: Option<String>,
    dtype: Option<String>,
    torch_dtype: Option<String>,
    num_hidden_layers: Option<Count>,
    n_layer: Option<Count>,
    num_attention_heads: Option<Count>,
    n_head: Option<Count>,
    decoder_layers: Option<Count>,
    decoder_attention_heads: Option<Count>,
    d_model: Option<Count>,
    num_key_value_heads: Option<Count>,
    num_kv_heads: Option<Count>,
    head_dim: Option<Count>,
    hidden_size: Option<Count>,
    n_embd: Option<Count>,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    max_position_embeddings: Option<f64>,
    n_positions: Option<f64>,
    max_seq_len: Option<f64>,
    seq_length: Option<f64>,
    model_max_length: Option<f64>,
    max_target_positions: Option<f64>,
    max_sequence_length: Option<f64>,
    max_seq_length: Option<f64>,
    seq_len: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    tie_word_embeddings: Option<bool>,
    vocab_size: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawTop {
    architectures: Option<Vec<String>>,
    auto_map: Option<Map<String, Value>>,
    dtype: Option<String>,
    torch_dtype: Option<String>,
    tie_word_embeddings: Option<bool>,
    quantization_config: Option<Map<String, Value>>,
}

/// Parses a `config.json`. `tokenizer_limit` is the tokenizer's `model_max_length`, which vLLM lets
/// lower the derived length.
///
/// # Errors
/// When it is too large, torn, not an object, or has a value of the wrong type in a field that a
/// plan needs.
pub fn parse_model_config(
    bytes: &[u8],
    tokenizer_limit: Option<Tokens>,
) -> Result<ModelConfig, ModelConfigError> {
    let object = parse_json_object(bytes)?;
    let value = Value::Object(object);
    let top: RawTop = read_fields(&value, "")?;
    let nested = value.get("text_config").filter(|text| text.is_object());
    let (text_value, place) = nested.map_or((&value, ""), |text| (text, "text_config."));
    let text: RawText = read_fields(text_value, place)?;

    let one = |count: &Option<Count>| match count {
        Some(Count::One(n)) if *n > 0 => Some(*n),
        _ => None,
    };
    let layers = one(&text.num_hidden_layers).or(one(&text.n_layer)).or(one(&text.decoder_layers));
    let (attention, irregular_attention) = read_attention(&value, text_value, &text, layers);
    let heads = one(&text.num_attention_heads).or(one(&text.n_head)).or(one(&text.decoder_attention_heads));
    let hidden = one(&text.hidden_size).or(one(&text.n_embd)).or(one(&text.d_model));
    let kv_heads = one(&text.num_key_value_heads).or(one(&text.num_kv_heads)).or(heads);
    let head_dim = one(&text.head_dim).or_else(|| hidden?.checked_div(heads?));
    let mla = text.kv_lora_rank.filter(|rank| *rank > 0).zip(text.qk_rope_head_dim);
    let (max_len, auto_len) = derive_lengths(&text, tokenizer_limit);
    Ok(ModelConfig {
        architecture: top.architectures.and_then(|names| names.into_iter().next()),
        dtype: text
            .dtype
            .or(text.torch_dtype)
            .or(top.dtype)
            .or(top.torch_dtype)
            .map(|name| name.trim_start_matches("torch.").to_owned()),
        layers,
        heads,
        kv_heads,
        head_dim,
        mla: mla.map(|(kv_lora_rank, qk_rope_head_dim)| MlaRanks { kv_lora_rank, qk_rope_head_dim }),
        max_len,
        auto_len,
        quantization: top
            .quantization_config
            .as_ref()
            .or_else(|| text_value.get("quantization_config")?.as_object())
            .and_then(|config| parse_quantization(config, "config.json quantization_config")),
        tied_embeddings: top.tie_word_embeddings.or(text.tie_word_embeddings),
        vocab: text.vocab_size,
        needs_remote_code: top.auto_map.is_some_and(|map| !map.is_empty()),
        model_type: text.model_type,
        attention,
        has_encoder: ["vision_config", "audio_config"]
            .iter()
            .any(|key| value.get(*key).is_some_and(|encoder| encoder.is_object())),
        sizes: parse_architecture(text_value),
        irregular_attention,
    })
}

/// Parses bounded bytes into a JSON object.
///
/// # Errors
/// When they are too many, start with a byte order mark, or are not a JSON object.
pub fn parse_json_object(bytes: &[u8]) -> Result<Map<String, Value>, ModelConfigError> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if size > MAX_CONFIG_BYTES {
        return Err(ModelConfigError::TooLarge { bytes: size });
    }
    if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
        return Err(ModelConfigError::ByteOrderMark);
    }
    let found = match serde_json::from_slice(bytes)? {
        Value::Object(object) => return Ok(object),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
    };
    Err(ModelConfigError::NotAnObject { found })
}

fn read_fields<T: for<'de> Deserialize<'de>>(value: &Value, prefix: &str) -> Result<T, ModelConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| ModelConfigError::Field {
        path: format!("{prefix}{}", error.path()),
        message: error.inner().to_string(),
    })
}

/// The layout of the layers, and what stands in the way of knowing it.
fn read_attention(
    top: &Value,
    text: &Value,
    raw: &RawText,
    layers: Option<u64>,
) -> (AttentionLayout, Vec<String>) {
    if let Some(layout) = parse_encoder_decoder(top) {
        return (layout, Vec::new());
    }
    let mut found: Vec<String> = Vec::new();
    if top.get("is_encoder_decoder").and_then(Value::as_bool) == Some(true) {
        found.push("is_encoder_decoder".to_owned());
    }
    for (name, count) in [
        ("num_hidden_layers", &raw.num_hidden_layers),
        ("num_attention_heads", &raw.num_attention_heads),
        ("num_key_value_heads", &raw.num_key_value_heads),
        ("num_kv_heads", &raw.num_kv_heads),
        ("head_dim", &raw.head_dim),
    ] {
        if *count == Some(Count::PerLayer) {
            found.push(name.to_owned());
        }
    }
    let (layout, unknown) = parse_attention(text, layers.unwrap_or(0));
    found.extend(unknown);
    if found.is_empty() { (layout, found) } else { (AttentionLayout::default(), found) }
}

/// RoPE kinds whose `max_position_embeddings` is taken as already scaled (vLLM 0.32).
const SCALED_ALREADY: &[&str] =
    &["su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"];

fn derive_lengths(text: &RawText, tokenizer_limit: Option<Tokens>) -> (Option<Tokens>, Option<Tokens>) {
    let declared = [
        text.max_position_embeddings,
        text.n_positions,
        text.max_seq_len,
        text.seq_length,
        text.model_max_length,
        text.max_target_positions,
        text.max_sequence_length,
        text.max_seq_length,
        text.seq_len,
    ];
    let smallest = declared.into_iter().flatten().reduce(f64::min);
    let Some(length) = text.model_max_length.filter(|length| *length > 0.0).or(smallest) else {
        return (None, None);
    };
    #[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
    let length = tokenizer_limit.map_or(length, |limit| length.min(limit.as_u64() as f64));
    let rope = text.rope_parameters.as_ref().or(text.rope_scaling.as_ref());
    let kind = rope.and_then(|rope| rope.get("rope_type").or(rope.get("type"))).and_then(Value::as_str);
    let factor = match (kind, text.model_type.as_deref()) {
        (Some(kind), _) if SCALED_ALREADY.contains(&kind) => 1.0,
        (_, Some(model)) if model.contains("gemma3") => 1.0,
        _ => rope.and_then(|rope| rope.get("factor")).and_then(Value::as_f64).unwrap_or(1.0),
    };
    let max_len = whole_tokens(length * factor);
    let original = rope
        .and_then(|rope| rope.get("original_max_position_embeddings"))
        .and_then(Value::as_f64)
        .or(text.original_max_position_embeddings);
    let auto_len = original.filter(|_| kind == Some("longrope")).and_then(whole_tokens);
    (max_len, auto_len)
}

/// A length that can be one: `None` for tokenizers' "unlimited" (1e30) and for nonsense.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked first")]
pub(crate) fn whole_tokens(length: f64) -> Option<Tokens> {
    (1.0..=1e12).contains(&length).then(|| Tokens::new(length as u64))
}

#[cfg(test)]
mod tests {
    use super::{MAX_CONFIG_BYTES, ModelConfigError, parse_model_config};
    use crate::facts::{DeclaredKvCache, MlaRanks, ModelConfig};
    use crate::units::Tokens;

    fn parse(text: &str) -> ModelConfig {
        parse_model_config(text.as_bytes(), None).expect(text)
    }

    /// `config.json` of SmolLM2-135M-Instruct as transformers 5.19 writes it.
    const SMOLLM2: &str = r#"{
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "dtype": "bfloat16",
      "head_dim": 64, "hidden_size": 576, "intermediate_size": 1536,
      "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9,
      "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 9.999999747378752e-06,
      "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
      "tie_word_embeddings": true, "transformers_version": "5.19.0", "vocab_size": 49152 }"#;

    #[test]
    fn a_real_config_is_read() {
        let config = parse(SMOLLM2);
        assert_eq!(config.architecture.as_deref(), Some("LlamaForCausalLM"));
        assert_eq!(config.dtype.as_deref(), Some("bfloat16"));
        assert_eq!((config.layers, config.heads, config.kv_heads), (Some(30), Some(9), Some(3)));
        assert_eq!((config.head_dim, config.vocab), (Some(64), Some(49_152)));
        assert_eq!(config.max_len, Some(Tokens::new(8192)));
        assert_eq!(config.tied_embeddings, Some(true));
        assert!(!config.needs_remote_code && config.mla.is_none() && config.quantization.is_none());
        assert!(config.irregular_attention.is_empty());
    }

    #[test]
    fn text_config_and_mla_are_found_in_a_wrapper() {
        let config = parse(
            r#"{"architectures":["KimiK25ForConditionalGeneration"],"auto_map":{"AutoConfig":"c.C"},
            "text_config":{"model_type":"kimi_k2","torch_dtype":"torch.bfloat16","num_hidden_layers":61,
              "num_attention_heads":64,"num_key_value_heads":64,"hidden_size":7168,"kv_lora_rank":512,
              "qk_rope_head_dim":64,"max_position_embeddings":262144,"vocab_size":163840,
              "rope_scaling":{"type":"yarn","factor":64.0}},
            "quantization_config":{"quant_method":"modelopt","kv_cache_scheme":
              {"dynamic":false,"num_bits":8,"type":"float"}}}"#,
        );
        assert_eq!(config.mla, Some(MlaRanks { kv_lora_rank: 512, qk_rope_head_dim: 64 }));
        assert_eq!(config.dtype.as_deref(), Some("bfloat16"));
        assert_eq!(config.max_len, Some(Tokens::new(262_144)), "yarn is scaled already");
        assert!(config.needs_remote_code);
        assert_eq!(config.quantization.and_then(|q| q.kv_cache), Some(DeclaredKvCache::Fp8));
    }

    #[test]
    fn lengths_follow_the_rope_factor() {
        for (text, max, auto) in [
            (
                r#"{"max_position_embeddings":4096,"rope_scaling":{"type":"linear","factor":4}}"#,
                Some(16_384),
                None,
            ),
            (r#"{"max_position_embeddings":4096,"rope_scaling":null}"#, Some(4096), None),
            (r#"{"max_position_embeddings":8192,"n_positions":2048}"#, Some(2048), None),
            (
                r#"{"max_position_embeddings":131072,"original_max_position_embeddings":4096,
                "rope_scaling":{"type":"longrope"}}"#,
                Some(131_072),
                Some(4096),
            ),
            (r#"{"max_position_embeddings":1e30}"#, None, None),
            (r#"{"max_position_embeddings":0}"#, None, None),
            ("{}", None, None),
        ] {
            let config = parse(text);
            assert_eq!(config.max_len, max.map(Tokens::new), "{text}");
            assert_eq!(config.auto_len, auto.map(Tokens::new), "{text}");
        }
    }

    #[test]
    fn the_tokenizer_may_lower_the_length() {
        let limited =
            |limit| parse_model_config(SMOLLM2.as_bytes(), Some(Tokens::new(limit))).expect("good").max_len;
        assert_eq!(limited(2048), Some(Tokens::new(2048)));
        assert_eq!(limited(999_999), Some(Tokens::new(8192)));
    }

    #[test]
    fn absence_is_not_zero() {
        let config = parse("{}");
        assert_eq!(config, ModelConfig::default());
        assert_eq!(parse(r#"{"num_hidden_layers":0}"#).layers, None);
    }

    #[test]
    fn irregular_attention_is_named() {
        for (text, key) in [
            (r#"{"num_hidden_layers":2,"sliding_window":4096}"#, "sliding_window"),
            (r#"{"num_hidden_layers":1,"layer_types":["full_attention","full_attention"]}"#, "layer_types"),
            (r#"{"num_key_value_heads":[1,2]}"#, "num_key_value_heads"),
            (r#"{"is_encoder_decoder":true}"#, "is_encoder_decoder"),
        ] {
            assert_eq!(parse(text).irregular_attention, [key], "{text}");
        }
        for regular in [
            r#"{"sliding_window":null}"#,
            r#"{"sliding_window":32768,"use_sliding_window":false}"#,
            r#"{"num_hidden_layers":1,"layer_types":["full_attention"]}"#,
        ] {
            assert!(parse(regular).irregular_attention.is_empty(), "{regular}");
        }
    }

    #[test]
    fn mistakes_are_placed() {
        let error = |text: &str| parse_model_config(text.as_bytes(), None).expect_err(text).to_string();
        assert!(error(r#"{"num_hidden_layers":"30"}"#).starts_with("at `num_hidden_layers`: invalid type"));
        assert!(error(r#"{"text_config":{"vocab_size":-1}}"#).starts_with("at `text_config.vocab_size`"));
        assert!(error(r#"{"architectures":[1]}"#).starts_with("at `architectures[0]`"));
        assert!(error(r#"{"num_hidden_layers": 3"#).contains("EOF while parsing"));
        assert!(error("").contains("EOF"));
        assert!(error("[]").contains("a list where an object"));
        assert!(error("\u{feff}{}").contains("byte order mark"));
        assert!(error(&"[".repeat(100_000)).contains("recursion limit"));
        assert!(error(r#"{"vocab_size": NaN}"#).contains("not JSON"));
    }

    #[test]
    fn a_giant_is_refused_unread() {
        let giant = vec![b' '; usize::try_from(MAX_CONFIG_BYTES).expect("64 bit") + 1];
        assert!(matches!(parse_model_config(&giant, None), Err(ModelConfigError::TooLarge { .. })));
    }
}
