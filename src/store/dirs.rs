//! Where kdeploy keeps things: XDG directories, systemd's directories, its own variables.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest as _, Sha256};

use super::StoreError;
use crate::config::DeploymentName;

/// Longest path of a private temporary directory: ZeroMQ sockets in it need 37 more bytes of the
/// 107 that a socket path may have.
const MAX_RUNTIME_PATH: usize = 70;

/// The directories of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Launch records, logs: `KDEPLOY_STATE_DIR`, `STATE_DIRECTORY`, `$XDG_STATE_HOME/kdeploy`.
    pub state: Utf8PathBuf,
    /// Managed engines and models: `KDEPLOY_CACHE_DIR`, `CACHE_DIRECTORY`, `$XDG_CACHE_HOME/kdeploy`.
    pub cache: Utf8PathBuf,
    /// User's profiles: `$XDG_CONFIG_HOME/kdeploy`.
    pub config: Utf8PathBuf,
    /// Private temporary directories: `RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/kdeploy`, else one under
    /// the temporary directory.
    pub runtime: Utf8PathBuf,
    /// Fallback for runtime directories whose path would be too long for sockets.
    short_runtime: Utf8PathBuf,
}

impl Dirs {
    /// Works the directories out from the environment; empty variables count as unset, relative
    /// ones are ignored as the XDG specification asks. `uid` names the fallback runtime directory.
    ///
    /// # Errors
    /// When neither `HOME` nor the directory's own variable is set.
    pub fn from_env(env: &BTreeMap<String, String>, uid: u32) -> Result<Self, StoreError> {
        let get = |name: &str| env.get(name).filter(|value| value.starts_with('/')).map(Utf8PathBuf::from);
        // systemd gives a list separated by colons; the first is ours.
        let list = |name: &str| {
            let first = env.get(name)?.split(':').next()?;
            first.starts_with('/').then(|| Utf8PathBuf::from(first))
        };
        let home = get("HOME");
        let pick = |own: &str, systemd: &str, xdg: &str, default: &str| {
            (!own.is_empty())
                .then(|| get(own))
                .flatten()
                .or_else(|| list(systemd))
                .or_else(|| get(xdg).map(|base| base.join("kdeploy")))
                .or_else(|| home.as_ref().map(|home| home.join(default).join("kdeploy")))
                .ok_or_else(|| StoreError::NoHome {
                    variable: if own.is_empty() { xdg } else { own }.to_owned(),
                })
        };
        let tmp = get("TMPDIR").unwrap_or_else(|| "/tmp".into());
        let short_runtime = Utf8PathBuf::from(format!("/tmp/kdeploy-{uid}"));
        Ok(Self {
            state: pick("KDEPLOY_STATE_DIR", "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state")?,
            cache: pick("KDEPLOY_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache")?,
            // A service may have no home; then there are the system's profiles only.
            config: pick("", "CONFIGURATION_DIRECTORY", "XDG_CONFIG_HOME", ".config")
                .unwrap_or_else(|_| Utf8PathBuf::from("/etc/kdeploy")),
            runtime: list("RUNTIME_DIRECTORY")
                .or_else(|| get("XDG_RUNTIME_DIR").map(|base| base.join("kdeploy")))
                .unwrap_or_else(|| tmp.join(format!("kdeploy-{uid}"))),
            short_runtime,
        })
    }

    /// Managed engines.
    #[must_use]
    pub fn engines(&self) -> Utf8PathBuf {
        self.cache.join("engines")
    }

    /// Managed models.
    #[must_use]
    pub fn models(&self) -> Utf8PathBuf {
        self.cache.join("models")
    }

    /// State of one deployment.
    #[must_use]
    pub fn deployment(&self, name: &DeploymentName) -> Utf8PathBuf {
        self.state.join(name.as_str())
    }

    /// The engine's private temporary directory: short enough for socket paths. A name that would
    /// make it too long is replaced by a digest of state directory and name.
    #[must_use]
    pub fn runtime_for(&self, name: &DeploymentName) -> (Utf8PathBuf, Utf8PathBuf) {
        let digest = Sha256::digest(format!("{}\0{name}", self.state));
        let short: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        for base in [&self.runtime, &self.short_runtime] {
            for leaf in [name.as_str(), &short] {
                // Two state directories may share /tmp: there the digest keeps them apart.
                let shared = base == &self.short_runtime || base.starts_with("/tmp");
                let path = base.join(leaf);
                if path.as_str().len() <= MAX_RUNTIME_PATH && !(shared && leaf == name.as_str()) {
                    return (base.clone(), path);
                }
            }
        }
        (self.short_runtime.clone(), self.short_runtime.join(short))
    }
}

/// Creates a directory (and its parents) for this user alone, mode 0700, or checks that an existing
/// one is a real directory that belongs to this user and that nobody else may write to.
///
/// # Errors
/// When it cannot be created, is a link, or is writable by others.
pub fn create_private_dir(path: &Utf8Path) -> Result<(), StoreError> {
    let untrusted = |reason: String| StoreError::Untrusted { path: path.to_owned(), reason };
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) => {
            return Err(std::io::Error::new(error.kind(), format!("cannot create `{path}`: {error}")).into());
        }
    }
    let meta = fs_err::symlink_metadata(path)?;
    if meta.file_type().is_symlink() {
        return Err(untrusted("it is a symbolic link".to_owned()));
    }
    if !meta.is_dir() {
        return Err(untrusted("it is not a directory".to_owned()));
    }
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return Err(untrusted(format!("it belongs to user {}, not to {me}", meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(untrusted(format!("others may write to it (mode {:o})", meta.mode() & 0o7777)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Dirs, create_private_dir};
    use camino::Utf8Path;
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn own_variables_win_over_systemd_over_xdg_over_home() {
        let base = [("HOME", "/h")];
        let dirs = Dirs::from_env(&env(&base), 7).unwrap();
        assert_eq!(
            (dirs.state.as_str(), dirs.cache.as_str()),
            ("/h/.local/state/kdeploy", "/h/.cache/kdeploy")
        );
        assert_eq!(dirs.runtime, "/tmp/kdeploy-7");
        let dirs = Dirs::from_env(
            &env(&[
                ("HOME", "/h"),
                ("XDG_STATE_HOME", "/x"),
                ("STATE_DIRECTORY", "/s/one:/s/two"),
                ("XDG_CACHE_HOME", ""),
                ("KDEPLOY_CACHE_DIR", "/k"),
                ("XDG_CONFIG_HOME", "relative"),
                ("XDG_RUNTIME_DIR", "/run/user/7"),
            ]),
            7,
        )
        .unwrap();
        assert_eq!((dirs.state.as_str(), dirs.cache.as_str()), ("/s/one", "/k"));
        assert_eq!(
            (dirs.config.as_str(), dirs.runtime.as_str()),
            ("/h/.config/kdeploy", "/run/user/7/kdeploy")
        );
        assert!(matches!(Dirs::from_env(&env(&[]), 7), Err(crate::store::StoreError::NoHome { .. })));
        let service = env(&[("STATE_DIRECTORY", "/var/lib/k"), ("CACHE_DIRECTORY", "/var/cache/k")]);
        assert_eq!(Dirs::from_env(&service, 7).unwrap().config, "/etc/kdeploy");
    }

    #[test]
    fn socket_directories_stay_short() {
        let name = "n".repeat(63).parse().unwrap();
        for runtime in ["/run/user/7", &format!("/tmp/{}", "deep/".repeat(20))] {
            let dirs = Dirs::from_env(&env(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", runtime)]), 7).unwrap();
            let (base, path) = dirs.runtime_for(&name);
            assert!(path.as_str().len() <= 70 && path.starts_with(&base), "{path}");
        }
        let dirs = Dirs::from_env(&env(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/7")]), 7).unwrap();
        assert_eq!(dirs.runtime_for(&"kimi".parse().unwrap()).1, "/run/user/7/kdeploy/kimi");
    }

    #[test]
    fn directories_of_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(root.path()).unwrap();
        create_private_dir(&root.join("a/b")).unwrap();
        assert_eq!(std::fs::metadata(root.join("a/b")).unwrap().permissions().mode() & 0o777, 0o700);
        std::os::unix::fs::symlink(root.join("a"), root.join("link")).unwrap();
        assert!(create_private_dir(&root.join("link")).is_err());
        std::fs::set_permissions(root.join("a"), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create_private_dir(&root.join("a")).is_err());
        std::fs::write(root.join("file"), "").unwrap();
        assert!(create_private_dir(&root.join("file")).is_err());
    }
}
