//! What every command shares: the door to the terminal, directories, environment, the choice of a
//! deployment.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use crate::config::{DeploymentName, env_vars};
use crate::report::{Diagnostic, ErrorCode, Retry, Ui};
use crate::store::{Dirs, LaunchRecord, StoreError, create_private_dir};

/// What every command shares.
#[derive(Debug)]
pub struct App {
    /// The door to the terminal.
    pub ui: Ui,
    /// Where things lie.
    pub dirs: Dirs,
    /// The environment, read once. Never printed.
    pub env: BTreeMap<String, String>,
    /// Use no network.
    pub offline: bool,
    /// Answer every question with yes.
    pub yes: bool,
}

impl App {
    /// Reads the environment and works out the directories.
    ///
    /// # Errors
    /// When there is no home to keep state in.
    pub fn new(ui: Ui, offline: bool, yes: bool) -> Result<Self, (Ui, Diagnostic)> {
        let odd = std::env::vars_os().find(|(name, value)| {
            name.to_str().is_some_and(|name| name.starts_with("KDEPLOY_")) && value.to_str().is_none()
        });
        if let Some((name, _)) = odd {
            let summary = format!("{} is not UTF-8 text", name.to_string_lossy());
            return Err((ui, Diagnostic::new(ErrorCode::SettingInvalid, summary)));
        }
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let uid = nix::unistd::geteuid().as_raw();
        let dirs = match Dirs::from_env(&env, uid) {
            Ok(dirs) => dirs,
            Err(error) => return Err((ui, store_error(&error))),
        };
        let offline = offline || env.contains_key(env_vars::OFFLINE);
        Ok(Self { ui, dirs, env, offline, yes })
    }

    /// Key for a served model's API, from the environment only.
    #[must_use]
    pub fn api_key(&self) -> Option<String> {
        self.env.get(env_vars::API_KEY).or_else(|| self.env.get("VLLM_API_KEY")).cloned()
    }

    /// Makes and returns the state directory of a deployment.
    ///
    /// # Errors
    /// When it cannot be made or is not this user's alone.
    pub fn deployment_dir(&self, name: &DeploymentName) -> Result<Utf8PathBuf, Diagnostic> {
        create_private_dir(&self.dirs.state).map_err(|error| store_error(&error))?;
        let path = self.dirs.deployment(name);
        create_private_dir(&path).map_err(|error| store_error(&error))?;
        Ok(path)
    }

    /// The NVML library, when it is not the system's.
    #[must_use]
    pub fn nvml_library(&self) -> Option<&str> {
        self.env.get(env_vars::NVML_LIBRARY).map(String::as_str)
    }

    /// Asks a question with `no` as the answer that changes nothing. `--yes` answers it; without a
    /// terminal to ask at it is not asked.
    ///
    /// # Errors
    /// When there is nobody to ask; `command` is what answers it beforehand.
    pub fn confirm(&self, question: &str, command: &str) -> Result<bool, Diagnostic> {
        use std::io::{BufRead as _, IsTerminal as _};
        if self.yes {
            return Ok(true);
        }
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Err(Diagnostic::new(
                ErrorCode::Usage,
                "this is only done after asking, and nobody can be asked here",
            )
            .cause(question)
            .command("answer beforehand", command));
        }
        self.ui.ask(&format!("{question} [y/N] "));
        let mut answer = String::new();
        stdin.lock().read_line(&mut answer).map_err(|error| io_error(&error))?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Names of all deployments that have a record, sorted.
    ///
    /// # Errors
    /// When the state directory exists and cannot be read.
    pub fn recorded(&self) -> Result<Vec<DeploymentName>, Diagnostic> {
        let mut names = Vec::new();
        let entries = match fs_err::read_dir(&self.dirs.state) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
            Err(error) => return Err(store_error(&error.into())),
        };
        for entry in entries {
            let entry = entry.map_err(|error| store_error(&error.into()))?;
            let name = entry.file_name().to_str().and_then(|name| name.parse::<DeploymentName>().ok());
            if let Some(name) = name
                && LaunchRecord::path(&self.dirs.deployment(&name)).exists()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// The record of one deployment.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn record(&self, name: &DeploymentName) -> Result<Option<LaunchRecord>, Diagnostic> {
        LaunchRecord::load(&self.dirs.deployment(name)).map_err(|error| store_error(&error))
    }

    /// The deployment a command means: the named one, `KDEPLOY_NAME`, or the only live one. `None`
    /// when nothing runs.
    ///
    /// # Errors
    /// When several run and none was named, or `KDEPLOY_NAME` is no name.
    pub fn choose(&self, name: Option<&DeploymentName>) -> Result<Option<DeploymentName>, Diagnostic> {
        if let Some(name) = name {
            return Ok(Some(name.clone()));
        }
        if let Some(name) = self.env.get(env_vars::NAME) {
            return name.parse().map(Some).map_err(|error: crate::config::NameError| {
                Diagnostic::new(ErrorCode::SettingInvalid, "KDEPLOY_NAME cannot be used").cause_chain(&error)
            });
        }
        let recorded = self.recorded()?;
        let mut live = Vec::new();
        for name in &recorded {
            if self.record(name)?.is_some_and(|record| record.state.is_live()) {
                live.push(name.clone());
            }
        }
        match (live.as_slice(), recorded.as_slice()) {
            ([only], _) | ([], [only]) => Ok(Some(only.clone())),
            ([], []) => Ok(None),
            ([], many) | (many, _) => {
                let list = many.iter().map(DeploymentName::as_str).collect::<Vec<_>>().join(", ");
                Err(Diagnostic::new(ErrorCode::Usage, "there are several deployments; name one")
                    .fact("deployments", list)
                    .command("see them", "kdeploy status --all"))
            }
        }
    }
}

/// A store error in words.
pub(super) fn store_error(error: &StoreError) -> Diagnostic {
    match error {
        StoreError::Io(io) => io_error(io),
        StoreError::Unreadable { path, reason } => {
            Diagnostic::new(ErrorCode::StateUnreadable, format!("`{path}` cannot be read"))
                .cause(reason.clone())
                .advice("if a deployment of it still runs, end it by hand: its record is gone")
                .retry(Retry::Never)
        }
        StoreError::Newer { path, found, known } => {
            Diagnostic::new(ErrorCode::StateUnreadable, format!("`{path}` was written by a newer kdeploy"))
                .cause(format!("its format is {found}; this kdeploy reads up to {known}"))
                .advice("use the newer kdeploy")
        }
        StoreError::NoHome { variable } => {
            Diagnostic::new(ErrorCode::SettingInvalid, "there is no home directory to keep state in")
                .cause_chain(error)
                .advice(format!("set HOME, or {variable} to a directory"))
        }
        StoreError::Untrusted { path, reason } => {
            Diagnostic::new(ErrorCode::NoPermission, format!("`{path}` cannot be used"))
                .cause(reason.clone())
                .advice("make it a directory of this user alone (mode 0700), or name another one: KDEPLOY_STATE_DIR, KDEPLOY_CACHE_DIR, XDG_RUNTIME_DIR")
        }
    }
}

/// An input or output error in words; the kind decides the code.
pub(super) fn io_error(error: &std::io::Error) -> Diagnostic {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Diagnostic::new(ErrorCode::DiskFull, "there is no space left").cause(error.to_string())
        }
        ErrorKind::PermissionDenied => {
            Diagnostic::new(ErrorCode::NoPermission, "access was denied").cause(error.to_string())
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            Diagnostic::new(ErrorCode::CannotCreate, "a file could not be created").cause(error.to_string())
        }
        _ => Diagnostic::new(ErrorCode::Io, "a file could not be read or written").cause(error.to_string()),
    }
}
