//! Finds a Python that vLLM can be installed with, and uv.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::Command;

use crate::plan::install::PYTHONS;

/// Longest time for a Python to say its version.
const ANSWER: Duration = Duration::from_secs(20);

/// Asks for version and whether `venv` works without uv.
const QUESTION: &str = "import sys\nprint(*sys.version_info[:2])\ntry:\n import ensurepip, venv\n print('venv')\nexcept ImportError:\n print('no venv')";

/// A Python that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    /// The program.
    pub path: Utf8PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// Can it make virtual environments by itself? Debian's cannot without `python3-venv`.
    pub has_venv: bool,
}

/// What was found, for choosing and for explaining.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pythons {
    /// Those that answered, in the order of asking.
    pub found: Vec<Python>,
    /// What was tried, with the answer.
    pub tried: Vec<String>,
}

impl Pythons {
    /// The best one: the version's place in [`PYTHONS`] decides, then the order of asking. Without
    /// uv it must be able to make virtual environments.
    #[must_use]
    pub fn choose(&self, with_uv: bool) -> Option<&Python> {
        let usable = |python: &&Python| with_uv || python.has_venv;
        PYTHONS
            .iter()
            .find_map(|version| self.found.iter().filter(usable).find(|python| python.version == *version))
    }

    /// A supported Python is there and only `venv` is missing.
    #[must_use]
    pub fn lacks_only_venv(&self) -> Option<&Python> {
        self.found.iter().find(|python| !python.has_venv && PYTHONS.contains(&python.version))
    }
}

/// Asks the given Python, or else every candidate in PATH, for its version.
pub async fn find_pythons(given: Option<&str>, env: &BTreeMap<String, String>) -> Pythons {
    let mut pythons = Pythons::default();
    let names = PYTHONS.iter().map(|(major, minor)| format!("python{major}.{minor}"));
    let candidates: Vec<String> = match given {
        Some(given) => vec![given.to_owned()],
        None => names.chain(["python3".to_owned(), "python".to_owned()]).collect(),
    };
    for name in candidates {
        let paths = if name.contains('/') {
            vec![Utf8PathBuf::from(&name)]
        } else {
            find_programs(&name, env).collect()
        };
        if paths.is_empty() {
            pythons.tried.push(format!("{name}: not in PATH"));
        }
        // A shim that does not work may hide one that does.
        for path in paths {
            match ask(&path).await {
                Ok((version, has_venv)) => {
                    let (major, minor) = version;
                    let venv = if has_venv { "" } else { ", without venv" };
                    pythons.tried.push(format!("{path}: Python {major}.{minor}{venv}"));
                    pythons.found.push(Python { path, version, has_venv });
                    break;
                }
                Err(reason) => pythons.tried.push(format!("{path}: {reason}")),
            }
        }
    }
    pythons
}

async fn ask(path: &Utf8Path) -> Result<((u32, u32), bool), String> {
    let mut command = Command::new(path);
    // Isolated: what lies in the working directory is not imported.
    command.args(["-I", "-c", QUESTION]).stdin(Stdio::null()).kill_on_drop(true);
    for name in ["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"] {
        command.env_remove(name);
    }
    let output = match tokio::time::timeout(ANSWER, command.output()).await {
        Err(_) => return Err("does not answer".to_owned()),
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(output)) => output,
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| {
        let (major, minor) = line.split_once(' ')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    match version.filter(|_| output.status.success()) {
        Some(version) => Ok((version, lines.next() == Some("venv"))),
        None => Err(format!("is no Python 3 that works ({})", output.status)),
    }
}

/// The first program of this name in PATH.
#[must_use]
pub fn find_program(name: &str, env: &BTreeMap<String, String>) -> Option<Utf8PathBuf> {
    find_programs(name, env).next()
}

/// All programs of this name in PATH, in its order.
fn find_programs<'a>(
    name: &'a str,
    env: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = Utf8PathBuf> + 'a {
    let path = env.get("PATH").map(String::as_str).unwrap_or_default();
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    folders.map(move |folder| Utf8Path::new(folder).join(name)).filter(|program| {
        program.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}
