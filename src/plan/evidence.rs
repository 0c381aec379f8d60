//! What the engine's log must show when patches are in effect or a KV cache type was asked for: a
//! positive line, not the absence of an error.

use regex::Regex;

use super::model::Plan;

/// A line is shown no longer than this.
const SHOWN: usize = 160;

/// Looks at a log line by line.
#[derive(Debug, Clone)]
pub struct EvidenceScan {
    /// `kv_cache_dtype=…` in the line of the engine's configuration.
    config: Option<Regex>,
    accepted: Vec<String>,
    /// Must the line be there?
    required: bool,
    dtype: String,
    log: Vec<(Regex, String, bool)>,
    never: Vec<(Regex, String)>,
    config_seen: bool,
    verdict: EvidenceVerdict,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvidenceVerdict {
    /// Lines that confirm the plan: their number and the part that does.
    pub confirmed: Vec<(u64, String)>,
    /// What contradicts it or is missing; the line, where there is one.
    pub problems: Vec<(Option<u64>, String)>,
}

impl EvidenceScan {
    /// For the log of an engine that was started with this plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let kv = plan.kv_type.as_ref().filter(|kv| !kv.engine_says.is_empty());
        let pattern = |text: &String| Regex::new(text).ok();
        let all = |pick: fn(&super::PlannedPatch) -> &Vec<String>| {
            plan.patches.iter().flat_map(move |patch| {
                pick(patch).iter().filter_map(move |text| Some((pattern(text)?, patch.name.clone())))
            })
        };
        Self {
            config: kv.and_then(|_| Regex::new(r"LLM engine .*\bkv_cache_dtype=([\w.]+)").ok()),
            accepted: kv.map(|kv| kv.engine_says.clone()).unwrap_or_default(),
            required: kv.is_some_and(|kv| kv.confirmed),
            dtype: kv.map(|kv| kv.dtype.clone()).unwrap_or_default(),
            log: all(|patch| &patch.log).map(|(regex, name)| (regex, name, false)).collect(),
            never: all(|patch| &patch.never).collect(),
            config_seen: false,
            verdict: EvidenceVerdict::default(),
        }
    }

    /// Takes a line; numbers begin at 1.
    pub fn line(&mut self, number: u64, line: &str) {
        if let Some(found) = self.config.as_ref().and_then(|regex| regex.captures(line))
            && let Some(value) = found.get(1)
        {
            let said = format!("kv_cache_dtype={}", value.as_str());
            if self.accepted.iter().any(|accepted| accepted == value.as_str()) {
                if !self.config_seen {
                    self.verdict.confirmed.push((number, said));
                }
            } else {
                let text = format!("a KV cache of {} was planned, the engine says {said}", self.dtype);
                self.verdict.problems.push((Some(number), text));
            }
            self.config_seen = true;
        }
        for (regex, _, seen) in self.log.iter_mut().filter(|(_, _, seen)| !*seen) {
            if let Some(found) = regex.find(line) {
                *seen = true;
                let text = shortened(found.as_str());
                if !self.verdict.confirmed.iter().any(|(line, known)| *line == number && *known == text) {
                    self.verdict.confirmed.push((number, text));
                }
            }
        }
        for (regex, patch) in &self.never {
            if let Some(found) = regex.find(line) {
                let text = format!("patch `{patch}` rules out `{}`", shortened(found.as_str()));
                self.verdict.problems.push((Some(number), text));
            }
        }
    }

    /// The end of the log.
    #[must_use]
    pub fn finish(mut self) -> EvidenceVerdict {
        if self.required && !self.config_seen {
            let text = format!("no line of the log confirms a KV cache of {}", self.dtype);
            self.verdict.problems.push((None, text));
        }
        for (regex, patch, _) in self.log.iter().filter(|(_, _, seen)| !*seen) {
            let text = format!("patch `{patch}` is not confirmed: no line of the log matches `{regex}`");
            self.verdict.problems.push((None, text));
        }
        self.verdict
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::{EvidenceScan, EvidenceVerdict};
    use crate::plan::make::tests::plan_for_tests;
    use crate::plan::{PatchKind, Plan, PlannedKvType, PlannedPatch};

    fn plan(says: &[&str], confirmed: bool, log: &[&str], never: &[&str]) -> Plan {
        let texts = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let mut plan = plan_for_tests("");
        plan.kv_type = Some(PlannedKvType {
            dtype: "bfloat16".to_owned(),
            engine_says: texts(says),
            confirmed,
            ..PlannedKvType::default()
        });
        plan.patches = vec![PlannedPatch {
            name: "p".to_owned(),
            kind: PatchKind::Flag,
            why: String::new(),
            links: Vec::new(),
            until: None,
            flag: None,
            log: texts(log),
            never: texts(never),
        }];
        plan
    }

    fn scan(plan: &Plan, log: &str) -> EvidenceVerdict {
        let mut scan = EvidenceScan::new(plan);
        for (number, line) in (1..).zip(log.lines()) {
            scan.line(number, line);
        }
        scan.finish()
    }

    const LOG: &str = "INFO x\n(EngineCore pid=7) INFO 12-01 [core.py:113] Initializing a V1 LLM engine (v0.32.0) with config: model='m', quantization=None, kv_cache_dtype=bfloat16, device_config=cpu\n";

    #[test]
    fn a_positive_line_is_what_counts() {
        let good = scan(&plan(&["bfloat16"], true, &[r"\bkv_cache_dtype=bfloat16\b"], &["fp8"]), LOG);
        assert_eq!(good.confirmed, [(2, "kv_cache_dtype=bfloat16".to_owned())]);
        assert!(good.problems.is_empty());
        let other = scan(&plan(&["auto"], true, &[], &[]), LOG);
        assert_eq!(other.problems.len(), 1);
        assert!(other.problems[0].1.contains("the engine says kv_cache_dtype=bfloat16"), "{other:?}");
        assert!(
            !scan(&plan(&["auto"], false, &[], &[]), LOG).problems.is_empty(),
            "a mismatch always counts"
        );
    }

    #[test]
    fn silence_fails_what_had_to_be_confirmed() {
        let silent = "INFO nothing of that\n";
        assert!(scan(&plan(&["auto"], false, &[], &[]), silent).problems.is_empty());
        let missing = scan(&plan(&["auto"], true, &["^x$"], &[]), silent);
        assert_eq!(missing.problems.len(), 2, "{missing:?}");
        let ruled_out = scan(&plan(&[], true, &[], &["nothing"]), silent);
        assert_eq!(ruled_out.problems, [(Some(1), "patch `p` rules out `nothing`".to_owned())]);
    }
}
