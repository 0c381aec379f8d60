//! A service unit for one deployment. Why each setting is so: the comments of
//! `systemd/kdeploy@.service`, which a test holds against [`UNIT_SETTINGS`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use camino::Utf8PathBuf;

use super::words::{UnwritableWord, exec_line, quoted};
use crate::units::Bytes;

/// Restarts of a kdeploy that gave up or died, before systemd gives up too.
const START_BURST: u64 = 5;
const RESTART_PAUSE: Duration = Duration::from_secs(10);
/// What an ordered end takes on top of draining: grace, two kills, GPU memory, cleaning.
const STOP_MARGIN: Duration = Duration::from_secs(45);

/// Settings of every unit that do not depend on the deployment.
const UNIT_SETTINGS: &[(&str, &str)] = &[
    ("Type", "notify"),
    ("NotifyAccess", "main"),
    ("TimeoutStartSec", "300"),
    ("WatchdogSec", "90"),
    ("Restart", "on-failure"),
    ("RestartSec", "10"),
    ("RestartPreventExitStatus", "64 65 66 77 78"),
    ("KillMode", "mixed"),
    ("OOMPolicy", "continue"),
    ("Delegate", "memory pids"),
    ("LimitCORE", "0"),
    ("LimitNOFILE", "1048576"),
    ("TasksMax", "infinity"),
    ("UMask", "0077"),
    ("NoNewPrivileges", "yes"),
    ("LockPersonality", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged @mount"),
    ("SystemCallErrorNumber", "EPERM"),
    ("KeyringMode", "private"),
];

/// The same for the system's manager only. A user's has no privileges for them; there they would need
/// `PrivateUsers=`, which hides GPUs.
const SYSTEM_UNIT_SETTINGS: &[(&str, &str)] = &[
    ("LimitMEMLOCK", "infinity"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("ProtectSystem", "strict"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("PrivateMounts", "yes"),
    ("PrivateTmp", "yes"),
    ("DevicePolicy", "closed"),
    // Globs: the names differ between driver generations, and a missing one hides the GPU.
    ("DeviceAllow", "char-nvidia* rw"),
    ("DeviceAllow", "char-infiniband* rw"),
    ("DeviceAllow", "char-gdrdrv rw"),
    // It implies a device list: without the lines above it hides every GPU.
    ("ProtectClock", "yes"),
];

/// What a unit is written from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUnit {
    /// One line for people.
    pub description: String,
    /// The program and its arguments.
    pub exec: Vec<String>,
    /// What cleans up after every end.
    pub reap: Vec<String>,
    /// Variables; never secrets.
    pub environment: BTreeMap<String, String>,
    /// File with secrets as `KEY=value` lines, read by systemd when it exists.
    pub secrets_file: Utf8PathBuf,
    /// Name of the deployment.
    pub name: String,
    /// User that it runs as; `None` writes a unit for a user's own manager.
    pub user: Option<String>,
    /// Directories that must be mounted and are only read.
    pub read_only: Vec<Utf8PathBuf>,
    /// Longest time of a start, warm-up included.
    pub start_bound: Duration,
    /// How long requests in flight may finish.
    pub drain: Duration,
    /// Size of the engine's own /dev/shm.
    pub shared_memory: Bytes,
}

/// Writes the unit.
///
/// # Errors
/// When a word cannot be written in a unit file.
pub fn write_unit(unit: &ServiceUnit) -> Result<String, UnwritableWord> {
    let mut text = format!(
        "# Written by `kdeploy export systemd`. Why each setting is so: kdeploy@.service.\n\
         # Secrets (HF_TOKEN, KDEPLOY_API_KEY, VLLM_API_KEY): KEY=value lines in\n\
         # {}, mode 0600.\n",
        unit.secrets_file
    );
    let mut section = |name: &str, lines: Vec<(&str, String)>| {
        let _ = write!(text, "\n[{name}]\n");
        for (key, value) in lines {
            let _ = writeln!(text, "{key}={value}");
        }
    };
    section("Unit", unit_section(unit)?);
    section("Service", service_section(unit)?);
    let target = if unit.user.is_some() { "multi-user.target" } else { "default.target" };
    section("Install", vec![("WantedBy", target.to_owned())]);
    Ok(text)
}

fn unit_section(unit: &ServiceUnit) -> Result<Vec<(&'static str, String)>, UnwritableWord> {
    let description: String =
        unit.description.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut lines = vec![("Description", description.replace('%', "%%"))];
    if unit.user.is_some() {
        // NVSwitch machines cannot compute before the fabric manager is up.
        lines.push(("Wants", "network-online.target".to_owned()));
        let after = "network-online.target nvidia-persistenced.service nvidia-fabricmanager.service";
        lines.push(("After", after.to_owned()));
    }
    if !unit.read_only.is_empty() {
        lines.push(("RequiresMountsFor", paths(&unit.read_only)?));
    }
    lines.push(("StartLimitIntervalSec", start_limit(unit.start_bound).as_secs().to_string()));
    lines.push(("StartLimitBurst", START_BURST.to_string()));
    Ok(lines)
}

/// An interval in which the burst can really happen: starts take minutes.
fn start_limit(start_bound: Duration) -> Duration {
    let seconds = START_BURST * (start_bound + RESTART_PAUSE + STOP_MARGIN).as_secs();
    Duration::from_secs(seconds + seconds / 10)
}

fn service_section(unit: &ServiceUnit) -> Result<Vec<(&'static str, String)>, UnwritableWord> {
    let mut lines = Vec::new();
    if let Some(user) = &unit.user {
        lines.push(("User", user.replace('%', "%%")));
    }
    lines.push(("ExecStart", exec_line(&unit.exec)?));
    lines.push(("ExecStopPost", exec_line(&unit.reap)?));
    for (name, value) in &unit.environment {
        lines.push(("Environment", quoted(&format!("{name}={value}"))?));
    }
    lines.push(("EnvironmentFile", format!("-{}", quoted(unit.secrets_file.as_str())?)));
    lines.push(("RuntimeDirectory", format!("kdeploy/{}", unit.name)));
    lines.push(("RuntimeDirectoryMode", "0700".to_owned()));
    if unit.user.is_some() {
        for (key, value) in [
            ("StateDirectory", "kdeploy"),
            ("CacheDirectory", "kdeploy"),
            ("ConfigurationDirectory", "kdeploy"),
            ("WorkingDirectory", "/var/lib/kdeploy"),
        ] {
            lines.push((key, value.to_owned()));
        }
        let size = unit.shared_memory.as_u64();
        lines.push(("TemporaryFileSystem", format!("/dev/shm:rw,mode=1777,size={size}")));
        // Homes are hidden, but for what is served or run from there.
        let at_home =
            |path: &Utf8PathBuf| ["/home", "/root", "/run/user"].iter().any(|home| path.starts_with(home));
        let (at_home, elsewhere): (Vec<_>, Vec<_>) = unit.read_only.iter().cloned().partition(at_home);
        lines.push(("ProtectHome", if at_home.is_empty() { "yes" } else { "tmpfs" }.to_owned()));
        if !at_home.is_empty() {
            // A colon would name the place inside the service.
            lines.push(("BindReadOnlyPaths", paths(&at_home)?.replace(':', "\\:")));
        }
        if !elsewhere.is_empty() {
            lines.push(("ReadOnlyPaths", paths(&elsewhere)?));
        }
    }
    lines.push(("TimeoutStopSec", (unit.drain + STOP_MARGIN).as_secs().to_string()));
    let add = |lines: &mut Vec<_>, settings: &[(&'static str, &'static str)]| {
        lines.extend(settings.iter().map(|(key, value)| (*key, (*value).to_owned())));
    };
    add(&mut lines, UNIT_SETTINGS);
    if unit.user.is_some() {
        add(&mut lines, SYSTEM_UNIT_SETTINGS);
    }
    Ok(lines)
}

fn paths(paths: &[Utf8PathBuf]) -> Result<String, UnwritableWord> {
    let words: Result<Vec<String>, _> = paths.iter().map(|path| quoted(path.as_str())).collect();
    Ok(words?.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> ServiceUnit {
        ServiceUnit {
            description: "50% of\nwhat".to_owned(),
            exec: ["/usr/bin/kdeploy", "up", "/models/a b"].map(str::to_owned).to_vec(),
            reap: ["/usr/bin/kdeploy", "reap", "kimi"].map(str::to_owned).to_vec(),
            environment: BTreeMap::from([("KDEPLOY_SET".to_owned(), "a=\"x y\"".to_owned())]),
            secrets_file: "/etc/kdeploy/kimi.env".into(),
            name: "kimi".to_owned(),
            user: Some("kdeploy".to_owned()),
            read_only: vec!["/models/a b".into()],
            start_bound: Duration::from_secs(3_900),
            drain: Duration::from_secs(30),
            shared_memory: Bytes::from_gib(2),
        }
    }

    fn value<'a>(text: &'a str, key: &str) -> &'a str {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or("absent")
    }

    #[test]
    fn what_the_plan_knows_stands_in_the_unit() {
        let text = write_unit(&unit()).unwrap();
        assert_eq!(value(&text, "Description"), "50%% of what");
        assert_eq!(value(&text, "ExecStart"), "/usr/bin/kdeploy up \"/models/a b\"");
        assert_eq!(value(&text, "ExecStopPost"), "/usr/bin/kdeploy reap kimi");
        assert_eq!(value(&text, "Environment"), "\"KDEPLOY_SET=a=\\\"x y\\\"\"");
        assert_eq!(value(&text, "TemporaryFileSystem"), "/dev/shm:rw,mode=1777,size=2147483648");
        assert_eq!(value(&text, "TimeoutStopSec"), "75");
        assert_eq!(value(&text, "RequiresMountsFor"), "\"/models/a b\"");
        assert_eq!((value(&text, "ProtectHome"), value(&text, "BindReadOnlyPaths")), ("yes", "absent"));
        let at_home = ServiceUnit { read_only: vec!["/home/me/a:b".into(), "/srv/c".into()], ..unit() };
        let text = write_unit(&at_home).unwrap();
        assert_eq!(value(&text, "ProtectHome"), "tmpfs");
        assert_eq!(value(&text, "BindReadOnlyPaths"), "/home/me/a\\:b");
        assert_eq!(value(&text, "ReadOnlyPaths"), "/srv/c");
    }

    #[test]
    fn the_start_limit_can_be_reached() {
        let text = write_unit(&unit()).unwrap();
        let interval: u64 = value(&text, "StartLimitIntervalSec").parse().unwrap();
        let burst: u64 = value(&text, "StartLimitBurst").parse().unwrap();
        assert!(interval > burst * (3_900 + 10), "{interval}");
    }

    /// `systemd/kdeploy@.service` explains each setting; the two must not drift apart.
    #[test]
    fn the_commented_units_hold_the_same_settings() {
        let system = include_str!("../../systemd/kdeploy@.service");
        let user = include_str!("../../systemd/user/kdeploy@.service");
        for (key, value) in UNIT_SETTINGS {
            let line = format!("\n{key}={value}\n");
            assert!(system.contains(&line) && user.contains(&line), "{line}");
        }
        for (key, value) in SYSTEM_UNIT_SETTINGS {
            assert!(system.contains(&format!("\n{key}={value}\n")), "{key}={value}");
        }
        // Neither holds a setting that the other lacks, but for what only one deployment knows.
        let keys = |text: &str| -> std::collections::BTreeSet<String> {
            let of_one = ["Environment", "RequiresMountsFor", "ReadOnlyPaths"];
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let keys = lines.filter_map(|line| Some(line.split_once('=')?.0.to_owned()));
            keys.filter(|key| !of_one.contains(&key.as_str())).collect()
        };
        assert_eq!(keys(system), keys(&write_unit(&unit()).unwrap()));
        assert_eq!(keys(user), keys(&write_unit(&ServiceUnit { user: None, ..unit() }).unwrap()));
    }

    #[test]
    fn a_user_unit_asks_for_no_privilege() {
        let text = write_unit(&ServiceUnit { user: None, ..unit() }).unwrap();
        for key in ["User", "DeviceAllow", "ProtectClock", "LimitMEMLOCK", "StateDirectory", "PrivateTmp"] {
            assert_eq!(value(&text, key), "absent", "{key}");
        }
        assert_eq!(value(&text, "WantedBy"), "default.target");
    }
}
