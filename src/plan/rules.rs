//! Things worth a warning, as data: `rules.toml` in the language of predicates. And the places that a
//! profile was made for.

use toml::de::DeTable;

use super::error::PlanError;
use super::make::warning;
use super::model::PlanWarning;
use crate::config::{ConfigError, Predicate, Section, Settings, Source, Truth};
use crate::facts::FactSet;

const FILE: &str = "src/plan/rules.toml";
const TEXT: &str = include_str!("rules.toml");

struct Rule {
    code: String,
    text: String,
    when: Predicate,
}

fn parse_rules(file: &str, text: &str) -> Result<Vec<Rule>, ConfigError> {
    let source = Source { file, text };
    let parsed = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: source.place(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let top = Section::new(source, "", parsed.get_ref());
    let mut rules = Vec::new();
    for section in top.sections("rule")? {
        let missing = |key: &str| ConfigError::BadValue {
            place: section.place(),
            key: format!("rule.{key}"),
            message: "is missing".to_owned(),
        };
        let code = section.text("code")?.ok_or_else(|| missing("code"))?.value;
        let text = section.text("text")?.ok_or_else(|| missing("text"))?.value;
        let when = section.predicate("when")?.ok_or_else(|| missing("when"))?.value;
        section.texts("links")?;
        section.finish()?;
        rules.push(Rule { code, text, when });
    }
    top.finish()?;
    Ok(rules)
}

/// Warnings that the facts call for.
pub(super) fn rule_warnings(facts: &FactSet) -> Vec<PlanWarning> {
    let rules = parse_rules(FILE, TEXT).unwrap_or_else(|error| unreachable!("an embedded file: {error}"));
    let holding = rules.into_iter().filter(|rule| rule.when.judge(facts).is_true());
    holding.map(|rule| warning(&rule.code, &rule.text)).collect()
}

/// A profile on something else than it was made for: shown, or refused when it is strict.
pub(super) fn check_made_for(settings: &Settings, facts: &FactSet) -> Result<Vec<PlanWarning>, PlanError> {
    let mut warnings = Vec::new();
    for (condition, place) in &settings.made_for.conditions {
        match condition.judge(facts) {
            Truth::True => {}
            Truth::False(why) if settings.made_for.strict => {
                return Err(PlanError::ProfileMismatch { place: place.clone(), why });
            }
            Truth::False(why) => {
                let text = format!("{place}: the profile was made for something else: {why}");
                warnings.push(warning("profile-mismatch", &text));
            }
            Truth::Unknown(why) => {
                let text = format!("{place}: whether the profile was made for this is not known: {why}");
                warnings.push(warning("profile-mismatch", &text));
            }
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::{FILE, TEXT, parse_rules, rule_warnings};
    use crate::facts::{FactSet, FactValue};

    #[test]
    fn every_rule_is_whole() {
        let rules = parse_rules(FILE, TEXT).unwrap_or_else(|error| panic!("{error}"));
        assert!(rules.len() >= 2);
        for rule in rules {
            assert!(
                rule.code.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c.is_ascii_digit()),
                "{}",
                rule.code
            );
        }
    }

    #[test]
    fn nvfp4_is_native_on_ten_alone() {
        for (capability, warned) in [("12.0", true), ("10.0", false), ("10.3", false), ("9.0", true)] {
            let mut facts = FactSet::default();
            facts.set("kv.dtype", Some(FactValue::Text("nvfp4".to_owned())));
            facts.set(
                "gpu.compute_capability",
                Some(FactValue::Capability(capability.parse().expect("good"))),
            );
            let codes: Vec<String> = rule_warnings(&facts).into_iter().map(|warning| warning.code).collect();
            assert_eq!(codes.contains(&"nvfp4-kv-not-native".to_owned()), warned, "{capability}");
        }
    }
}
