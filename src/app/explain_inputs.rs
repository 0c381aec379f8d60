//! Errors of settings, model, engine and planning in words.

use crate::config::ConfigError;
use crate::facts::Facts;
use crate::plan::PlanError;
use crate::probe::{EngineFindError, ModelError};
use crate::report::{Diagnostic, ErrorCode};

/// A mistake in settings.
pub(super) fn config_error(error: &ConfigError) -> Diagnostic {
    let message = error.to_string();
    match error {
        ConfigError::Syntax { .. } | ConfigError::NewerSchema { .. } => {
            Diagnostic::new(ErrorCode::ProfileInvalid, message).advice("correct the line")
        }
        ConfigError::UnknownKey { known, .. } => Diagnostic::new(ErrorCode::ProfileInvalid, message)
            .fact("known here", known.join(", "))
            .advice("correct or remove the line; vLLM's own options go under [vllm]"),
        ConfigError::BadValue { place, .. } => {
            // Flags and variables have no line.
            let code =
                if place.contains(".toml") { ErrorCode::ProfileInvalid } else { ErrorCode::SettingInvalid };
            Diagnostic::new(code, message).command("see what is set, and where", "kdeploy plan MODEL --all")
        }
        ConfigError::Secret { .. } => Diagnostic::new(ErrorCode::SettingInvalid, message)
            .cause("command lines, profiles and records can be read by others")
            .advice("give it in the environment of kdeploy: VLLM_API_KEY, HF_TOKEN"),
        ConfigError::NoModel => Diagnostic::new(ErrorCode::Usage, message)
            .command("name a directory or an id", "kdeploy up ./MODEL")
            .command("or see the whole way with a small model first", "kdeploy quickstart"),
        ConfigError::NoProfile { .. } => Diagnostic::new(ErrorCode::ProfileNotFound, message),
    }
}

/// No engine, or none that can be used.
pub(super) fn engine_error(error: &EngineFindError) -> Diagnostic {
    let install = |diagnostic: Diagnostic| {
        diagnostic
            .command(
                "see the whole way with a small model first; it installs a CPU build",
                "kdeploy quickstart",
            )
            .advice("or name one that is installed: --engine PATH, KDEPLOY_ENGINE")
    };
    match error {
        EngineFindError::NotFound { looked_in } => {
            let diagnostic =
                Diagnostic::new(ErrorCode::EngineNotInstalled, "vLLM was not found").cause_chain(error);
            install(looked_in.iter().fold(diagnostic, |d, place| d.fact("looked in", place.clone())))
        }
        EngineFindError::NotThere { looked_in, .. } => {
            let diagnostic =
                Diagnostic::new(ErrorCode::EngineNotInstalled, "the engine that was named is not there")
                    .cause_chain(error);
            looked_in
                .iter()
                .fold(diagnostic, |d, place| d.fact("looked for", place.clone()))
                .advice("give the path of `vllm` or of its virtual environment")
        }
        EngineFindError::NotExecutable { path } => {
            Diagnostic::new(ErrorCode::EngineUnusable, "the engine cannot be executed")
                .cause_chain(error)
                .command("make it executable", format!("chmod +x {path}"))
        }
        EngineFindError::NoVersion { looked_in, .. } => {
            let diagnostic = Diagnostic::new(ErrorCode::EngineUnusable, "the engine's version is not known")
                .cause_chain(error);
            let diagnostic = looked_in.iter().fold(diagnostic, |d, place| d.fact("looked in", place.clone()));
            diagnostic.advice("install vLLM into a virtual environment and name that: --engine PATH")
        }
    }
}

/// No model, or one that cannot be used.
pub(super) fn model_error(error: &ModelError, model: &str) -> Diagnostic {
    match error {
        ModelError::NoDirectory { .. } => Diagnostic::new(ErrorCode::ModelNotFound, "there is no such model")
            .cause_chain(error)
            .advice("give a directory that exists, or an id without leading `.` or `/`"),
        ModelError::NoConfig { hint, .. } => {
            let diagnostic =
                Diagnostic::new(ErrorCode::ModelNotFound, "this is not a model").cause_chain(error);
            match hint {
                Some(hint) => diagnostic.advice(hint.clone()),
                None => diagnostic.advice("give the directory with config.json, tokenizer and weights"),
            }
        }
        ModelError::NotCached { looked_in, .. } => {
            let diagnostic =
                Diagnostic::new(ErrorCode::ModelNotFound, format!("`{model}` is not on this machine")).cause(
                    "kdeploy serves models that are here: a download would hide in the start of the engine",
                );
            let diagnostic =
                looked_in.iter().fold(diagnostic, |d, place| d.fact("looked in", place.to_string()));
            diagnostic
                .command("fetch it first", format!("hf download {model}"))
                .advice("or give its directory")
        }
        ModelError::DanglingLink { .. } => broken(error).command("fetch it again", "hf download MODEL"),
        ModelError::MissingWeights { count, .. } => broken(error).fact("missing in all", count.to_string()),
        ModelError::NoWeights { .. } | ModelError::Broken { .. } | ModelError::BrokenWeights { .. } => {
            broken(error)
        }
        ModelError::Io { source, .. } => super::context::io_error(source).cause_chain(error),
    }
}

fn broken(error: &ModelError) -> Diagnostic {
    Diagnostic::new(ErrorCode::ModelDataBroken, "the model's files are not whole")
        .cause_chain(error)
        .did("changed nothing")
        .advice("fetch or copy the model again")
}

/// Something that cannot be planned.
pub(super) fn plan_error(error: &PlanError, facts: &Facts) -> Diagnostic {
    let message = error.to_string();
    match error {
        PlanError::EngineVersion { .. } => Diagnostic::new(ErrorCode::EngineVersionRefused, message)
            .fact(facts.engine.executable.as_str(), format!("found through {}", facts.engine.found))
            .advice("name another engine: --engine PATH"),
        PlanError::BadOption { .. } => Diagnostic::new(ErrorCode::SettingInvalid, message),
        PlanError::UnknownOption { .. } => Diagnostic::new(ErrorCode::SettingInvalid, message)
            .cause("vLLM refuses it after its imports")
            .command("see what it takes", format!("{} serve --help=all", facts.engine.executable)),
        PlanError::ContextAboveModel { max, .. } => Diagnostic::new(ErrorCode::SettingInvalid, message)
            .cause("vLLM refuses it before the load")
            .advice(format!("use --context {} or less", max.as_u64()))
            .advice("a model that can do more: set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 in the environment"),
        PlanError::NoSuchGpu { .. } | PlanError::PatchArgument { .. } => {
            Diagnostic::new(ErrorCode::SettingInvalid, message)
        }
        PlanError::KvTypeUnsupported(refusal) => super::explain_patches::kv_type_refused(refusal, facts),
        PlanError::NoSuchPatch { .. } => Diagnostic::new(ErrorCode::PatchNotFound, message)
            .command("see those that there are", "kdeploy patch list"),
        PlanError::Patch(error) => super::explain_patches::patch_error(error, facts),
        PlanError::PatchedBroken { .. } => Diagnostic::new(ErrorCode::PatchDoesNotApply, message)
            .did("changed nothing")
            .command("serve it as it is", format!("kdeploy up {} --patches none", facts.model.id)),
        PlanError::ProfileMismatch { .. } => Diagnostic::new(ErrorCode::ProfileMismatch, message)
            .advice("use a profile for this machine, or take `strict = true` out of its [match]"),
        PlanError::NoGpu { .. } => Diagnostic::new(ErrorCode::EngineUnusable, message)
            .fact(facts.engine.executable.as_str(), format!("vLLM {}", facts.engine.version))
            .command("see the whole way on a CPU", "kdeploy quickstart"),
    }
}
