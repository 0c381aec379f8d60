//! The other small files of a checkpoint: tokenizer settings and the index of the weight files.

use std::collections::BTreeMap;

use serde_json::Value;

use super::model_config::{ModelConfigError, parse_json_object, whole_tokens};
use crate::units::{Bytes, Tokens};

/// Largest weight index that is read; Kimi-K2's has about 20 MiB.
pub const MAX_INDEX_BYTES: u64 = 128 << 20;

/// What a `tokenizer_config.json` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenizerFacts {
    /// Does it hold a chat template?
    pub has_chat_template: bool,
    /// `model_max_length`, unless it is the tokenizers' way to say "unlimited".
    pub max_len: Option<Tokens>,
}

/// Parses a `tokenizer_config.json`.
///
/// # Errors
/// When it is too large, torn, or not an object.
pub fn parse_tokenizer_config(bytes: &[u8]) -> Result<TokenizerFacts, ModelConfigError> {
    let object = parse_json_object(bytes)?;
    let has_chat_template = match object.get("chat_template") {
        Some(Value::String(template)) => !template.trim().is_empty(),
        Some(Value::Array(templates)) => !templates.is_empty(),
        _ => false,
    };
    let max_len = object.get("model_max_length").and_then(Value::as_f64).and_then(whole_tokens);
    Ok(TokenizerFacts { has_chat_template, max_len })
}

/// Sampling defaults that vLLM takes over from a model's `generation_config.json` (0.32,
/// `--generation-config auto`).
const SAMPLING_KEYS: &[&str] =
    &["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"];

/// Parses a `generation_config.json`: the sampling defaults that the engine takes over.
///
/// # Errors
/// When it is torn or not an object.
pub fn parse_generation_config(bytes: &[u8]) -> Result<BTreeMap<String, Value>, ModelConfigError> {
    let object = parse_json_object(bytes)?;
    let given =
        |key: &&str| Some(((*key).to_owned(), object.get(*key).filter(|value| value.is_number())?.clone()));
    Ok(SAMPLING_KEYS.iter().filter_map(given).collect())
}

/// What a `*.safetensors.index.json` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightIndex {
    /// `metadata.total_size`: the tensors without file headers.
    pub total: Option<Bytes>,
    /// Names of the weight files, sorted, each once.
    pub files: Vec<String>,
}

/// Parses a `*.safetensors.index.json` or `pytorch_model.bin.index.json`. File names that would
/// leave the directory are an error. `each` gets the name of every tensor.
///
/// # Errors
/// When it is torn, not an object, or names a file outside its directory.
pub fn parse_weight_index(bytes: &[u8], mut each: impl FnMut(&str)) -> Result<WeightIndex, ModelConfigError> {
    let value: Value = serde_json::from_slice(bytes)?;
    let total = value.pointer("/metadata/total_size").and_then(Value::as_u64).map(Bytes::new);
    let mut files = Vec::new();
    if let Some(map) = value.get("weight_map").and_then(Value::as_object) {
        for (tensor, file) in map {
            let fail = |message: &str| ModelConfigError::Field {
                path: format!("weight_map.{}", tensor.chars().take(120).collect::<String>()),
                message: message.to_owned(),
            };
            each(tensor);
            let name = file.as_str().ok_or_else(|| fail("expected the name of a file"))?;
            if name.is_empty() || name.contains('/') || name == ".." {
                return Err(fail("the file is not in the model's directory"));
            }
            files.push(name.to_owned());
        }
    }
    files.sort_unstable();
    files.dedup();
    Ok(WeightIndex { total, files })
}

#[cfg(test)]
mod tests {
    use super::{TokenizerFacts, parse_generation_config, parse_tokenizer_config, parse_weight_index};
    use crate::units::{Bytes, Tokens};

    #[test]
    fn tokenizer_settings() {
        for (text, template, max) in [
            (r#"{"chat_template":"{{ x }}","model_max_length":8192}"#, true, Some(8192)),
            (r#"{"chat_template":[{"name":"default","template":"x"}]}"#, true, None),
            (r#"{"chat_template":"","model_max_length":1000000000000000019884624838656}"#, false, None),
            (r#"{"chat_template":null,"model_max_length":-1}"#, false, None),
        ] {
            let expected = TokenizerFacts { has_chat_template: template, max_len: max.map(Tokens::new) };
            assert_eq!(parse_tokenizer_config(text.as_bytes()).expect(text), expected, "{text}");
        }
        assert!(parse_tokenizer_config(b"{").is_err());
    }

    #[test]
    fn sampling_defaults_are_those_that_the_engine_takes() {
        let text = br#"{"temperature":0.6,"top_p":0.95,"do_sample":true,"top_k":null,"eos_token_id":[1]}"#;
        let defaults = parse_generation_config(text).expect("good");
        assert_eq!(defaults.keys().collect::<Vec<_>>(), ["temperature", "top_p"]);
        assert!(parse_generation_config(b"[]").is_err());
    }

    #[test]
    fn the_index_lists_each_file_once() {
        let text = r#"{"metadata":{"total_size":12},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        let index = parse_weight_index(text.as_bytes(), |_| ()).expect("good");
        assert_eq!(index.total, Some(Bytes::new(12)));
        assert_eq!(index.files, ["m-1.safetensors", "m-2.safetensors"]);
        for hostile in [r#"{"weight_map":{"a":"../../etc/passwd"}}"#, r#"{"weight_map":{"a":1}}"#, "", "{"] {
            assert!(parse_weight_index(hostile.as_bytes(), |_| ()).is_err(), "{hostile}");
        }
        assert!(parse_weight_index(b"{}", |_| ()).expect("empty").files.is_empty());
    }
}
