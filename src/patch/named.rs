//! Facts of a checkpoint under the names that predicates use.

use crate::facts::{
    AttentionKind, DeclaredKvCache, FactSet, FactValue, ModelFacts, Quantization, covers, parse_json_object,
    parse_quantization,
};

/// Everything that predicates can ask about a checkpoint. What is not known is left out.
#[must_use]
pub fn checkpoint_facts(model: &ModelFacts) -> FactSet {
    let mut facts = FactSet::default();
    facts.set("model.files", (!model.entries.is_empty()).then(|| FactValue::List(names(model))));
    let python = model.entries.iter().filter(|entry| entry.name.ends_with(".py"));
    facts.set("model.remote_code_linked", Some(FactValue::Flag(python.clone().any(|entry| entry.is_link))));
    let Some(config) = &model.config else { return facts };
    let text = |value: &Option<String>| value.clone().map(FactValue::Text);
    facts.set("model.architecture", text(&config.architecture));
    facts.set("model.type", text(&config.model_type));
    facts.set("model.dtype", text(&config.dtype));
    facts.set("model.attention", Some(FactValue::Text(AttentionKind::of(config).name().to_owned())));
    facts.set("model.needs_remote_code", Some(FactValue::Flag(config.needs_remote_code)));
    let quantization = config.quantization.as_ref();
    facts.set(
        "model.quantization",
        Some(
            quantization
                .map_or(FactValue::Nothing, |quantization| FactValue::Text(quantization.method.clone())),
        ),
    );
    let declared = quantization.and_then(|quantization| quantization.kv_cache.as_ref());
    facts.set("model.kv_cache_dtype", Some(declared.map_or(FactValue::Nothing, kv_name)));
    facts.set("model.kv_cache_quant_algo", Some(declared.map_or(FactValue::Nothing, kv_algo)));
    facts.set("model.quant_files_agree", files_agree(model, quantization).map(FactValue::Flag));
    let excluded = quantization.map(|quantization| quantization.excluded.as_slice()).unwrap_or_default();
    set_head(&mut facts, model, excluded);
    let forgotten = model.marks.forgotten_prediction(excluded);
    facts.set("model.mtp_forgotten", Some(FactValue::Flag(!forgotten.is_empty())));
    facts.set("model.mtp_missing", Some(FactValue::List(forgotten)));
    facts
}

fn names(model: &ModelFacts) -> Vec<String> {
    model.entries.iter().map(|entry| entry.name.clone()).collect()
}

fn kv_name(declared: &DeclaredKvCache) -> FactValue {
    FactValue::Text(match declared {
        DeclaredKvCache::Fp8 => "fp8".to_owned(),
        DeclaredKvCache::Nvfp4 => "nvfp4".to_owned(),
        DeclaredKvCache::Other(name) => name.clone(),
    })
}

fn kv_algo(declared: &DeclaredKvCache) -> FactValue {
    FactValue::Text(match declared {
        DeclaredKvCache::Fp8 => "FP8".to_owned(),
        DeclaredKvCache::Nvfp4 => "NVFP4".to_owned(),
        DeclaredKvCache::Other(name) => name.clone(),
    })
}

/// Do both files say the same of the KV cache? `None` where there is only one of them.
fn files_agree(model: &ModelFacts, quantization: Option<&Quantization>) -> Option<bool> {
    let quantization = quantization?;
    // The legacy layout: the file is the only one that speaks.
    let object = parse_json_object(model.texts.get("hf_quant_config.json")?).ok()?;
    let config = parse_json_object(model.texts.get("config.json")?).ok()?;
    let speaks = config.contains_key("quantization_config")
        || config.get("text_config").is_some_and(|text| text.get("quantization_config").is_some());
    let other = parse_quantization(&object, "hf_quant_config.json")?;
    speaks.then_some(other.kv_cache == quantization.kv_cache)
}

fn set_head(facts: &mut FactSet, model: &ModelFacts, excluded: &[String]) {
    let Some(quantised) = model.marks.head_is_quantised() else { return };
    facts.set("model.lm_head_quantised", Some(FactValue::Flag(quantised)));
    let is_covered = model.marks.heads().any(|head| covers(excluded, head));
    facts.set("model.lm_head_excluded", Some(FactValue::Flag(is_covered)));
    let own = |pattern: &&String| {
        let bare = pattern.trim_matches(|c| matches!(c, '*' | '.'));
        bare.rsplit('.').next() == Some("lm_head")
    };
    facts
        .set("model.lm_head_patterns", Some(FactValue::List(excluded.iter().filter(own).cloned().collect())));
}
