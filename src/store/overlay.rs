//! Overlays: a directory of links to a checkpoint with edited copies in it. Content-addressed, made
//! aside and moved into place whole, shared by all launches that want the same, never half there.

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest as _, Sha256};

use super::StoreError;
use super::dirs::create_private_dir;

/// Beginning of the names of directories that are being made or taken away.
const ASIDE: &str = ".aside-";
/// How often another kdeploy may be faster before this one gives up.
const TRIES: u32 = 5;

/// What an overlay holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayContent {
    /// Links: path below the overlay, and the file or directory itself.
    pub links: Vec<(String, Utf8PathBuf)>,
    /// Real files: path below the overlay, and the bytes.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Holds an overlay: it is not taken away while this lives, also when this process is killed.
#[derive(Debug)]
pub struct OverlayHold {
    _directory: File,
}

/// What became of an overlay that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayRemoval {
    /// It is gone.
    Removed,
    /// A launch uses it.
    InUse,
    /// There was none.
    Absent,
}

/// Makes the overlay at `path`, or takes the one that is there when it is whole, and holds it.
///
/// # Errors
/// When it cannot be written; nothing half-made stays then.
pub fn make_overlay(path: &Utf8Path, content: &OverlayContent) -> Result<OverlayHold, StoreError> {
    let base = path.parent().unwrap_or(Utf8Path::new("."));
    create_private_dir(base)?;
    sweep(base);
    for _ in 0..TRIES {
        if let Some(hold) = hold(path)? {
            if is_whole(path, content) {
                return Ok(hold);
            }
            // Somebody changed it. Nobody else may use it while it is replaced.
            drop(hold);
            if remove_overlay(path)? == OverlayRemoval::InUse {
                return Err(StoreError::Unreadable {
                    path: path.to_owned(),
                    reason: "it was changed, and a launch uses it".to_owned(),
                });
            }
        }
        let aside = make_aside(base, content)?;
        match std::fs::rename(aside.path(), path) {
            Ok(()) => drop(aside.keep()),
            // Another kdeploy was faster; its overlay is looked at in the next round.
            Err(error) if path.is_dir() => tracing::debug!("{path} is there already: {error}"),
            Err(error) => return Err(named(&error, path).into()),
        }
    }
    Err(StoreError::Unreadable { path: path.to_owned(), reason: "others keep taking it away".to_owned() })
}

/// Removes an overlay unless a launch holds it.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove_overlay(path: &Utf8Path) -> Result<OverlayRemoval, StoreError> {
    let base = path.parent().unwrap_or(Utf8Path::new("."));
    let directory = match open_directory(path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(OverlayRemoval::Absent),
        Err(error) => return Err(named(&error, path).into()),
    };
    match directory.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(OverlayRemoval::InUse),
        Err(TryLockError::Error(error)) => return Err(named(&error, path).into()),
    }
    // Out of the way first: a half-removed overlay must never be found under its name.
    let aside = base.join(format!("{ASIDE}gone-{}-{}", std::process::id(), path.file_name().unwrap_or("x")));
    std::fs::rename(path, &aside).map_err(|error| named(&error, path))?;
    std::fs::remove_dir_all(&aside).map_err(|error| named(&error, &aside))?;
    Ok(OverlayRemoval::Removed)
}

/// Does a launch hold it?
#[must_use]
pub fn overlay_in_use(path: &Utf8Path) -> bool {
    open_directory(path).is_ok_and(|directory| matches!(directory.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Takes hold of an overlay that is there.
fn hold(path: &Utf8Path) -> Result<Option<OverlayHold>, StoreError> {
    use std::os::unix::fs::MetadataExt as _;
    let directory = match open_directory(path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(&error, path).into()),
    };
    match directory.try_lock_shared() {
        Ok(()) => {}
        // It is being taken away.
        Err(TryLockError::WouldBlock) => {
            std::thread::sleep(std::time::Duration::from_millis(20));
            return Ok(None);
        }
        Err(TryLockError::Error(error)) => return Err(named(&error, path).into()),
    }
    // Between opening and locking it may have been taken away.
    let held = directory.metadata().map_err(|error| named(&error, path))?;
    match std::fs::metadata(path) {
        Ok(now) if (now.dev(), now.ino()) == (held.dev(), held.ino()) => {
            Ok(Some(OverlayHold { _directory: directory }))
        }
        _ => Ok(None),
    }
}

fn open_directory(path: &Utf8Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

/// Makes everything in a directory of its own, which is removed again when something fails.
fn make_aside(base: &Utf8Path, content: &OverlayContent) -> Result<tempfile::TempDir, StoreError> {
    let aside = tempfile::Builder::new()
        .prefix(ASIDE)
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(base)
        .map_err(|error| named(&error, base))?;
    let root = Utf8Path::from_path(aside.path()).ok_or_else(|| StoreError::Unreadable {
        path: base.to_owned(),
        reason: "its path is not UTF-8".to_owned(),
    })?;
    // Says to others that somebody is at work here.
    let directory = open_directory(root).map_err(|error| named(&error, root))?;
    let _ = directory.try_lock_shared();
    for (name, target) in &content.links {
        let link = place(root, name)?;
        std::os::unix::fs::symlink(target, &link).map_err(|error| named(&error, &link))?;
    }
    for (name, bytes) in &content.files {
        let path = place(root, name)?;
        let mut file = File::create_new(&path).map_err(|error| named(&error, &path))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| named(&error, &path))?;
    }
    Ok(aside)
}

/// A place below the overlay, its directories made.
fn place(root: &Utf8Path, name: &str) -> Result<Utf8PathBuf, StoreError> {
    let relative = Utf8Path::new(name);
    let plain = relative.components().all(|part| matches!(part, camino::Utf8Component::Normal(_)));
    if !plain || name.is_empty() {
        return Err(StoreError::Unreadable {
            path: root.join(name),
            reason: "it would lie outside the overlay".to_owned(),
        });
    }
    let path = root.join(relative);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| named(&error, parent))?;
    }
    Ok(path)
}

/// Is an overlay exactly what it should be?
fn is_whole(path: &Utf8Path, content: &OverlayContent) -> bool {
    let links = content.links.iter().all(|(name, target)| {
        std::fs::read_link(path.join(name)).is_ok_and(|found| found.as_path() == target.as_std_path())
    });
    let same = |(name, bytes): &(String, Vec<u8>)| {
        let path = path.join(name);
        let regular = std::fs::symlink_metadata(&path)
            .is_ok_and(|meta| meta.is_file() && meta.len() == bytes.len() as u64);
        regular && std::fs::read(&path).is_ok_and(|found| Sha256::digest(found) == Sha256::digest(bytes))
    };
    links && content.files.iter().all(same) && count(path, 0) == content.links.len() + content.files.len()
}

/// Links and files below a directory.
fn count(path: &Utf8Path, depth: u32) -> usize {
    let Ok(entries) = path.read_dir_utf8() else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < 16 => count(entry.path(), depth + 1),
            _ => 1,
        })
        .sum()
}

/// Removes what a killed kdeploy left half-made; one that is at work holds its directory.
fn sweep(base: &Utf8Path) {
    let Ok(entries) = base.read_dir_utf8() else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().starts_with(ASIDE)) {
        let Ok(directory) = open_directory(entry.path()) else { continue };
        if directory.try_lock().is_ok() && is_old(&directory) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// One that was made just now may not hold its lock yet.
fn is_old(directory: &File) -> bool {
    let modified = directory.metadata().and_then(|meta| meta.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > std::time::Duration::from_secs(60)))
}

fn named(error: &std::io::Error, path: &Utf8Path) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("`{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{OverlayContent, OverlayRemoval, make_overlay, remove_overlay};
    use camino::{Utf8Path, Utf8PathBuf};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    fn checkpoint(root: &Utf8Path) -> OverlayContent {
        let source = root.join("model");
        std::fs::create_dir_all(source.join("sub")).unwrap();
        for name in ["config.json", "model.safetensors", "code.py"] {
            std::fs::write(source.join(name), format!("original {name}")).unwrap();
        }
        OverlayContent {
            links: vec![
                ("model.safetensors".to_owned(), source.join("model.safetensors")),
                ("sub".to_owned(), source.join("sub")),
            ],
            files: vec![
                ("config.json".to_owned(), b"edited".to_vec()),
                ("code.py".to_owned(), b"original code.py".to_vec()),
                ("deep/er.py".to_owned(), b"x".to_vec()),
            ],
        }
    }

    fn state(path: &Utf8Path) -> Vec<(Utf8PathBuf, Vec<u8>, u32, i64, i64)> {
        let mut found: Vec<_> = path
            .read_dir_utf8()
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_file())
            .map(|entry| {
                let meta = entry.path().metadata().unwrap();
                let bytes = std::fs::read(entry.path()).unwrap();
                (entry.path().to_owned(), bytes, meta.mode(), meta.mtime(), meta.mtime_nsec())
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn an_overlay_holds_links_and_copies_and_leaves_the_checkpoint_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let content = checkpoint(root);
        let before = state(&root.join("model"));
        let path = root.join("cache/overlays/abc");
        let hold = make_overlay(&path, &content).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "edited");
        assert_eq!(
            std::fs::read_to_string(path.join("model.safetensors")).unwrap(),
            "original model.safetensors"
        );
        assert!(std::fs::symlink_metadata(path.join("code.py")).unwrap().is_file());
        assert!(path.join("deep/er.py").is_file());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let inode = path.metadata().unwrap().ino();
        let second = make_overlay(&path, &content).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), inode, "the same one is used again");
        assert_eq!(remove_overlay(&path).unwrap(), OverlayRemoval::InUse);
        drop((hold, second));
        assert_eq!(remove_overlay(&path).unwrap(), OverlayRemoval::Removed);
        assert_eq!(remove_overlay(&path).unwrap(), OverlayRemoval::Absent);
        assert_eq!(path.parent().unwrap().read_dir_utf8().unwrap().count(), 0);
        assert_eq!(state(&root.join("model")), before);
    }

    #[test]
    fn one_that_was_changed_is_made_anew_and_strays_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let content = checkpoint(root);
        let path = root.join("overlays/abc");
        for spoil in [
            |path: &Utf8Path| std::fs::write(path.join("config.json"), "spoiled").unwrap(),
            |path: &Utf8Path| std::fs::write(path.join("more"), "x").unwrap(),
            |path: &Utf8Path| std::fs::remove_file(path.join("model.safetensors")).unwrap(),
        ] {
            drop(make_overlay(&path, &content).unwrap());
            spoil(&path);
            let hold = make_overlay(&path, &content).unwrap();
            assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "edited");
            assert!(path.join("model.safetensors").exists() && !path.join("more").exists());
            drop(hold);
        }
        for stray in ["../x", "/x", "a/../../x", ""] {
            let content = OverlayContent { links: Vec::new(), files: vec![(stray.to_owned(), Vec::new())] };
            assert!(make_overlay(&root.join("overlays/bad"), &content).is_err(), "{stray}");
        }
        assert!(!root.join("overlays/bad").exists());
        assert_eq!(root.join("overlays").read_dir_utf8().unwrap().count(), 1);
    }

    #[test]
    fn many_at_once_end_with_one_overlay() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap().to_owned();
        let content = checkpoint(&root);
        let path = root.join("overlays/abc");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let hold = make_overlay(&path, &content).unwrap();
                        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "edited");
                        drop(hold);
                    }
                });
            }
        });
        assert_eq!(root.join("overlays").read_dir_utf8().unwrap().count(), 1);
    }

    #[test]
    fn a_failure_in_the_middle_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let mut content = checkpoint(root);
        // The same name twice: the second file cannot be created.
        content.files.push(("config.json".to_owned(), b"again".to_vec()));
        assert!(make_overlay(&root.join("overlays/abc"), &content).is_err());
        assert_eq!(root.join("overlays").read_dir_utf8().unwrap().count(), 0);
    }
}
