//! What a checkpoint declares about its quantization, and that of the KV cache.

use serde_json::{Map, Value};

use super::model::{DeclaredKvCache, Quantization};

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
    Some(Quantization { method, kv_cache, kv_cache_source })
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
