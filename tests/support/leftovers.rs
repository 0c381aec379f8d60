//! The proof that nothing of a launch is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// What a running deployment uses, read from its record while it runs.
#[derive(Debug)]
pub struct Traces {
    pids: Vec<(i64, u64)>,
    shm: Vec<String>,
    runtime: PathBuf,
    port: u16,
}

impl Traces {
    /// Reads the record; everything that must be gone later must be there now.
    #[track_caller]
    pub fn of(record: &serde_json::Value) -> Self {
        let pids: Vec<(i64, u64)> = record["members"]
            .as_array()
            .expect("members")
            .iter()
            .map(|member| {
                let id = if member["pid"].is_null() { &member["id"] } else { member };
                (id["pid"].as_i64().expect("a pid"), id["start_time"].as_u64().expect("a start time"))
            })
            .collect();
        let shm = record["shm"].as_array().expect("shm");
        let shm: Vec<String> =
            shm.iter().map(|object| object["name"].as_str().expect("a name").to_owned()).collect();
        let runtime = PathBuf::from(record["runtime"]["path"].as_str().expect("a runtime directory"));
        let port = u16::try_from(record["plan"]["port"].as_u64().expect("a port")).expect("a port");
        let traces = Self { pids, shm, runtime, port };
        assert!(
            traces.pids.iter().filter(|(pid, start)| lives(*pid, *start)).count() >= 3,
            "a tree: {traces:?}"
        );
        assert!(traces.runtime.is_dir(), "{traces:?}");
        assert!(traces.shm.iter().any(|name| exists_in_shm(name)), "shared memory: {traces:?}");
        traces
    }

    /// Asserts that all of it is gone.
    #[track_caller]
    pub fn assert_gone(&self) {
        let living: Vec<_> = self.pids.iter().filter(|(pid, start)| lives(*pid, *start)).collect();
        assert!(living.is_empty(), "processes live on: {living:?}");
        let shm: Vec<_> = self.shm.iter().filter(|name| exists_in_shm(name)).collect();
        assert!(shm.is_empty(), "shared memory is left: {shm:?}");
        assert!(!self.runtime.exists(), "{} is left", self.runtime.display());
        assert!(!listens(self.port), "port {} is taken", self.port);
    }
}

/// Everything in shared memory.
pub fn shm_names() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Shared-memory objects of a record that are still there.
pub fn leftovers_in_shm(record: &serde_json::Value) -> Vec<String> {
    let names = record["shm"].as_array().expect("shm").iter();
    let names = names.map(|object| object["name"].as_str().expect("a name").to_owned());
    names.filter(|name| exists_in_shm(name)).collect()
}

fn exists_in_shm(name: &str) -> bool {
    fs::symlink_metadata(format!("/dev/shm/{name}")).is_ok()
}

/// Is there a process of this number and start time that is no zombie?
fn lives(pid: i64, start: u64) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((_, rest)) = text.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields[0] != "Z" && fields[19].parse() == Ok(start)
}

/// Is there a listener on this port of any address?
pub fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[3] == "0A" && fields[1].ends_with(&format!(":{port:04X}"))
        })
    })
}

/// Processes whose command line or environment holds this text, other than this one.
pub fn processes_naming(text: &str) -> BTreeSet<i32> {
    let me = i32::try_from(std::process::id()).expect("a pid");
    let holds = |path: String| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != me)
        .filter(|pid| holds(format!("/proc/{pid}/cmdline")) || holds(format!("/proc/{pid}/environ")))
        .collect()
}
