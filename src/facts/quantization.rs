//! What a checkpoint declares about its quantization, and that of the KV cache.

use serde_json::{Map, Value};

use super::model::{DeclaredKvCache, Quantization, WeightFormat};

/// Reads a `quantization_config` object (or the whole of `hf_quant_config.json`). `place` names
/// where it stands. `None` when neither a method nor a producer is given.
///
/// The order is vLLM 0.32's (vllm-process.md 7.1): `quantization.kv_cache_scheme`, top-level
/// `kv_cache_scheme`, `quantization.kv_cache_quant_algo`, top-level `kv_cache_quant_algo`.
#[must_use]
pub fn parse_quantization(config: &Map<String, Value>, place: &str) -> Option<Quantization> {
    let inner = config.get("quantization").and_then(Value::as_object);
    let text = |map: Option<&Map<String, Value>>, key: &str| map?.get(key)?.as_str().map(str::to_owned);
    let producer = config.get("producer").and_then(Value::as_object);
    let method = text(Some(config), "quant_method").or_else(|| text(producer, "name"))?;
    let candidates = [
        (inner, "kv_cache_scheme", "quantization.kv_cache_scheme"),
        (Some(config), "kv_cache_scheme", "kv_cache_scheme"),
        (inner, "kv_cache_quant_algo", "quantization.kv_cache_quant_algo"),
        (Some(config), "kv_cache_quant_algo", "kv_cache_quant_algo"),
    ];
    let declared = candidates.into_iter().find_map(|(map, key, path)| {
        let value = map?.get(key)?;
        Some((parse_declared(value)?, format!("{place}.{path}")))
    });
    let (kv_cache, kv_cache_source) = declared.unzip();
    let lists = [
        (inner, "exclude_modules"),
        (Some(config), "ignore"),
        (Some(config), "modules_to_not_convert"),
        (Some(config), "exclude_modules"),
    ];
    let excluded = lists.into_iter().filter_map(|(map, key)| map?.get(key)?.as_array()).flatten();
    let excluded = excluded.filter_map(Value::as_str).map(str::to_owned).collect();
    let weights = parse_weight_format(&method, config, inner);
    Some(Quantization { method, kv_cache, kv_cache_source, weights, excluded })
}

/// The format of quantised weights; `None` when it is not known here.
fn parse_weight_format(
    method: &str,
    config: &Map<String, Value>,
    inner: Option<&Map<String, Value>>,
) -> Option<WeightFormat> {
    let whole = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_u64);
    let algo = inner
        .and_then(|map| map.get("quant_algo"))
        .or_else(|| config.get("quant_algo"))
        .and_then(Value::as_str);
    match (method, algo) {
        (method, Some(algo)) if method.starts_with("modelopt") => match algo.to_ascii_uppercase().as_str() {
            "NVFP4" => Some(WeightFormat::Nvfp4),
            algo if algo.starts_with("FP8") => Some(WeightFormat::Fp8 { block: None }),
            _ => None,
        },
        ("fp8", _) => {
            let block = config.get("weight_block_size").and_then(Value::as_array);
            let block = block.and_then(|sizes| sizes.iter().map(Value::as_u64).product::<Option<u64>>());
            Some(WeightFormat::Fp8 { block })
        }
        ("mxfp4", _) => Some(WeightFormat::Mxfp4),
        ("awq" | "awq_marlin" | "gptq" | "gptq_marlin", _) => Some(WeightFormat::Integer {
            bits: whole(config, "bits").or_else(|| whole(config, "w_bit"))?,
            group: whole(config, "group_size").or_else(|| whole(config, "q_group_size")),
        }),
        ("compressed-tensors", _) => {
            let groups = config.get("config_groups")?.as_object()?;
            let weights = groups.values().next()?.get("weights")?.as_object()?;
            let (bits, group) = (whole(weights, "num_bits")?, whole(weights, "group_size"));
            match (weights.get("type")?.as_str()?, bits) {
                ("float", 8) => Some(WeightFormat::Fp8 { block: None }),
                ("float", 4) => Some(WeightFormat::Nvfp4),
                ("int", bits) => Some(WeightFormat::Integer { bits, group }),
                _ => None,
            }
        }
        _ => None,
    }
}

impl Quantization {
    /// Bytes of one quantised parameter with its scales (vllm-memory.md 5, "Formats").
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "group sizes are small")]
    pub fn bytes_per_parameter(&self) -> Option<f64> {
        Some(match self.weights? {
            WeightFormat::Nvfp4 => 0.5 + 1.0 / 16.0,
            WeightFormat::Mxfp4 => 0.5 + 1.0 / 32.0,
            WeightFormat::Fp8 { block } => 1.0 + block.map_or(0.0, |block| 4.0 / block.max(1) as f64),
            WeightFormat::Integer { bits, group } => {
                bits as f64 / 8.0 + group.filter(|group| *group > 0).map_or(0.0, |group| 2.0 / group as f64)
            }
        })
    }

    /// Is a part of the model (`self_attn`, `lm_head`, …) left unquantised?
    #[must_use]
    pub fn excludes(&self, part: &str) -> bool {
        self.excluded.iter().any(|pattern| pattern.contains(part))
    }
}

fn parse_declared(value: &Value) -> Option<DeclaredKvCache> {
    match value {
        Value::Null => None,
        Value::String(name) => Some(match name.to_ascii_lowercase().as_str() {
            "fp8" | "fp8_e4m3" => DeclaredKvCache::Fp8,
            "nvfp4" => DeclaredKvCache::Nvfp4,
            _ => DeclaredKvCache::Other(name.clone()),
        }),
        Value::Object(scheme) => {
            let bits = scheme.get("num_bits").and_then(Value::as_u64);
            let float = scheme.get("type").and_then(Value::as_str) == Some("float");
            let fixed = scheme.get("dynamic").and_then(Value::as_bool) != Some(true);
            Some(match bits {
                Some(8) if float && fixed => DeclaredKvCache::Fp8,
                Some(4) if float => DeclaredKvCache::Nvfp4,
                _ => DeclaredKvCache::Other(value.to_string()),
            })
        }
        other => Some(DeclaredKvCache::Other(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_quantization;
    use crate::facts::DeclaredKvCache;

    #[test]
    fn weight_formats_are_read_with_what_they_leave_out() {
        for (text, bytes) in [
            (r#"{"quant_method":"modelopt","quant_algo":"NVFP4"}"#, Some(0.5625)),
            (r#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"FP8"}}"#, Some(1.0)),
            (r#"{"quant_method":"fp8","weight_block_size":[128,128]}"#, Some(1.0 + 4.0 / 16_384.0)),
            (r#"{"quant_method":"mxfp4"}"#, Some(0.531_25)),
            (r#"{"quant_method":"awq","bits":4,"group_size":128}"#, Some(0.515_625)),
            (
                r#"{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":4,"type":"int","group_size":32}}}}"#,
                Some(0.5625),
            ),
            (r#"{"quant_method":"bitsandbytes"}"#, None),
        ] {
            let map = serde_json::from_str(text).expect(text);
            let found = parse_quantization(&map, "x").expect(text);
            assert_eq!(found.bytes_per_parameter(), bytes, "{text}");
        }
        let map =
            serde_json::from_str(r#"{"quant_method":"modelopt","ignore":["lm_head","re:.*self_attn.*"]}"#)
                .expect("JSON");
        let found = parse_quantization(&map, "x").expect("found");
        assert!(found.excludes("self_attn") && found.excludes("lm_head") && !found.excludes("mlp"));
    }

    #[test]
    fn the_kv_cache_declaration_is_found_in_vllms_order() {
        let fp8 = Some(DeclaredKvCache::Fp8);
        for (text, method, kv) in [
            (
                r#"{"quant_method":"modelopt","kv_cache_scheme":{"num_bits":8,"type":"float","dynamic":false}}"#,
                "modelopt",
                fp8.clone(),
            ),
            (
                r#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}}"#,
                "modelopt",
                fp8.clone(),
            ),
            (
                r#"{"producer":{"name":"modelopt"},"quantization":{"kv_cache_quant_algo":null}}"#,
                "modelopt",
                None,
            ),
            (r#"{"quant_method":"compressed-tensors","kv_cache_scheme":null}"#, "compressed-tensors", None),
            (
                r#"{"quant_method":"modelopt","kv_cache_quant_algo":"NVFP4"}"#,
                "modelopt",
                Some(DeclaredKvCache::Nvfp4),
            ),
            (
                r#"{"quant_method":"modelopt","kv_cache_quant_algo":"INT3"}"#,
                "modelopt",
                Some(DeclaredKvCache::Other("INT3".to_owned())),
            ),
        ] {
            let map = serde_json::from_str(text).expect(text);
            let found = parse_quantization(&map, "config.json").expect(text);
            assert_eq!((found.method.as_str(), found.kv_cache), (method, kv), "{text}");
        }
        assert_eq!(parse_quantization(&serde_json::Map::new(), "x"), None);
    }
}
