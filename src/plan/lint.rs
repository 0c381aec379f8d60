//! Options and variables held against what the installed engine knows.

use super::error::PlanError;
use super::make::warning;
use super::model::PlanWarning;
use crate::config::{Settings, nearest};
use crate::facts::EngineFacts;

/// An unknown option is an error, since the engine would refuse it after its imports; an unknown
/// variable and a deprecated option are warnings, since the engine goes on.
pub(super) fn lint(settings: &Settings, engine: &EngineFacts) -> Result<Vec<PlanWarning>, PlanError> {
    let schema = &engine.schema;
    let mut warnings = Vec::new();
    let given =
        settings.vllm.iter().map(|(name, setting)| (name.clone(), setting.origin.place().to_owned(), false));
    let passed = settings.passed_names.iter().map(|name| (name.clone(), "after `--`".to_owned(), true));
    for (name, place, as_flag) in given.chain(passed) {
        let shown =
            |name: &str| if as_flag { format!("--{}", name.replace('_', "-")) } else { name.to_owned() };
        if !schema.knows_option(&name) {
            let near = nearest(&name, schema.options.iter().map(String::as_str));
            return Err(PlanError::UnknownOption {
                place,
                key: shown(&name),
                version: engine.version.to_string(),
                nearest: near.map(|near| shown(&near)),
            });
        }
        if let Some(sentence) = schema.deprecated.get(&name) {
            warnings.push(warning("deprecated-option", &format!("{place}: `{}` {sentence}", shown(&name))));
        }
    }
    for (option, names) in &schema.names {
        let Some(setting) = settings.vllm.get(*option) else { continue };
        let Some(given) = setting.value.as_str().filter(|given| !names.contains(*given)) else { continue };
        // A plugin may bring more names than the engine registers.
        if settings.vllm.contains_key("tool_parser_plugin")
            || settings.vllm.contains_key("reasoning_parser_plugin")
        {
            continue;
        }
        let near = nearest(given, names.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(PlanError::BadOption {
            place: setting.origin.place().to_owned(),
            key: (*option).to_owned(),
            message: format!("is `{given}`, which vLLM {} does not have{hint}", engine.version),
        });
    }
    for (name, setting) in settings.env.iter().filter(|(name, _)| name.starts_with("VLLM_")) {
        if schema.variables.is_empty() || schema.variables.contains(name) {
            continue;
        }
        let near = nearest(name, schema.variables.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let text =
            format!("{}: vLLM {} does not read `{name}`{hint}", setting.origin.place(), engine.version);
        warnings.push(warning("unknown-variable", &text));
    }
    Ok(warnings)
}
