//! All facts of a plan under the names that predicates use.

use super::command::Options;
use super::kv_type::{kv_type, model_dtype};
use crate::config::Settings;
use crate::facts::{FactSet, FactValue, Facts, Gpu};
use crate::patch::checkpoint_facts;

/// Facts of model, engine, GPUs and options.
pub(super) fn named_facts(settings: &Settings, facts: &Facts, gpus: &[&Gpu], options: &Options) -> FactSet {
    let mut named = checkpoint_facts(&facts.model);
    let text = |text: &str| Some(FactValue::Text(text.to_owned()));
    named.set("engine.vllm", Some(FactValue::Version(facts.engine.version.clone())));
    named.set("engine.device", text(if facts.engine.is_cpu_build { "cpu" } else { "cuda" }));
    named.set("options.trust_remote_code", Some(FactValue::Flag(settings.trust_remote_code.value)));
    named.set("gpu.count", Some(FactValue::Number(gpus.len() as u64)));
    if gpus.is_empty() {
        for name in ["gpu.name", "gpu.compute_capability", "gpu.memory", "gpu.nvlink"] {
            named.set(name, Some(FactValue::Nothing));
        }
    } else {
        let first = gpus.first().and_then(|gpu| gpu.name.clone());
        named.set("gpu.name", first.map(FactValue::Text));
        let weakest = gpus.iter().filter_map(|gpu| gpu.compute_capability).min();
        named.set("gpu.compute_capability", weakest.map(FactValue::Capability));
        let memory = gpus.iter().filter_map(|gpu| gpu.memory_total).min();
        named.set("gpu.memory", memory.map(FactValue::Size));
        let linked = gpus.iter().map(|gpu| gpu.nvlink).reduce(|a, b| Some(a? && b?)).flatten();
        named.set("gpu.nvlink", linked.map(FactValue::Flag));
    }
    let parallel = options.whole("decode_context_parallel_size").ok().flatten().unwrap_or(1);
    named.set("kv.context_parallel", Some(FactValue::Number(parallel)));
    if let Some(config) = &facts.model.config {
        let own = model_dtype(config, options);
        named.set("model.dtype", own.clone().map(FactValue::Text));
        if let Some(kv) = kv_type(config, facts, gpus, options) {
            let dtype = if kv.dtype == "auto" { own } else { Some(kv.dtype.clone()) };
            named.set("kv.dtype", dtype.map(FactValue::Text));
            named.set("kv.supported", kv.is_supported().map(FactValue::Flag));
        }
    }
    named
}
