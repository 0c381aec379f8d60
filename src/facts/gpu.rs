//! What is known of the GPUs.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// All GPUs that could be read; possibly none, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The readable ones, by index.
    pub gpus: Vec<Gpu>,
    /// Driver version.
    pub driver: Option<String>,
    /// Why there is none: no driver library, no permission, …
    pub absent_because: Option<String>,
    /// GPUs that exist but could not be read, with the reason.
    pub unreadable: Vec<UnreadableGpu>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index (PCI bus order).
    pub index: u32,
    /// Marketing name; for people only, never for decisions.
    pub name: Option<String>,
    /// All of its memory.
    pub memory_total: Option<Bytes>,
    /// Memory that nobody uses now.
    pub memory_free: Option<Bytes>,
    /// Memory that the driver keeps for itself: part of the total, of no use to programs.
    pub memory_reserved: Option<Bytes>,
    /// Compute capability.
    pub compute_capability: Option<ComputeCapability>,
    /// Is it linked to others through NVLink?
    pub nvlink: Option<bool>,
}

/// A GPU that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableGpu {
    /// NVML's index.
    pub index: u32,
    /// What the driver said.
    pub reason: String,
}

/// What is used on a GPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuUse {
    /// NVML's index.
    pub index: u32,
    /// Memory in use.
    pub used: Bytes,
    /// Processes that compute on it, as far as the driver tells.
    pub processes: Vec<GpuProcess>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuProcess {
    /// Its pid, in the driver's own pid namespace.
    pub pid: u32,
    /// Memory it uses, when the driver tells.
    pub used: Option<Bytes>,
}

/// Compute capability, such as 12.0; printed `SM120`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Part before the dot.
    pub major: u32,
    /// Part after the dot.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("SM{}{}", self.major, self.minor))
    }
}

/// Why a compute capability could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a compute capability; write two numbers with a dot, such as `12.0`")]
pub struct ParseCapabilityError {
    given: String,
}

impl FromStr for ComputeCapability {
    type Err = ParseCapabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseCapabilityError { given: text.chars().take(40).collect() };
        let (major, minor) = text.trim().split_once('.').ok_or_else(fail)?;
        Ok(Self { major: major.parse().map_err(|_| fail())?, minor: minor.parse().map_err(|_| fail())? })
    }
}

#[cfg(test)]
mod tests {
    use super::ComputeCapability;

    #[test]
    fn capabilities_have_an_order() {
        let parse = |text: &str| text.parse::<ComputeCapability>();
        assert!(parse("9.0").expect("good") < parse("10.0").expect("good"));
        assert_eq!(parse("12.0").expect("good").to_string(), "SM120");
        for bad in ["", "12", "12.", "a.b", "1.2.3", "-1.0"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
