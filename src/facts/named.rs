//! Facts under the names that predicates use (`engine.vllm >= 0.18`, `model.attention == mla`).

use std::collections::BTreeMap;

use super::gpu::ComputeCapability;
use super::version::EngineVersion;
use crate::units::Bytes;

/// What kind of value a fact has, and so what it can be compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactKind {
    /// A word, compared as a whole.
    Text,
    /// A whole number.
    Number,
    /// A size.
    Size,
    /// A vLLM version.
    Version,
    /// A compute capability, such as 12.0.
    Capability,
    /// Yes or no.
    Flag,
    /// Several words.
    List,
}

macro_rules! fact_names {
    ($( $name:literal, $kind:ident, $meaning:literal; )*) => {
        /// Name, kind and meaning of every fact, sorted by name.
        pub const FACT_NAMES: &[(&str, FactKind, &str)] = &[ $( ($name, FactKind::$kind, $meaning), )* ];
    };
}

fact_names! {
    "engine.device", Text, "`cpu` or `cuda`: what the installed vLLM was built for.";
    "engine.vllm", Version, "Version of the installed vLLM.";
    "gpu.compute_capability", Capability, "Compute capability of the weakest GPU in use.";
    "gpu.count", Number, "GPUs in use.";
    "gpu.memory", Size, "Memory of the smallest GPU in use.";
    "gpu.name", Text, "Name of the first GPU in use.";
    "gpu.nvlink", Flag, "Are all GPUs in use linked by NVLink?";
    "kv.context_parallel", Number, "Decode context parallel size.";
    "kv.dtype", Text, "KV cache type that the engine will use: asked for, or followed from the checkpoint.";
    "kv.supported", Flag, "Does an attention backend store it? By the support table.";
    "model.architecture", Text, "First of `architectures` in config.json.";
    "model.attention", Text, "`standard`, `mla` or `mla-sparse`.";
    "model.dtype", Text, "The model's own data type.";
    "model.files", List, "Names of the checkpoint's files.";
    "model.kv_cache_dtype", Text, "KV cache type that the checkpoint declares: `fp8`, `nvfp4`, or as written.";
    "model.kv_cache_quant_algo", Text, "The same as hf_quant_config.json spells it; nothing when none is declared.";
    "model.lm_head_excluded", Flag, "Does the exclude list leave the output projection unquantised?";
    "model.lm_head_patterns", List, "Entries of the exclude list that name the output projection alone.";
    "model.lm_head_quantised", Flag, "Do scales beside the output projection show that it is quantised?";
    "model.mtp_forgotten", Flag, "Does the exclude list forget modules of multi-token prediction that are stored unquantised?";
    "model.mtp_missing", List, "The modules that it forgets, as patterns for the list.";
    "model.needs_remote_code", Flag, "Does config.json name Python code of the checkpoint?";
    "model.quant_files_agree", Flag, "Do config.json and hf_quant_config.json say the same of the KV cache?";
    "model.quantization", Text, "`quant_method` of the checkpoint.";
    "model.remote_code_linked", Flag, "Are the checkpoint's Python files links, as in a model cache?";
    "model.type", Text, "`model_type` of the text model.";
    "options.trust_remote_code", Flag, "May the model's own code run?";
}

/// Kind of a fact; `None` when there is no such fact.
#[must_use]
pub fn fact_kind(name: &str) -> Option<FactKind> {
    FACT_NAMES.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| *kind)
}

/// A value of a fact.
#[derive(Debug, Clone, PartialEq)]
pub enum FactValue {
    /// A word.
    Text(String),
    /// A whole number.
    Number(u64),
    /// A size.
    Size(Bytes),
    /// A version.
    Version(EngineVersion),
    /// A compute capability.
    Capability(ComputeCapability),
    /// Yes or no.
    Flag(bool),
    /// Several words.
    List(Vec<String>),
    /// There is none: the checkpoint declares nothing, there is no GPU.
    Nothing,
}

impl std::fmt::Display for FactValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Size(size) => size.to_string(),
            Self::Version(version) => version.to_string(),
            Self::Capability(capability) => format!("{}.{}", capability.major, capability.minor),
            Self::Flag(flag) => flag.to_string(),
            Self::List(items) if items.len() > 3 => format!("{} and {} more", items[0], items.len() - 1),
            Self::List(items) => items.join(", "),
            Self::Nothing => "none".to_owned(),
        };
        f.pad(&text)
    }
}

/// Facts by name; what is not in it is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FactSet {
    values: BTreeMap<&'static str, FactValue>,
}

impl FactSet {
    /// Sets a fact that is known; `None` leaves it unknown.
    pub fn set(&mut self, name: &'static str, value: Option<FactValue>) {
        debug_assert!(fact_kind(name).is_some(), "`{name}` is in no table");
        match value {
            Some(value) => self.values.insert(name, value),
            None => self.values.remove(name),
        };
    }

    /// Value of a fact.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FactValue> {
        self.values.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::FACT_NAMES;

    #[test]
    fn the_table_is_sorted_and_documented() {
        assert!(FACT_NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(
            FACT_NAMES.iter().all(|(name, _, meaning)| name.contains('.') && meaning.ends_with(['.', '?']))
        );
    }
}
