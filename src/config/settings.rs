//! Built-in defaults, profile, environment and flags merged; the later wins, origins are kept.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use super::context::ContextWanted;
use super::error::ConfigError;
use super::flags::{LaunchFlags, Typed, read_env, read_flags, read_passed_through};
use super::memory_item::MemoryItem;
use super::name::DeploymentName;
use super::origin::{Origin, Setting};
use super::patches_wanted::PatchesWanted;
use super::profile::Profile;
use super::profile_match::ProfileMatch;
use super::requirement::VersionRequirement;
use super::smoke_case::SmokeCase;
use crate::units::{Bytes, Tokens};

/// Everything that was asked for, with the origin of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Model directory or id.
    pub model: Setting<String>,
    /// Commit of the model.
    pub revision: Option<Setting<String>>,
    /// Name of the deployment.
    pub name: Setting<DeploymentName>,
    /// Name under which the API serves the model.
    pub served_name: Setting<String>,
    /// Consent to the model's own code.
    pub trust_remote_code: Setting<bool>,
    /// Context window wanted.
    pub context: Setting<ContextWanted>,
    /// Shorter than this the plan does not fit.
    pub context_min: Option<Setting<Tokens>>,
    /// Longer than this is never planned.
    pub context_max: Option<Setting<Tokens>>,
    /// Path or name of the engine.
    pub engine: Option<Setting<String>>,
    /// Engine versions that are accepted.
    pub engine_version: Option<Setting<VersionRequirement>>,
    /// Address to listen on.
    pub host: Setting<String>,
    /// Port to listen on.
    pub port: Setting<u16>,
    /// GPUs to use, by index.
    pub gpus: Option<Setting<Vec<u32>>>,
    /// Starts allowed in one launch.
    pub max_attempts: Setting<u32>,
    /// Deadlines.
    pub deadlines: LaunchDeadlines,
    /// Prompt of the warm-up request.
    pub warmup_prompt: Option<Setting<String>>,
    /// Output budget of the warm-up request.
    pub warmup_max_tokens: Option<Setting<Tokens>>,
    /// Questions after the warm-up; `None` means kdeploy's own, an empty list none.
    pub smoke: Option<Vec<SmokeCase>>,
    /// vLLM options under their own names, without those that have a field here.
    pub vllm: BTreeMap<String, Setting<Value>>,
    /// Variables for the engine.
    pub env: BTreeMap<String, Setting<String>>,
    /// Flags after `--` that go to vLLM as they are.
    pub passed_flags: Vec<String>,
    /// Their names, with underscores: they win over planned values.
    pub passed_names: Vec<String>,
    /// Expected time to ready.
    pub expected_load: Option<Setting<Duration>>,
    /// Rows of the memory table that are taken as known.
    pub assumed: BTreeMap<MemoryItem, Bytes>,
    /// Patches of the checkpoint that are wanted.
    pub patches: Setting<PatchesWanted>,
    /// Where the profile was made for.
    pub made_for: ProfileMatch,
    /// Codes of checks that are only warned of.
    pub forced: Vec<String>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Deadlines of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchDeadlines {
    /// Longest time without progress during the start.
    pub start_stall: Setting<Duration>,
    /// Longest time for the whole start.
    pub start_total: Setting<Duration>,
    /// Longest time for the warm-up request.
    pub warmup: Setting<Duration>,
    /// How long requests in flight may finish at a stop.
    pub drain: Setting<Duration>,
    /// How long nothing may be generated before an idle engine is asked for one token; zero is never.
    pub idle_probe: Setting<Duration>,
    /// How long that token may take.
    pub idle_probe_timeout: Setting<Duration>,
}

/// A profile with the name it was asked for by.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedProfile {
    /// Its name: the file's stem.
    pub name: String,
    /// What it says.
    pub profile: Profile,
}

/// Merges all sources.
///
/// # Errors
/// When a value cannot be used, a secret stands where it would be written down, or no model is named.
pub fn resolve(
    profile: Option<NamedProfile>,
    env: &BTreeMap<String, String>,
    flags: &LaunchFlags,
) -> Result<Settings, ConfigError> {
    let (profile_name, profile) = profile.map(|named| (named.name, named.profile)).unzip();
    let profile = profile.unwrap_or_default();
    let typed_env = read_env(env)?;
    let typed_flags = read_flags(flags)?;
    let passed = read_passed_through(&flags.vllm_flags)?;

    let mut options = profile.vllm;
    options.extend(typed_env.options.clone());
    options.extend(typed_flags.options.clone());
    options.extend(passed.options);

    let model = flags.model.clone().map(|model| Setting::new(model, Origin::flag("MODEL"))).or(profile.model);
    let model = model.filter(|model| !model.value.trim().is_empty()).ok_or(ConfigError::NoModel)?;
    let text = |pick: fn(&Typed) -> &Option<Setting<String>>| {
        pick(&typed_flags).clone().or_else(|| pick(&typed_env).clone())
    };
    let name = choose_name(text(|typed| &typed.name), profile_name, &model)?;
    let served_name = take::<String>(&mut options, "served_model_name")?
        .or(profile.served_name)
        .unwrap_or_else(|| Setting::default_value(default_served_name(&model.value)));
    let context = text(|typed| &typed.context)
        .map(|setting| parsed(setting, "context"))
        .transpose()?
        .or(take(&mut options, "max_model_len")?)
        .or(profile.context)
        .unwrap_or_else(|| Setting::default_value(ContextWanted::Auto));
    let launch = profile.launch;
    let drain = match take::<u64>(&mut options, "shutdown_timeout")? {
        Some(seconds) => Some(Setting::new(Duration::from_secs(seconds.value), seconds.origin)),
        None => launch.drain,
    };
    let seconds = |n| Setting::default_value(Duration::from_secs(n));
    let mut notes: Vec<String> = profile
        .unused
        .iter()
        .map(|place| format!("{place} of the profile is not used by this kdeploy yet"))
        .collect();
    if flags.no_smoke && profile.smoke.is_some() {
        notes.push("--no-smoke: the profile's questions are not asked".to_owned());
    }
    Ok(Settings {
        name,
        served_name,
        trust_remote_code: take(&mut options, "trust_remote_code")?
            .or(profile.trust_remote_code)
            .unwrap_or_else(|| Setting::default_value(false)),
        revision: take(&mut options, "revision")?.or(profile.revision),
        context,
        context_min: profile.context_min,
        context_max: profile.context_max,
        engine: text(|typed| &typed.engine),
        engine_version: profile.engine,
        host: take(&mut options, "host")?
            .or(launch.host)
            .unwrap_or_else(|| Setting::default_value("127.0.0.1".to_owned())),
        port: match (take::<u16>(&mut options, "port")?, launch.port) {
            (Some(port), _) => port,
            (None, Some(port)) => port.try_map(|port, origin| narrow(port, origin, "port"))?,
            (None, None) => Setting::default_value(8000),
        },
        gpus: text(|typed| &typed.gpus).or(launch.gpus).map(parse_gpus).transpose()?,
        max_attempts: match (text(|typed| &typed.max_attempts), profile.max_attempts) {
            (Some(attempts), _) => parsed(attempts, "max_attempts")?,
            (None, Some(attempts)) => attempts.try_map(|n, origin| narrow(n, origin, "max_attempts"))?,
            (None, None) => Setting::default_value(3),
        },
        deadlines: LaunchDeadlines {
            start_stall: launch.start_stall.unwrap_or_else(|| seconds(300)),
            start_total: launch.start_total.unwrap_or_else(|| seconds(3_600)),
            warmup: launch.warmup.unwrap_or_else(|| seconds(300)),
            drain: drain.unwrap_or_else(|| seconds(30)),
            idle_probe: launch.idle_probe.unwrap_or_else(|| seconds(30)),
            idle_probe_timeout: launch.idle_probe_timeout.unwrap_or_else(|| seconds(120)),
        },
        warmup_prompt: profile.warmup_prompt,
        warmup_max_tokens: profile.warmup_max_tokens,
        smoke: if flags.no_smoke { Some(Vec::new()) } else { profile.smoke },
        vllm: options,
        env: profile.env,
        passed_flags: passed.rest,
        passed_names: passed.rest_names,
        expected_load: profile.expected_load,
        assumed: BTreeMap::new(),
        patches: match text(|typed| &typed.patches) {
            Some(words) => parsed(words, "patches")?,
            None => profile.patches.unwrap_or_else(|| Setting::default_value(PatchesWanted::default())),
        },
        made_for: profile.made_for,
        forced: flags.force_preflight.clone(),
        notes,
        model,
    })
}

fn choose_name(
    given: Option<Setting<String>>,
    profile: Option<String>,
    model: &Setting<String>,
) -> Result<Setting<DeploymentName>, ConfigError> {
    if let Some(given) = given {
        return parsed(given, "name");
    }
    let source = profile.as_deref().unwrap_or(&model.value);
    Ok(Setting::default_value(DeploymentName::from_model(source)))
}

/// A directory is served under its last part, an id as it is.
fn default_served_name(model: &str) -> String {
    let is_path = model.starts_with(['/', '.', '~']);
    let trimmed = model.trim_end_matches('/');
    let last = trimmed.rsplit('/').next().unwrap_or(trimmed);
    if is_path && !last.is_empty() && last != "." && last != ".." {
        last.to_owned()
    } else {
        trimmed.to_owned()
    }
}

/// Takes an option that has a field of its own out of the map.
fn take<T>(
    options: &mut BTreeMap<String, Setting<Value>>,
    key: &str,
) -> Result<Option<Setting<T>>, ConfigError>
where
    T: FromStr<Err: Display>,
{
    let Some(option) = options.remove(key) else { return Ok(None) };
    let text = match option.value {
        Value::String(text) => text,
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        other => other.to_string(),
    };
    parsed(Setting::new(text, option.origin), key).map(Some)
}

fn parsed<T>(text: Setting<String>, key: &str) -> Result<Setting<T>, ConfigError>
where
    T: FromStr<Err: Display>,
{
    text.try_map(|text, origin| {
        text.trim().parse().map_err(|error: T::Err| ConfigError::BadValue {
            place: origin.place().to_owned(),
            key: key.to_owned(),
            message: format!("cannot be read: {error}"),
        })
    })
}

fn narrow<T: TryFrom<u64>>(value: u64, origin: &Origin, key: &str) -> Result<T, ConfigError> {
    T::try_from(value).map_err(|_| ConfigError::BadValue {
        place: origin.place().to_owned(),
        key: key.to_owned(),
        message: format!("{value} is too large"),
    })
}

fn parse_gpus(list: Setting<String>) -> Result<Setting<Vec<u32>>, ConfigError> {
    list.try_map(|list, origin| {
        let bad = |message: String| ConfigError::BadValue {
            place: origin.place().to_owned(),
            key: "gpus".to_owned(),
            message,
        };
        let mut gpus = Vec::new();
        for part in list.split(',') {
            let gpu = part.trim().parse().map_err(|_| {
                bad(format!("has `{}`; write indices with commas, such as `0,1`", part.trim()))
            })?;
            if gpus.contains(&gpu) {
                return Err(bad(format!("names GPU {gpu} twice")));
            }
            gpus.push(gpu);
        }
        Ok(gpus)
    })
}

#[cfg(test)]
mod tests {
    use super::{NamedProfile, Settings, resolve};
    use crate::config::{ConfigError, ContextWanted, LaunchFlags, OriginKind, parse_profile};
    use crate::units::Tokens;
    use std::collections::BTreeMap;

    fn profile(text: &str) -> Option<NamedProfile> {
        let profile = parse_profile("p.toml", &format!("schema = 1\n{text}")).expect(text);
        Some(NamedProfile { name: "p".to_owned(), profile })
    }

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn flags(model: &str) -> LaunchFlags {
        LaunchFlags { model: Some(model.to_owned()), ..LaunchFlags::default() }
    }

    fn from_model(model: &str) -> Settings {
        resolve(None, &env(&[]), &flags(model)).expect(model)
    }

    #[test]
    fn the_later_source_wins_and_is_named() {
        let text = "[model]\nid = \"a/b\"\n[launch]\nport = 1\n[vllm]\nmax_num_seqs = 1\nblock_size = 16";
        let only_profile = resolve(profile(text), &env(&[]), &LaunchFlags::default()).expect("profile");
        assert_eq!((only_profile.port.value, only_profile.port.origin.place()), (1, "p.toml:5"));
        assert_eq!(only_profile.name.value.as_str(), "p");
        let with_env = env(&[("KDEPLOY_PORT", "2"), ("KDEPLOY_SET", "max_num_seqs=2"), ("KDEPLOY_TP", "")]);
        let settings = resolve(profile(text), &with_env, &LaunchFlags::default()).expect("env");
        assert_eq!((settings.port.value, settings.port.origin.place()), (2, "KDEPLOY_PORT"));
        assert_eq!(settings.vllm["max_num_seqs"].value, 2);
        assert!(!settings.vllm.contains_key("tensor_parallel_size"), "empty counts as unset");
        let typed = LaunchFlags {
            port: Some(3),
            set: vec![("max_num_seqs".to_owned(), "3".to_owned()), ("port".to_owned(), "9".to_owned())],
            vllm_flags: vec!["--max-num-seqs".to_owned(), "4".to_owned(), "--port=5".to_owned()],
            ..LaunchFlags::default()
        };
        let settings = resolve(profile(text), &with_env, &typed).expect("flags");
        assert_eq!((settings.port.value, settings.port.origin.place()), (5, "`--port` after `--`"));
        assert_eq!(settings.vllm["max_num_seqs"].origin.kind, OriginKind::Flag);
        assert_eq!(settings.passed_names, ["max_num_seqs"]);
    }

    #[test]
    fn the_context_comes_under_each_of_its_names() {
        assert_eq!(from_model("a/b").context.value, ContextWanted::Auto);
        let exact = ContextWanted::Exactly(Tokens::new(4096));
        for typed in [
            LaunchFlags { context: Some("4K".to_owned()), ..flags("a") },
            LaunchFlags { set: vec![("max_model_len".to_owned(), "4096".to_owned())], ..flags("a") },
            LaunchFlags { vllm_flags: vec!["--max-model-len=4096".to_owned()], ..flags("a") },
        ] {
            assert_eq!(resolve(None, &env(&[]), &typed).expect("good").context.value, exact);
        }
    }

    #[test]
    fn names_follow_the_model() {
        for (model, name, served) in [
            ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5-nvfp4", "nvidia/Kimi-K2.5-NVFP4"),
            ("/data/SmolLM2-135M/", "smollm2-135m", "SmolLM2-135M"),
            ("./m", "m", "m"),
            ("m", "m", "m"),
        ] {
            let settings = from_model(model);
            assert_eq!((settings.name.value.as_str(), settings.served_name.value.as_str()), (name, served));
        }
    }

    #[test]
    fn mistakes_name_their_source() {
        for (pairs, typed, expected) in [
            (&[("KDEPLOY_PORT", "x")][..], flags("a"), "KDEPLOY_PORT: `port` cannot be read"),
            (&[("KDEPLOY_PORT", "70000")], flags("a"), "KDEPLOY_PORT: `port` cannot be read"),
            (&[("KDEPLOY_NAME", "../x")], flags("a"), "KDEPLOY_NAME: `name` cannot be read"),
            (&[("KDEPLOY_GPUS", "0,0")], flags("a"), "KDEPLOY_GPUS: `gpus` names GPU 0 twice"),
            (&[("KDEPLOY_SET", "x")], flags("a"), "KDEPLOY_SET"),
            (&[], LaunchFlags { context: Some("lots".to_owned()), ..flags("a") }, "--context: `context`"),
            (&[], LaunchFlags::default(), "nothing says which model"),
            (&[], flags(" "), "nothing says which model"),
        ] {
            let error = resolve(None, &env(pairs), &typed).expect_err(expected);
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        assert_eq!(resolve(None, &env(&[]), &LaunchFlags::default()), Err(ConfigError::NoModel));
    }
}
