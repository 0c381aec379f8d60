//! Options and variables to the engine's command line and environment.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::error::PlanError;
use super::model::PlannedSetting;
use crate::config::{Origin, OriginKind, Setting};

/// Options of the command line with origin and reason, in a fixed order.
#[derive(Debug, Default)]
pub(super) struct Options {
    options: BTreeMap<String, (Setting<Value>, String)>,
}

impl Options {
    /// Takes over what the user set.
    pub fn from_settings(given: &BTreeMap<String, Setting<Value>>) -> Self {
        let options = given.iter().map(|(name, setting)| (name.clone(), (setting.clone(), String::new())));
        Self { options: options.collect() }
    }

    /// Sets an option; what the user set stays.
    pub fn plan(&mut self, name: &str, value: impl Into<Value>, reason: &str) {
        self.options
            .entry(name.to_owned())
            .or_insert_with(|| (Setting::new(value.into(), Origin::planned(reason)), reason.to_owned()));
    }

    /// Sets an option from a setting that has a field of its own.
    pub fn set(&mut self, name: &str, value: impl Into<Value>, origin: Origin, reason: &str) {
        self.options.insert(name.to_owned(), (Setting::new(value.into(), origin), reason.to_owned()));
    }

    pub fn whole(&self, name: &str) -> Result<Option<u64>, PlanError> {
        let Some((setting, _)) = self.options.get(name) else { return Ok(None) };
        let whole = match &setting.value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        whole.filter(|n| *n > 0).map(Some).ok_or_else(|| bad(name, setting, "must be a whole number above 0"))
    }

    /// A share between 0 and 1, in thousandths.
    pub fn thousandths(&self, name: &str) -> Result<Option<u64>, PlanError> {
        let Some((setting, _)) = self.options.get(name) else { return Ok(None) };
        let share = match &setting.value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1000")]
        let thousandths =
            share.filter(|share| *share > 0.0 && *share <= 1.0).map(|share| (share * 1000.0).round() as u64);
        thousandths.map(Some).ok_or_else(|| bad(name, setting, "must be a share above 0 and at most 1"))
    }

    /// Is a switch on?
    pub fn is_on(&self, name: &str) -> bool {
        self.options.get(name).is_some_and(|(setting, _)| match &setting.value {
            Value::Bool(on) => *on,
            Value::String(text) => text == "true",
            _ => false,
        })
    }

    /// A field of an option that is a JSON object, given as such or as a text.
    pub fn field(&self, name: &str, field: &str) -> Option<u64> {
        let (setting, _) = self.options.get(name)?;
        match &setting.value {
            Value::Object(object) => object.get(field)?.as_u64(),
            Value::String(text) => serde_json::from_str::<Value>(text).ok()?.get(field)?.as_u64(),
            _ => None,
        }
    }

    /// Does an option that is a JSON object have this field?
    pub fn has_field(&self, name: &str, field: &str) -> bool {
        self.options.get(name).is_some_and(|(setting, _)| match &setting.value {
            Value::Object(object) => object.contains_key(field),
            Value::String(text) => {
                serde_json::from_str::<Value>(text).is_ok_and(|value| value.get(field).is_some())
            }
            _ => false,
        })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name)?.0.value.as_str()
    }

    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.options.get(name).map(|(setting, _)| &setting.origin)
    }

    /// Drops planned options that the user passes in another way; returns which user settings lose.
    pub fn yield_to(&mut self, passed: &[String]) -> Vec<String> {
        let passed: BTreeSet<&str> = passed.iter().map(String::as_str).collect();
        let mut lost = Vec::new();
        self.options.retain(|name, _| {
            let negated = format!("no_{name}");
            let taken = passed.contains(name.as_str()) || passed.contains(negated.as_str());
            if taken {
                lost.push(name.clone());
            }
            !taken
        });
        lost
    }

    /// The flags: `--name value`, switches as `--name` or `--no-name`, lists as one flag with
    /// several values, objects as JSON.
    pub fn flags(&self) -> Result<Vec<String>, PlanError> {
        let mut words = Vec::new();
        for (name, (setting, _)) in &self.options {
            let flag = format!("--{}", name.replace('_', "-"));
            match &setting.value {
                Value::Bool(true) => words.push(flag),
                Value::Bool(false) => words.push(format!("--no-{}", name.replace('_', "-"))),
                Value::Null => return Err(bad(name, setting, "has no value")),
                Value::Array(items) => {
                    words.push(flag);
                    for item in items {
                        words.push(word(name, setting, item)?);
                    }
                }
                value => {
                    let value = word(name, setting, value)?;
                    // A value that looks like a flag needs the `=` form.
                    if value.starts_with('-') {
                        words.push(format!("{flag}={value}"));
                    } else {
                        words.extend([flag, value]);
                    }
                }
            }
        }
        Ok(words)
    }

    /// For the plan's list of settings.
    pub fn listed(&self) -> impl Iterator<Item = PlannedSetting> + '_ {
        self.options.iter().map(|(name, (setting, reason))| listed(name, setting, reason))
    }
}

/// One line of the plan's list of settings.
pub(super) fn listed(name: &str, setting: &Setting<Value>, reason: &str) -> PlannedSetting {
    // A planned value's origin is its reason: once is enough.
    let reason = if reason.is_empty() && setting.origin.kind == OriginKind::Planned {
        setting.origin.detail.clone()
    } else {
        reason.to_owned()
    };
    PlannedSetting {
        name: name.to_owned(),
        value: setting.value.clone(),
        origin: setting.origin.clone(),
        reason,
    }
}

fn word(name: &str, setting: &Setting<Value>, value: &Value) -> Result<String, PlanError> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains('\0') {
        return Err(bad(name, setting, "holds a NUL character"));
    }
    Ok(text)
}

fn bad(name: &str, setting: &Setting<Value>, message: &str) -> PlanError {
    PlanError::BadOption {
        place: setting.origin.place().to_owned(),
        key: name.to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use crate::config::{Origin, Setting};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn options(pairs: &[(&str, Value)]) -> Options {
        let map: BTreeMap<_, _> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Setting::new(value.clone(), Origin::flag("--set"))))
            .collect();
        Options::from_settings(&map)
    }

    #[test]
    fn values_become_flags_as_vllm_takes_them() {
        let options = options(&[
            ("a_switch", json!(true)),
            ("b_off", json!(false)),
            ("c_number", json!(4)),
            ("d_text", json!("x y")),
            ("e_list", json!(["a", 1])),
            ("f_object", json!({"mode": 3})),
            ("g_negative", json!(-1)),
        ]);
        assert_eq!(
            options.flags().expect("good"),
            [
                "--a-switch",
                "--no-b-off",
                "--c-number",
                "4",
                "--d-text",
                "x y",
                "--e-list",
                "a",
                "1",
                "--f-object",
                r#"{"mode":3}"#,
                "--g-negative=-1"
            ]
        );
    }

    #[test]
    fn what_the_user_set_stays_and_what_is_passed_wins() {
        let mut options = options(&[("max_num_seqs", json!(2))]);
        options.plan("max_num_seqs", 256, "default");
        options.plan("block_size", 16, "default");
        assert_eq!(options.whole("max_num_seqs"), Ok(Some(2)));
        assert_eq!(options.yield_to(&["block_size".to_owned(), "other".to_owned()]), ["block_size"]);
        assert_eq!(options.flags().expect("good"), ["--max-num-seqs", "2"]);
    }

    #[test]
    fn nonsense_names_its_place() {
        for value in [json!(0), json!(-1), json!("x"), json!([1])] {
            let error =
                options(&[("tensor_parallel_size", value)]).whole("tensor_parallel_size").expect_err("bad");
            assert!(error.to_string().starts_with("--set: `tensor_parallel_size` must be"), "{error}");
        }
        assert!(options(&[("x", json!("a\0b"))]).flags().is_err());
        assert!(options(&[("x", Value::Null)]).flags().is_err());
    }
}
