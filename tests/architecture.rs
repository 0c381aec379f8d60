//! The arrows between rooms (see the map in `src/lib.rs`), checked by reading the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SRC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Rooms without effects, in the order in which they may use each other.
const PURE: &[&str] = &["units", "facts", "config", "patch", "plan", "lifecycle", "measure", "export"];
/// Rooms with effects; they never use each other.
const EFFECTS: &[&str] = &["probe", "engine", "api", "store"];

/// What each room may name. Only `app` connects rooms; only `app` and `main.rs` use `report`.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut rooms = BTreeMap::from([
        ("units", vec![]),
        ("facts", vec!["units"]),
        ("config", vec!["units", "facts"]),
        ("patch", vec!["units", "facts", "config"]),
        ("plan", vec!["units", "facts", "config", "patch"]),
        ("export", vec!["units", "facts", "config", "plan"]),
        ("lifecycle", vec!["units", "facts", "config", "plan"]),
        ("measure", vec!["units", "facts", "config", "plan"]),
        ("report", PURE.to_vec()),
        ("cli", vec!["units", "config"]),
        ("app", [PURE, EFFECTS, &["report", "cli"]].concat()),
    ]);
    rooms.extend(EFFECTS.iter().map(|room| (*room, PURE.to_vec())));
    rooms
}

/// Names that mean an effect.
const IMPURE: &[&str] = &[
    "tokio",
    "reqwest",
    "nix::",
    "rustix",
    "procfs",
    "nvml_wrapper",
    "fs_err",
    "tempfile",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "std::io::stdout",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Lines of code with their numbers: no comments, no test modules (which end their file).
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("a source");
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned()));
    lines
        .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .collect()
}

fn room_of(path: &Path) -> Option<String> {
    let mut parts = path.strip_prefix(SRC).expect("below src").components();
    let first = parts.next()?.as_os_str().to_str()?.to_owned();
    parts.next().map(|_| first)
}

fn is_test(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs" || name == "recorded.rs")
}

/// Rooms that a line names: `crate::room`, also in lists.
fn named_rooms(line: &str) -> Vec<String> {
    line.match_indices("crate::")
        .filter_map(|(at, found)| {
            let rest = &line[at + found.len()..];
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            (end > 0).then(|| rest[..end].to_owned())
        })
        .collect()
}

#[test]
fn rooms_name_only_what_they_may() {
    let allowed = allowed();
    let mut broken = Vec::new();
    let mut seen = 0;
    for path in sources(Path::new(SRC)).iter().filter(|path| !is_test(path)) {
        let Some(room) = room_of(path) else { continue };
        let may = allowed
            .get(room.as_str())
            .unwrap_or_else(|| panic!("`{room}` is on no map: add it here and in lib.rs"));
        for (number, line) in code(path) {
            for named in named_rooms(&line) {
                seen += 1;
                if named != room && allowed.contains_key(named.as_str()) && !may.contains(&named.as_str()) {
                    broken.push(format!("{}:{number}: `{room}` names `{named}`", path.display()));
                }
            }
        }
    }
    assert!(seen > 100, "the search finds nothing any more: {seen}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn pure_rooms_have_no_effects() {
    let mut broken = Vec::new();
    for path in sources(Path::new(SRC)).iter().filter(|path| !is_test(path)) {
        let Some(room) = room_of(path).filter(|room| PURE.contains(&room.as_str())) else { continue };
        for (number, line) in code(path) {
            for word in IMPURE.iter().filter(|word| names(&line, word)) {
                broken.push(format!("{}:{number}: `{room}` names `{word}`", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Does the line hold the word, not as a part of a longer one?
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
    })
}

#[test]
fn only_the_door_writes_to_the_terminal() {
    let mut broken = Vec::new();
    for path in sources(Path::new(SRC)).iter().filter(|path| !is_test(path)) {
        let name = path.strip_prefix(SRC).expect("below src").to_string_lossy().into_owned();
        if name == "main.rs" || name == "report/ui.rs" {
            continue; // the panic hook, and the door
        }
        for (number, line) in code(path) {
            for word in ["println!", "eprintln!", "print!", "stdout()", "process::exit"] {
                if names(&line, word) && !line.contains(".stdout()") {
                    broken.push(format!("{name}:{number}: {word}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn files_stay_readable() {
    for path in sources(Path::new(SRC)) {
        let lines = fs::read_to_string(&path).expect("a source").lines().count();
        assert!(lines <= 500, "{} has {lines} lines: it is asking to become two", path.display());
    }
}

#[test]
fn the_map_in_lib_names_every_room() {
    let lib = fs::read_to_string(Path::new(SRC).join("lib.rs")).expect("lib.rs");
    for room in allowed().keys() {
        assert!(lib.contains(&format!("pub mod {room};")), "lib.rs does not declare `{room}`");
        assert!(lib.contains(&format!("//! | [`{room}`] |")), "the map in lib.rs lacks `{room}`");
    }
    let declared = lib.lines().filter(|line| line.starts_with("pub mod ")).count();
    assert_eq!(declared, allowed().len(), "a room of lib.rs is on no map");
}

#[test]
fn the_test_itself_sees_what_is_forbidden() {
    assert_eq!(named_rooms("use crate::store::Lock;"), ["store"]);
    assert!(names("let now = Instant::now();", "Instant::now") && names("use tokio::sync;", "tokio"));
    assert!(!names("my_tokio::x", "tokio") && !names("self.tokio", "tokio"));
}
