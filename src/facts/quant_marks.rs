//! What the names of tensors prove about quantization: a weight with scales beside it is quantised, one
//! without is not. Only the parts are looked at whose place in exclude lists goes wrong: the output
//! projection and the layers of multi-token prediction.

use std::collections::{BTreeMap, BTreeSet};

use super::weights::Placement;

/// Names behind a module's name that mean quantised weights.
const SCALES: &[&str] = &[
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_packed",
    "input_scale",
    "qweight",
    "scales",
];

/// Modules kept at most; beyond them only the roots count.
const MAX_MODULES: usize = 4096;

/// What was seen of a module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    weight: bool,
    scale: bool,
}

/// Marks of quantization in the names of tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantMarks {
    head: BTreeMap<String, Seen>,
    /// By root (`model.layers.61`, `mtp`): modules with a matrix.
    prediction: BTreeMap<String, BTreeMap<String, Seen>>,
    modules: usize,
}

impl QuantMarks {
    /// Looks at a tensor. `placement` and `layer` are what `classify` said, `Prediction` also for what
    /// is numbered above the model's layers; `matrix` says that it has two dimensions or more.
    pub fn add(&mut self, tensor: &str, matrix: bool, (placement, layer): (Placement, Option<u64>)) {
        if !matches!(placement, Placement::Head | Placement::Prediction) {
            return;
        }
        let Some((module, kind)) = tensor.rsplit_once('.') else { return };
        let scale = SCALES.contains(&kind);
        // Embeddings are never quantised and need no place in a list; nor do norms and routers.
        let last = module.rsplit('.').next().unwrap_or(module);
        let plain_by_nature = last.contains("norm") || matches!(last, "gate" | "embed_tokens");
        let weight = kind == "weight" && matrix;
        if plain_by_nature || !(scale || weight) {
            return;
        }
        let seen = match placement {
            Placement::Head => Some(self.head.entry(module.to_owned()).or_default()),
            _ => self.slot(root_of(module, layer), module),
        };
        if let Some(seen) = seen {
            seen.weight |= !scale;
            seen.scale |= scale;
        }
    }

    fn slot(&mut self, root: String, module: &str) -> Option<&mut Seen> {
        let modules = self.prediction.entry(root).or_default();
        if !modules.contains_key(module) {
            if self.modules >= MAX_MODULES {
                return None;
            }
            self.modules += 1;
        }
        Some(modules.entry(module.to_owned()).or_default())
    }

    /// Is the output projection quantised? `None` when the checkpoint has none of its own.
    #[must_use]
    pub fn head_is_quantised(&self) -> Option<bool> {
        (!self.head.is_empty()).then(|| self.head.values().any(|seen| seen.scale))
    }

    /// Names of the output projection.
    pub fn heads(&self) -> impl Iterator<Item = &str> {
        self.head.keys().map(String::as_str)
    }

    /// Patterns for the modules of multi-token prediction that are stored unquantised and that no
    /// pattern of `excluded` covers: one for a whole layer where nothing in it is quantised, otherwise
    /// one for each module.
    #[must_use]
    pub fn forgotten_prediction(&self, excluded: &[String]) -> Vec<String> {
        let mut patterns = BTreeSet::new();
        for (root, modules) in &self.prediction {
            let plain: Vec<&String> =
                modules.iter().filter(|(_, seen)| seen.weight && !seen.scale).map(|(name, _)| name).collect();
            let forgotten: Vec<&&String> = plain.iter().filter(|module| !covers(excluded, module)).collect();
            if forgotten.is_empty() {
                continue;
            }
            if plain.len() == modules.len() {
                patterns.insert(format!("{root}*"));
            } else {
                patterns.extend(forgotten.into_iter().map(|module| (*module).clone()));
            }
        }
        patterns.into_iter().collect()
    }
}

/// What a pattern for the whole would name: `mtp` of `mtp.layers.0.mlp.gate_proj`, `model.layers.61` of
/// `model.layers.61.mlp.gate_proj`.
fn root_of(module: &str, layer: Option<u64>) -> String {
    let mut parts = Vec::new();
    for part in module.split('.') {
        parts.push(part);
        let named = ["mtp", "nextn", "eagle"].iter().any(|name| part.contains(name));
        if named || part.parse().ok() == layer && layer.is_some() {
            break;
        }
    }
    parts.join(".")
}

/// Does an exclude list cover a module? vLLM 0.32 `modelopt.py`, `is_layer_excluded`: the same name, a
/// part of it, or a shell pattern.
#[must_use]
pub fn covers(excluded: &[String], module: &str) -> bool {
    excluded.iter().any(|pattern| module.contains(pattern.as_str()) || matches_shell(pattern, module))
}

/// A shell pattern with `*` and `?` (Python's `fnmatch`; bracket sets are not used by exporters).
fn matches_shell(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || Some(c) == name.get(n) => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::{QuantMarks, covers, matches_shell};
    use crate::facts::WeightInventory;

    fn marks(tensors: &[&str]) -> QuantMarks {
        let mut marks = QuantMarks::default();
        for tensor in tensors {
            let placed = WeightInventory::default().add(tensor, 1, Some(61));
            marks.add(tensor, tensor.ends_with(".weight"), placed);
        }
        marks
    }

    #[test]
    fn scales_beside_a_weight_mean_quantised() {
        for (tensors, expected) in [
            (&["lm_head.weight"][..], Some(false)),
            (&["lm_head.weight", "lm_head.weight_scale", "lm_head.weight_scale_2"], Some(true)),
            (&["language_model.lm_head.weight", "language_model.lm_head.input_scale"], Some(true)),
            (&["model.layers.0.mlp.up_proj.weight"], None),
        ] {
            assert_eq!(marks(tensors).head_is_quantised(), expected, "{tensors:?}");
        }
    }

    #[test]
    fn forgotten_layers_of_prediction_are_found() {
        let plain = marks(&[
            "model.layers.60.mlp.up_proj.weight",
            "model.layers.60.mlp.up_proj.weight_scale",
            "model.layers.61.self_attn.o_proj.weight",
            "model.layers.61.mlp.experts.3.up_proj.weight",
            "model.layers.61.input_layernorm.weight",
        ]);
        let none: [String; 0] = [];
        assert_eq!(plain.forgotten_prediction(&none), ["model.layers.61*"]);
        assert!(plain.forgotten_prediction(&["model.layers.61*".to_owned()]).is_empty());
        assert!(plain.forgotten_prediction(&["model.layers.61".to_owned()]).is_empty());
        let named = marks(&["mtp.layers.0.mlp.up_proj.weight", "mtp.fc.weight"]);
        assert_eq!(named.forgotten_prediction(&["lm_head".to_owned()]), ["mtp*"]);
        let mixed =
            marks(&["mtp.fc.weight", "mtp.layers.0.up_proj.weight", "mtp.layers.0.up_proj.weight_scale"]);
        assert_eq!(mixed.forgotten_prediction(&none), ["mtp.fc"]);
        assert!(marks(&["mtp.fc.weight", "mtp.fc.weight_scale"]).forgotten_prediction(&none).is_empty());
    }

    #[test]
    fn lists_cover_as_the_engine_reads_them() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        assert!(covers(&list(&["lm_head*"]), "lm_head"));
        assert!(covers(&list(&["*.self_attn*"]), "model.layers.1.self_attn.o_proj"));
        assert!(covers(&list(&["self_attn"]), "model.layers.1.self_attn.o_proj"));
        assert!(!covers(&list(&["model.layers.6.*"]), "model.layers.61.mlp"));
        assert!(matches_shell("a?c*e", "abcde") && !matches_shell("a?c", "abcd") && matches_shell("*", ""));
    }
}
