//! Profiles: what to deploy where, as a TOML file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use toml::de::DeTable;

use super::context::ContextWanted;
use super::error::{ConfigError, is_secret};
use super::origin::Setting;
use super::patches_wanted::{ParsePatchesError, PatchesWanted};
use super::profile_match::{ProfileMatch, read_match};
use super::requirement::VersionRequirement;
use super::smoke_case::{Expectation, SmokeCase};
use super::toml_section::{Section, Source};
use crate::units::{Tokens, parse_duration};

/// Version of the profile format.
const SCHEMA: u64 = 1;

/// Profiles that come with kdeploy: name, path as shown, text.
pub const EMBEDDED_PROFILES: &[(&str, &str, &str)] =
    &[("quickstart", "profiles/quickstart.toml", include_str!("../../profiles/quickstart.toml"))];

/// A parsed profile. Absent means: it does not say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// One line about it.
    pub description: Option<String>,
    /// Model id or path.
    pub model: Option<Setting<String>>,
    /// Commit of the model.
    pub revision: Option<Setting<String>>,
    /// Name under which the API serves it.
    pub served_name: Option<Setting<String>>,
    /// Consent to the model's own code.
    pub trust_remote_code: Option<Setting<bool>>,
    /// Engine versions it was made for.
    pub engine: Option<Setting<VersionRequirement>>,
    /// Context window wanted.
    pub context: Option<Setting<ContextWanted>>,
    /// Shorter than this the plan does not fit.
    pub context_min: Option<Setting<Tokens>>,
    /// Longer than this is never planned.
    pub context_max: Option<Setting<Tokens>>,
    /// Starts allowed in one launch.
    pub max_attempts: Option<Setting<u64>>,
    /// Deadlines and address of the launch.
    pub launch: ProfileLaunch,
    /// Prompt of the warm-up request.
    pub warmup_prompt: Option<Setting<String>>,
    /// Output budget of the warm-up request.
    pub warmup_max_tokens: Option<Setting<Tokens>>,
    /// Questions; an empty list means none are asked.
    pub smoke: Option<Vec<SmokeCase>>,
    /// vLLM options under their own names.
    pub vllm: BTreeMap<String, Setting<Value>>,
    /// Variables for the engine.
    pub env: BTreeMap<String, Setting<String>>,
    /// Expected time to ready.
    pub expected_load: Option<Setting<Duration>>,
    /// Where it was made for.
    pub made_for: ProfileMatch,
    /// Patches to use.
    pub patches: Option<Setting<PatchesWanted>>,
    /// Parts of the file that this kdeploy does not use yet, as `file:line section`.
    pub unused: Vec<String>,
}

/// `[launch]` of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProfileLaunch {
    /// Longest time without progress during the start.
    pub start_stall: Option<Setting<Duration>>,
    /// Longest time for the whole start.
    pub start_total: Option<Setting<Duration>>,
    /// Longest time for the warm-up request.
    pub warmup: Option<Setting<Duration>>,
    /// How long requests in flight may finish at a stop.
    pub drain: Option<Setting<Duration>>,
    /// How long nothing may be generated before an idle engine is asked for one token; zero is never.
    pub idle_probe: Option<Setting<Duration>>,
    /// How long that token may take.
    pub idle_probe_timeout: Option<Setting<Duration>>,
    /// Address to listen on.
    pub host: Option<Setting<String>>,
    /// Port to listen on.
    pub port: Option<Setting<u64>>,
    /// GPUs to use.
    pub gpus: Option<Setting<String>>,
}

/// Parses a profile. `file` is how messages name it.
///
/// # Errors
/// With `file:line` when it is not TOML, has an unknown key or a value that cannot be used, holds a
/// secret, or was written for a newer kdeploy.
pub fn parse_profile(file: &str, text: &str) -> Result<Profile, ConfigError> {
    let source = Source { file, text };
    let parsed = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: source.place(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let top = Section::new(source, "", parsed.get_ref());
    if let Some(schema) = top.whole("schema")? {
        if schema.value > SCHEMA {
            let place = schema.origin.detail;
            return Err(ConfigError::NewerSchema { place, found: schema.value, known: SCHEMA });
        }
    } else {
        return Err(ConfigError::BadValue {
            place: source.place(0),
            key: "schema".to_owned(),
            message: format!("is missing; write `schema = {SCHEMA}` at the top"),
        });
    }
    let mut profile =
        Profile { description: top.text("description")?.map(|text| text.value), ..Profile::default() };
    if let Some(section) = top.section("model")? {
        read_model(&mut profile, section)?;
    }
    if let Some(section) = top.section("engine")? {
        profile.engine = parsed_text(&section, "vllm")?;
        section.finish()?;
    }
    if let Some(section) = top.section("context")? {
        profile.context = parsed_text(&section, "want")?;
        profile.context_min = parsed_text(&section, "min")?;
        profile.context_max = parsed_text(&section, "max")?;
        section.finish()?;
    }
    if let Some(section) = top.section("launch")? {
        read_launch(&mut profile, section)?;
    }
    if let Some(section) = top.section("warmup")? {
        profile.warmup_prompt = section.text("prompt")?;
        profile.warmup_max_tokens = parsed_text(&section, "max_tokens")?;
        section.finish()?;
    }
    if let Some(section) = top.section("smoke")? {
        profile.smoke = Some(read_smoke(section)?);
    }
    if let Some(section) = top.section("vllm")? {
        profile.vllm = read_vllm(&section)?;
    }
    if let Some(section) = top.section("env")? {
        profile.env = read_env(&section)?;
    }
    if let Some(section) = top.section("expect")? {
        profile.expected_load = read_expect(section)?;
    }
    if let Some(section) = top.section("match")? {
        profile.made_for = read_match(section)?;
    }
    if let Some(section) = top.section("patches")? {
        profile.patches = read_patches(section)?;
    }
    for later in ["bench", "known_issue"] {
        profile.unused.extend(top.is_there(later).map(|place| format!("{place} [{later}]")));
    }
    top.finish()?;
    Ok(profile)
}

/// A text or whole number that a type of ours reads.
fn parsed_text<T>(section: &Section<'_>, key: &'static str) -> Result<Option<Setting<T>>, ConfigError>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let Some(text) = section.text_or_whole(key)? else { return Ok(None) };
    let parsed = text.try_map(|text, origin| {
        text.parse().map_err(|error: T::Err| ConfigError::BadValue {
            place: origin.detail.clone(),
            key: format!("{}.{key}", section.name),
            message: format!("cannot be read: {error}"),
        })
    });
    parsed.map(Some)
}

fn duration(section: &Section<'_>, key: &'static str) -> Result<Option<Setting<Duration>>, ConfigError> {
    let Some(text) = section.text(key)? else { return Ok(None) };
    let parsed = text.try_map(|text, origin| {
        parse_duration(&text).map_err(|error| ConfigError::BadValue {
            place: origin.detail.clone(),
            key: format!("{}.{key}", section.name),
            message: format!("cannot be read: {error}"),
        })
    });
    parsed.map(Some)
}

fn read_model(profile: &mut Profile, section: Section<'_>) -> Result<(), ConfigError> {
    let (id, path) = (section.text("id")?, section.text("path")?);
    if let (Some(id), Some(path)) = (&id, &path) {
        return Err(ConfigError::BadValue {
            place: path.origin.detail.clone(),
            key: "model.path".to_owned(),
            message: format!("is given together with `model.id` ({}); one of them is enough", id.value),
        });
    }
    profile.model = path.or(id);
    profile.revision = section.text("revision")?;
    profile.served_name = section.text("served_name")?;
    profile.trust_remote_code = section.boolean("trust_remote_code")?;
    section.finish()
}

/// `use = "auto"`, or a list of names.
fn read_patches(section: Section<'_>) -> Result<Option<Setting<PatchesWanted>>, ConfigError> {
    let words = match section.json("use")? {
        Some(Setting { value: Value::Array(items), origin }) => {
            let words: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            words.map(|words| Setting::new(words.join(","), origin))
        }
        Some(Setting { value: Value::String(text), origin }) => Some(Setting::new(text, origin)),
        Some(other) => {
            return Err(ConfigError::BadValue {
                place: other.origin.detail,
                key: "patches.use".to_owned(),
                message: "must be `auto`, `none`, or a list of names".to_owned(),
            });
        }
        None => None,
    };
    section.finish()?;
    let wanted = words.map(|words| {
        words.try_map(|text, origin| {
            text.parse().map_err(|error: ParsePatchesError| ConfigError::BadValue {
                place: origin.detail.clone(),
                key: "patches.use".to_owned(),
                message: error.to_string(),
            })
        })
    });
    wanted.transpose()
}

fn read_launch(profile: &mut Profile, section: Section<'_>) -> Result<(), ConfigError> {
    profile.max_attempts = section.whole("max_attempts")?;
    profile.launch = ProfileLaunch {
        start_stall: duration(&section, "start_stall")?,
        start_total: duration(&section, "start_total")?,
        warmup: duration(&section, "warmup")?,
        drain: duration(&section, "drain")?,
        idle_probe: duration(&section, "idle_probe")?,
        idle_probe_timeout: duration(&section, "idle_probe_timeout")?,
        host: section.text("host")?,
        port: section.whole("port")?,
        gpus: section.text("gpus")?,
    };
    section.finish()
}

fn read_smoke(section: Section<'_>) -> Result<Vec<SmokeCase>, ConfigError> {
    let mut cases: Vec<SmokeCase> = Vec::new();
    for case in section.sections("case")? {
        let missing = |key: &str| ConfigError::BadValue {
            place: case.source.file.to_owned(),
            key: format!("smoke.case.{key}"),
            message: "is missing".to_owned(),
        };
        let id = case.text("id")?.ok_or_else(|| missing("id"))?;
        if cases.iter().any(|known| known.id == id.value) {
            return Err(ConfigError::BadValue {
                place: id.origin.detail,
                key: "smoke.case.id".to_owned(),
                message: format!("`{}` is used twice", id.value),
            });
        }
        let max_tokens: Option<Setting<Tokens>> = parsed_text(&case, "max_tokens")?;
        cases.push(SmokeCase {
            id: id.value,
            prompt: case.text("prompt")?.ok_or_else(|| missing("prompt"))?.value,
            max_tokens: max_tokens.map_or(Tokens::new(512), |tokens| tokens.value),
            expect: Expectation {
                contains: case.texts("contains")?.map(|texts| texts.value).unwrap_or_default(),
                may_be_cut: case.boolean("may_be_cut")?.is_some_and(|flag| flag.value),
            },
        });
        case.finish()?;
    }
    section.finish()?;
    Ok(cases)
}

fn read_vllm(section: &Section<'_>) -> Result<BTreeMap<String, Setting<Value>>, ConfigError> {
    let mut options = BTreeMap::new();
    for (key, setting) in section.entries() {
        let name = key.replace('-', "_");
        check_option_name(&name, &setting.origin.detail)?;
        if options.insert(name, setting.clone()).is_some() {
            return Err(ConfigError::BadValue {
                place: setting.origin.detail,
                key: format!("vllm.{key}"),
                message: "is given twice, with `-` and with `_`".to_owned(),
            });
        }
    }
    Ok(options)
}

/// A vLLM option must look like one and must not be a secret.
pub(super) fn check_option_name(name: &str, place: &str) -> Result<(), ConfigError> {
    if is_secret(name) {
        return Err(ConfigError::Secret { place: place.to_owned(), key: name.to_owned() });
    }
    let mut characters = name.chars();
    let first = characters.next().is_some_and(|c| c.is_ascii_lowercase());
    if !first || !characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.')) {
        return Err(ConfigError::BadValue {
            place: place.to_owned(),
            key: name.chars().take(80).collect(),
            message: "is not the name of a vLLM option; write it as vLLM does, such as `max_num_seqs`"
                .to_owned(),
        });
    }
    Ok(())
}

fn read_env(section: &Section<'_>) -> Result<BTreeMap<String, Setting<String>>, ConfigError> {
    let mut variables = BTreeMap::new();
    for (name, setting) in section.entries() {
        let place = setting.origin.detail.clone();
        if is_secret(&name) {
            return Err(ConfigError::Secret { place, key: name });
        }
        let bad = |message: &str| ConfigError::BadValue {
            place: place.clone(),
            key: format!("env.{name}"),
            message: message.to_owned(),
        };
        let usable = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !usable || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(bad("is not the name of a variable"));
        }
        let value = match &setting.value {
            Value::String(text) if !text.contains('\0') => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(bad("must be a text or a number")),
        };
        variables.insert(name.clone(), Setting::new(value, setting.origin));
    }
    Ok(variables)
}

fn read_expect(section: Section<'_>) -> Result<Option<Setting<Duration>>, ConfigError> {
    let load = section.number("load_s")?;
    for known in ["decode_tokens_per_s", "kv_tokens"] {
        section.number(known)?;
    }
    section.text("source")?;
    let load = load
        .map(|load| {
            load.try_map(|seconds, origin| {
                Duration::try_from_secs_f64(seconds).map_err(|error| ConfigError::BadValue {
                    place: origin.detail.clone(),
                    key: "expect.load_s".to_owned(),
                    message: error.to_string(),
                })
            })
        })
        .transpose()?;
    section.finish()?;
    Ok(load)
}

#[cfg(test)]
mod tests {
    use super::{EMBEDDED_PROFILES, parse_profile};
    use crate::config::{ConfigError, ContextWanted};
    use crate::units::Tokens;

    #[test]
    fn every_embedded_profile_is_whole() {
        for (name, file, text) in EMBEDDED_PROFILES {
            let profile = parse_profile(file, text).expect(name);
            assert!(profile.description.is_some() && profile.model.is_some(), "{name}");
            assert!(profile.unused.is_empty(), "{name}: {:?}", profile.unused);
        }
    }

    #[test]
    fn values_keep_file_and_line() {
        let profile = parse_profile(
            "p.toml",
            "schema = 1\n[model]\nid = \"a/b\"\n\n[context]\nwant = 4096\nmin = \"1K\"\n[vllm]\nmax-num-seqs = 4\n[env]\nN = 1\n[expect]\nload_s = 5.5\n[bench]\n",
        )
        .expect("good");
        let model = profile.model.expect("model");
        assert_eq!((model.value.as_str(), model.origin.detail.as_str()), ("a/b", "p.toml:3"));
        assert_eq!(profile.context.expect("want").value, ContextWanted::Exactly(Tokens::new(4096)));
        assert_eq!(profile.context_min.expect("min").value, Tokens::new(1024));
        assert_eq!(profile.vllm["max_num_seqs"].origin.detail, "p.toml:9");
        assert_eq!(profile.env["N"].value, "1");
        assert_eq!(profile.expected_load.expect("load").value.as_millis(), 5_500);
        assert_eq!(profile.unused, ["p.toml:14 [bench]"]);
    }

    #[test]
    fn mistakes_name_their_line_and_what_would_be_right() {
        for (text, expected) in [
            ("schema = 1\n[modle]\nid = \"x\"", "p.toml:2: unknown key `modle`; did you mean `model`?"),
            (
                "schema = 1\n[context]\nwnat = 1",
                "p.toml:3: unknown key `context.wnat`; did you mean `context.want`?",
            ),
            (
                "schema = 1\n[context]\nwant = true",
                "p.toml:3: `context.want` must be a text or a whole number",
            ),
            ("schema = 1\n[context]\nwant = \"x\"", "p.toml:3: `context.want` cannot be read"),
            ("schema = 1\n[launch]\ndrain = \"5\"", "p.toml:3: `launch.drain` cannot be read"),
            ("schema = 9", "p.toml:1: schema 9 is newer"),
            ("[model]", "p.toml:1: `schema` is missing"),
            ("schema = 1\nmodel = 1", "p.toml:2: `model` must be a table"),
            ("schema = 1\n[vllm]\napi_key = \"x\"", "p.toml:3: `api_key` is a secret"),
            ("schema = 1\n[env]\nHF_TOKEN = \"x\"", "p.toml:3: `HF_TOKEN` is a secret"),
            ("schema = 1\n[vllm]\n\"--x\" = 1", "p.toml:3: `__x` is not the name of a vLLM option"),
            ("schema = 1\n[model\n", "p.toml:2: "),
            ("schema = 1\n[[smoke.case]]\nid = \"a\"", "smoke.case.prompt"),
        ] {
            let message = parse_profile("p.toml", text).expect_err(text).to_string();
            assert!(message.starts_with(expected) || message.contains(expected), "{text}: {message}");
        }
        let secret = parse_profile("p.toml", "schema = 1\n[vllm]\napi_key = \"s3cr3t\"").expect_err("secret");
        assert!(matches!(&secret, ConfigError::Secret { .. }) && !format!("{secret:?}").contains("s3cr3t"));
    }
}
