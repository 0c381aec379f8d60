//! What the command line and the environment say about a launch, before it is merged.

use std::collections::BTreeMap;

use serde_json::Value;

use super::env_vars;
use super::error::ConfigError;
use super::name::DeploymentName;
use super::origin::{Origin, Setting};
use super::profile::check_option_name;

/// Flags of a launch as typed; `None` was not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaunchFlags {
    /// Model directory or id.
    pub model: Option<String>,
    /// `--name`.
    pub name: Option<DeploymentName>,
    /// `--context`.
    pub context: Option<String>,
    /// `--trust-remote-code`.
    pub trust_remote_code: bool,
    /// `--tp`.
    pub tp: Option<u32>,
    /// `--pp`.
    pub pp: Option<u32>,
    /// `--gpus`.
    pub gpus: Option<String>,
    /// `--engine`.
    pub engine: Option<String>,
    /// `--port`.
    pub port: Option<u16>,
    /// `--host`.
    pub host: Option<String>,
    /// `--kv-cache-dtype`.
    pub kv_cache_dtype: Option<String>,
    /// `--set`.
    pub set: Vec<(String, String)>,
    /// `--max-attempts`.
    pub max_attempts: Option<u32>,
    /// `--patches`.
    pub patches: Option<String>,
    /// `--force-preflight`.
    pub force_preflight: Vec<String>,
    /// `--no-smoke`.
    pub no_smoke: bool,
    /// What stands after `--`.
    pub vllm_flags: Vec<String>,
}

/// Values of one source, all still texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Typed {
    pub options: BTreeMap<String, Setting<Value>>,
    pub context: Option<Setting<String>>,
    pub gpus: Option<Setting<String>>,
    pub engine: Option<Setting<String>>,
    pub name: Option<Setting<String>>,
    pub max_attempts: Option<Setting<String>>,
    pub patches: Option<Setting<String>>,
}

/// Values of the environment.
pub(super) fn read_env(env: &BTreeMap<String, String>) -> Result<Typed, ConfigError> {
    let get = |name: &str| {
        let value = env.get(name).filter(|value| !value.is_empty())?;
        Some(Setting::new(value.clone(), Origin::env(name)))
    };
    let mut typed = Typed {
        context: get(env_vars::CONTEXT),
        gpus: get(env_vars::GPUS),
        engine: get(env_vars::ENGINE),
        name: get(env_vars::NAME),
        max_attempts: get(env_vars::MAX_ATTEMPTS),
        patches: get(env_vars::PATCHES),
        ..Typed::default()
    };
    if let Some(list) = get(env_vars::SET) {
        let fail = || ConfigError::BadValue {
            place: env_vars::SET.to_owned(),
            key: env_vars::SET.to_owned(),
            message: "must be `KEY=VALUE` pairs separated by spaces, quoted as in a shell".to_owned(),
        };
        for pair in shlex::split(&list.value).ok_or_else(fail)? {
            let (key, value) = pair.split_once('=').ok_or_else(fail)?;
            add_option(&mut typed.options, key, value, list.origin.clone())?;
        }
    }
    for (variable, option) in [
        (env_vars::TP, "tensor_parallel_size"),
        (env_vars::PP, "pipeline_parallel_size"),
        (env_vars::PORT, "port"),
        (env_vars::HOST, "host"),
        (env_vars::KV_CACHE_DTYPE, "kv_cache_dtype"),
    ] {
        if let Some(setting) = get(variable) {
            add_option(&mut typed.options, option, &setting.value, setting.origin)?;
        }
    }
    Ok(typed)
}

/// Values of the flags; `--set` first, so that a flag of its own wins over it.
pub(super) fn read_flags(flags: &LaunchFlags) -> Result<Typed, ConfigError> {
    let text = |value: &Option<String>, name: &str| {
        value.clone().map(|value| Setting::new(value, Origin::flag(name)))
    };
    let mut typed = Typed {
        context: text(&flags.context, "--context"),
        gpus: text(&flags.gpus, "--gpus"),
        engine: text(&flags.engine, "--engine"),
        name: flags.name.as_ref().map(|name| Setting::new(name.to_string(), Origin::flag("--name"))),
        max_attempts: text(&flags.max_attempts.map(|n| n.to_string()), "--max-attempts"),
        patches: text(&flags.patches, "--patches"),
        ..Typed::default()
    };
    for (key, value) in &flags.set {
        add_option(&mut typed.options, key, value, Origin::flag(format!("--set {key}")))?;
    }
    let numbers = [
        (flags.tp.map(|n| n.to_string()), "--tp", "tensor_parallel_size"),
        (flags.pp.map(|n| n.to_string()), "--pp", "pipeline_parallel_size"),
        (flags.port.map(|n| n.to_string()), "--port", "port"),
        (flags.host.clone(), "--host", "host"),
        (flags.kv_cache_dtype.clone(), "--kv-cache-dtype", "kv_cache_dtype"),
        (flags.trust_remote_code.then(|| "true".to_owned()), "--trust-remote-code", "trust_remote_code"),
    ];
    for (value, flag, option) in numbers {
        if let Some(value) = value {
            add_option(&mut typed.options, option, &value, Origin::flag(flag))?;
        }
    }
    Ok(typed)
}

fn add_option(
    options: &mut BTreeMap<String, Setting<Value>>,
    key: &str,
    value: &str,
    origin: Origin,
) -> Result<(), ConfigError> {
    let name = key.replace('-', "_");
    check_option_name(&name, origin.place())?;
    options.insert(name, Setting::new(typed_value(value), origin));
    Ok(())
}

/// The JSON value that a text most likely means: numbers, booleans, lists and objects as such.
fn typed_value(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

/// vLLM's own short flags for options that a plan depends on.
const SHORT: &[(&str, &str)] =
    &[("-tp", "tensor_parallel_size"), ("-pp", "pipeline_parallel_size"), ("-dp", "data_parallel_size")];

/// Options that decide where the server is and what kdeploy may expect of it: they are read out of
/// the flags after `--`, so that the plan stays true.
const PLANNED_BY_KDEPLOY: &[&str] = &[
    "host",
    "port",
    "served_model_name",
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "dtype",
    "revision",
    "shutdown_timeout",
    "trust_remote_code",
];

/// Flags after `--`, parted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PassedThrough {
    /// Options that the plan depends on.
    pub options: BTreeMap<String, Setting<Value>>,
    /// The rest, in order, as given.
    pub rest: Vec<String>,
    /// Names of the rest, with underscores.
    pub rest_names: Vec<String>,
}

/// Parts the flags after `--`.
pub(super) fn read_passed_through(flags: &[String]) -> Result<PassedThrough, ConfigError> {
    let mut out = PassedThrough::default();
    let mut words = flags.iter().peekable();
    while let Some(word) = words.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with('-') => (flag, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let short = SHORT.iter().find(|(short, _)| *short == flag).map(|(_, name)| (*name).to_owned());
        let long = flag.strip_prefix("--").map(|name| name.replace('-', "_"));
        let Some(name) = short.or(long) else {
            out.rest.push(word.clone());
            continue;
        };
        if super::error::is_secret(&name) {
            return Err(ConfigError::Secret { place: "after `--`".to_owned(), key: flag.to_owned() });
        }
        out.rest_names.push(name.clone());
        if !PLANNED_BY_KDEPLOY.contains(&name.as_str()) {
            out.rest.push(word.clone());
            continue;
        }
        let value = match inline {
            Some(value) => typed_value(&value),
            None if name == "trust_remote_code" => Value::Bool(true),
            None => {
                words.next_if(|next| !next.starts_with("--")).map_or(Value::Bool(true), |v| typed_value(v))
            }
        };
        out.rest_names.pop();
        out.options.insert(name, Setting::new(value, Origin::flag(format!("`{flag}` after `--`"))));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::{read_env, read_passed_through};
    use crate::config::ConfigError;
    use std::collections::BTreeMap;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_a_plan_depends_on_is_read_out_of_the_passed_flags() {
        let passed = read_passed_through(&words(
            "--enforce-eager --port 9000 -tp 2 --max-num-seqs=4 --served-model-name=x --compilation-config {\"a\":1}",
        ))
        .expect("good");
        assert_eq!(passed.rest, words("--enforce-eager --max-num-seqs=4 --compilation-config {\"a\":1}"));
        assert_eq!(passed.rest_names, ["enforce_eager", "max_num_seqs", "compilation_config"]);
        assert_eq!(passed.options["port"].value, 9000);
        assert_eq!(passed.options["tensor_parallel_size"].value, 2);
        assert_eq!(passed.options["served_model_name"].value, "x");
    }

    #[test]
    fn secrets_are_refused_wherever_they_are_typed() {
        for text in ["--api-key s3cr3t", "--api-key=s3cr3t", "--hf-token s3cr3t"] {
            let error = read_passed_through(&words(text)).expect_err(text);
            assert!(matches!(error, ConfigError::Secret { .. }) && !error.to_string().contains("s3cr3t"));
        }
        let env = BTreeMap::from([("KDEPLOY_SET".to_owned(), "api_key=s3cr3t".to_owned())]);
        assert!(matches!(read_env(&env), Err(ConfigError::Secret { .. })));
    }
}
