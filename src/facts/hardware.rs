//! Hardware facts of another machine, as a file (`kdeploy-hardware-facts/1`) or one that comes with
//! kdeploy.

use serde::Deserialize;

use super::gpu::{ComputeCapability, Gpu, GpuFacts};
use crate::units::Bytes;

/// Schema of the files.
const SCHEMA: &str = "kdeploy-hardware-facts/1";

/// Recordings that come with kdeploy, by name.
pub const BUILTIN_HARDWARE: &[(&str, &str)] = &[
    ("1x-rtx-5090", include_str!("builtin/1x-rtx-5090.json")),
    ("1x-t4", include_str!("builtin/1x-t4.json")),
    ("2x-rtx-3090", include_str!("builtin/2x-rtx-3090.json")),
    ("4x-l40s", include_str!("builtin/4x-l40s.json")),
    ("4x-rtx-pro-6000-server-node", include_str!("builtin/4x-rtx-pro-6000-server-node.json")),
    ("8x-b200", include_str!("builtin/8x-b200.json")),
    ("8x-h200", include_str!("builtin/8x-h200.json")),
    ("8x-rtx-pro-6000-maxq-switches", include_str!("builtin/8x-rtx-pro-6000-maxq-switches.json")),
    (
        "8x-rtx-pro-6000-server-asus-esc8000a",
        include_str!("builtin/8x-rtx-pro-6000-server-asus-esc8000a.json"),
    ),
    ("8x-rtx-pro-6000-server-degraded", include_str!("builtin/8x-rtx-pro-6000-server-degraded.json")),
    ("8x-rtx-pro-6000-server-turin-direct", include_str!("builtin/8x-rtx-pro-6000-server-turin-direct.json")),
    ("8x-rtx-pro-6000-switch-phb", include_str!("builtin/8x-rtx-pro-6000-switch-phb.json")),
    (
        "mixed-4x-rtx-pro-6000-ws-2x-rtx-5090",
        include_str!("builtin/mixed-4x-rtx-pro-6000-ws-2x-rtx-5090.json"),
    ),
];

/// Why a facts file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HardwareFileError {
    /// Not JSON of the right form.
    #[error("at `{path}`: {message}")]
    Json {
        /// Dotted path.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// Another schema.
    #[error("its schema is `{found}`; this kdeploy reads `{SCHEMA}`")]
    Schema {
        /// What it says.
        found: String,
    },
    /// A compute capability that is none.
    #[error("gpu {index}: {message}")]
    Gpu {
        /// Its index.
        index: u32,
        /// What is wrong.
        message: String,
    },
}

#[derive(Deserialize)]
struct RawMachine {
    schema: String,
    driver_version: Option<String>,
    gpus: Vec<RawGpu>,
}

#[derive(Deserialize)]
struct RawGpu {
    index: u32,
    name: Option<String>,
    compute_capability: Option<String>,
    memory_total_bytes: Option<u64>,
    memory_total_mib: Option<u64>,
    memory_free_bytes: Option<u64>,
    nvlink_active_links: Option<u64>,
}

/// Parses a facts file.
///
/// # Errors
/// When it is no JSON of that form or has another schema.
pub fn parse_hardware(bytes: &[u8]) -> Result<GpuFacts, HardwareFileError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let raw: RawMachine = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        HardwareFileError::Json { path: error.path().to_string(), message: error.inner().to_string() }
    })?;
    if raw.schema != SCHEMA {
        return Err(HardwareFileError::Schema { found: raw.schema.chars().take(80).collect() });
    }
    let mut facts = GpuFacts { driver: raw.driver_version, ..GpuFacts::default() };
    for gpu in raw.gpus {
        let capability = gpu.compute_capability.map(|text| text.parse::<ComputeCapability>()).transpose();
        let total =
            gpu.memory_total_bytes.or_else(|| gpu.memory_total_mib?.checked_mul(1 << 20)).map(Bytes::new);
        facts.gpus.push(Gpu {
            index: gpu.index,
            name: gpu.name.map(|name| name.chars().filter(|c| !c.is_control()).take(96).collect()),
            memory_total: total,
            // A machine that is planned for is taken to be idle.
            memory_free: gpu.memory_free_bytes.map(Bytes::new).or(total),
            memory_reserved: None,
            compute_capability: capability
                .map_err(|error| HardwareFileError::Gpu { index: gpu.index, message: error.to_string() })?,
            nvlink: gpu.nvlink_active_links.map(|links| links > 0),
        });
    }
    if facts.gpus.is_empty() {
        facts.absent_because = Some("the facts file names no GPU".to_owned());
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::{BUILTIN_HARDWARE, parse_hardware};
    use crate::units::Bytes;

    #[test]
    fn every_recording_that_comes_along_is_whole() {
        for (name, text) in BUILTIN_HARDWARE {
            let facts = parse_hardware(text.as_bytes()).expect(name);
            assert!(!facts.gpus.is_empty(), "{name}");
            for gpu in &facts.gpus {
                assert!(
                    gpu.memory_total > Some(Bytes::from_gib(10)) && gpu.compute_capability.is_some(),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn mistakes_are_placed() {
        for (text, expected) in [
            ("{", "EOF"),
            (r#"{"schema":"other/1","gpus":[]}"#, "its schema is `other/1`"),
            (r#"{"schema":"kdeploy-hardware-facts/1","gpus":[{"index":"x"}]}"#, "at `gpus[0].index`"),
            (
                r#"{"schema":"kdeploy-hardware-facts/1","gpus":[{"index":0,"compute_capability":"sm12"}]}"#,
                "gpu 0",
            ),
        ] {
            let error = parse_hardware(text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
