//! `[match]` of a profile: where it was made for, as conditions over facts.

use serde_json::Value;

use super::error::ConfigError;
use super::predicate::Predicate;
use super::toml_section::Section;

/// Where a profile was made for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProfileMatch {
    /// Conditions with their places.
    pub conditions: Vec<(Predicate, String)>,
    /// Is a mismatch fatal?
    pub strict: bool,
}

/// Keys and the conditions they stand for.
const SHORT: &[(&str, &str)] = &[
    ("gpu", "gpu.name contains"),
    ("count", "gpu.count =="),
    ("compute_capability", "gpu.compute_capability =="),
    ("attention", "model.attention =="),
    ("architecture", "model.architecture =="),
];

/// Reads the section; `when` takes conditions in full.
pub(super) fn read_match(section: Section<'_>) -> Result<ProfileMatch, ConfigError> {
    let mut found = ProfileMatch::default();
    for (key, condition) in SHORT {
        let Some(setting) = section.json(key)? else { continue };
        let place = setting.origin.detail;
        let literal = match &setting.value {
            Value::String(text) => format!("\"{text}\""),
            Value::Number(number) => number.to_string(),
            _ => {
                return Err(ConfigError::BadValue {
                    place,
                    key: format!("match.{key}"),
                    message: "must be a text or a number".to_owned(),
                });
            }
        };
        let predicate = Predicate::parse(&format!("{condition} {literal}")).map_err(|message| {
            ConfigError::BadValue { place: place.clone(), key: format!("match.{key}"), message }
        })?;
        found.conditions.push((predicate, place));
    }
    if let Some(when) = section.predicate("when")? {
        found.conditions.push((when.value, when.origin.detail));
    }
    found.strict = section.boolean("strict")?.is_some_and(|strict| strict.value);
    section.finish()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use crate::config::parse_profile;

    #[test]
    fn short_keys_and_full_conditions_are_the_same_language() {
        let profile = parse_profile(
            "p.toml",
            "schema = 1\n[match]\ngpu = \"RTX PRO 6000\"\ncount = 8\ncompute_capability = \"12.0\"\nwhen = \"engine.vllm >= 0.15\"\nstrict = true\n",
        )
        .expect("good");
        let texts: Vec<String> = profile
            .made_for
            .conditions
            .iter()
            .map(|(predicate, place)| format!("{place} {predicate}"))
            .collect();
        assert_eq!(
            texts,
            [
                "p.toml:3 gpu.name contains RTX PRO 6000",
                "p.toml:4 gpu.count == 8",
                "p.toml:5 gpu.compute_capability == 12.0",
                "p.toml:6 engine.vllm >= 0.15"
            ]
        );
        assert!(profile.made_for.strict);
        for (line, expected) in [
            ("count = \"many\"", "p.toml:3: `match.count` compares `gpu.count` with `many`"),
            ("gpus = 8", "p.toml:3: unknown key `match.gpus`; did you mean `match.gpu`?"),
            ("when = \"gpu.cont == 8\"", "p.toml:3: `match.when` names no fact"),
        ] {
            let message = parse_profile("p.toml", &format!("schema = 1\n[match]\n{line}\n")).expect_err(line);
            assert!(message.to_string().contains(expected), "{line}: {message}");
        }
    }
}
