//! The small files of a checkpoint together: what vLLM makes of them.

use std::collections::BTreeMap;

use super::checkpoint::{TokenizerFacts, parse_tokenizer_config};
use super::model::ModelConfig;
use super::model_config::{ModelConfigError, parse_json_object, parse_model_config};
use super::quantization::parse_quantization;

/// A file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("`{file}` cannot be used: {source}")]
pub struct BrokenText {
    /// Its name.
    pub file: String,
    /// Why.
    pub source: ModelConfigError,
}

/// Reads `config.json` with what `tokenizer_config.json` and `hf_quant_config.json` add. vLLM reads the
/// last one only where config.json says nothing of quantization (vllm-process.md 7.1).
///
/// # Errors
/// When one of them cannot be used; also when there is no `config.json`.
pub fn assemble_config(
    texts: &BTreeMap<String, Vec<u8>>,
) -> Result<(ModelConfig, Option<TokenizerFacts>), BrokenText> {
    let broken = |file: &str| {
        let file = file.to_owned();
        |source| BrokenText { file, source }
    };
    let (tokenizer_file, quant_file) = ("tokenizer_config.json", "hf_quant_config.json");
    let tokenizer = texts
        .get(tokenizer_file)
        .map(|bytes| parse_tokenizer_config(bytes).map_err(broken(tokenizer_file)))
        .transpose()?;
    let bytes = texts.get("config.json").map(Vec::as_slice).unwrap_or_default();
    let mut config = parse_model_config(bytes, tokenizer.and_then(|tokenizer| tokenizer.max_len))
        .map_err(broken("config.json"))?;
    if config.quantization.is_none()
        && let Some(bytes) = texts.get(quant_file)
    {
        let object = parse_json_object(bytes).map_err(broken(quant_file))?;
        config.quantization = parse_quantization(&object, quant_file);
    }
    Ok((config, tokenizer))
}
