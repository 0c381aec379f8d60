//! What is known of the machine, and the parsers of the kernel's texts.

use crate::units::Bytes;

/// The machine. Absent means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// CPUs this process may use (affinity and cgroup quota counted).
    pub cpus: Option<u32>,
    /// Instruction set extensions, as the kernel names them.
    pub cpu_flags: Vec<String>,
    /// `x86_64`, `aarch64`, …
    pub arch: String,
    /// All memory, or the cgroup's limit where that is lower.
    pub memory_total: Option<Bytes>,
    /// Memory that can be had without swapping, within the cgroup's limit.
    pub memory_available: Option<Bytes>,
    /// Free space of `/dev/shm`.
    pub shm_free: Option<Bytes>,
}

impl HostFacts {
    /// Does the CPU have this extension?
    #[must_use]
    pub fn has_cpu_flag(&self, flag: &str) -> bool {
        self.cpu_flags.iter().any(|known| known == flag)
    }
}

/// Total and available memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// `MemTotal`.
    pub total: Option<Bytes>,
    /// `MemAvailable`.
    pub available: Option<Bytes>,
}

/// Parses `/proc/meminfo`; lines that make no sense are passed over.
#[must_use]
pub fn parse_meminfo(text: &str) -> MemoryReading {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024).map(Bytes::new)
    };
    MemoryReading { total: field("MemTotal"), available: field("MemAvailable") }
}

/// Parses the first `flags` (x86) or `Features` (arm) line of `/proc/cpuinfo`.
#[must_use]
pub fn parse_cpu_flags(text: &str) -> Vec<String> {
    text.lines()
        .find_map(|line| {
            let (name, flags) = line.split_once(':')?;
            matches!(name.trim(), "flags" | "Features").then_some(flags)
        })
        .map(|flags| flags.split_whitespace().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// Narrows a reading by a cgroup (v2) limit: `memory.max` and `memory.current`; `max` means no
/// limit.
#[must_use]
pub fn apply_memory_limit(reading: MemoryReading, max: &str, current: &str) -> MemoryReading {
    let Ok(limit) = max.trim().parse::<u64>() else { return reading };
    let limit = Bytes::new(limit);
    let left = current.trim().parse().map(|used| limit.saturating_sub(Bytes::new(used))).ok();
    let lower = |known: Option<Bytes>, cap: Option<Bytes>| match (known, cap) {
        (Some(known), Some(cap)) => Some(known.min(cap)),
        (known, cap) => known.or(cap),
    };
    MemoryReading { total: lower(reading.total, Some(limit)), available: lower(reading.available, left) }
}

#[cfg(test)]
mod tests {
    use super::{MemoryReading, apply_memory_limit, parse_cpu_flags, parse_meminfo};
    use crate::units::Bytes;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24672420 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        let reading = parse_meminfo(text);
        assert_eq!(reading.total, Some(Bytes::new(24_672_420 * 1024)));
        assert_eq!(reading.available, Some(Bytes::new(20_000_000 * 1024)));
        for hostile in
            ["", "MemTotal", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB", "MemTotalX: 1 kB"]
        {
            assert_eq!(parse_meminfo(hostile), MemoryReading::default(), "{hostile}");
        }
    }

    #[test]
    fn cpu_flags_come_from_the_first_processor() {
        let text = "processor : 0\nflags\t\t: fpu avx512f amx_tile\n\nprocessor : 1\nflags : fpu\n";
        assert_eq!(parse_cpu_flags(text), ["fpu", "avx512f", "amx_tile"]);
        assert_eq!(parse_cpu_flags("Features : asimd bf16\n"), ["asimd", "bf16"]);
        assert!(parse_cpu_flags("nothing").is_empty());
    }

    #[test]
    fn a_cgroup_limit_narrows_memory() {
        let host = MemoryReading { total: Some(Bytes::from_gib(64)), available: Some(Bytes::from_gib(50)) };
        let gib = |n: u64| (n << 30).to_string();
        let limited = apply_memory_limit(host, &gib(16), &gib(6));
        assert_eq!(limited.total, Some(Bytes::from_gib(16)));
        assert_eq!(limited.available, Some(Bytes::from_gib(10)));
        assert_eq!(apply_memory_limit(host, "max\n", "1"), host);
        assert_eq!(apply_memory_limit(host, &gib(16), &gib(20)).available, Some(Bytes::ZERO));
    }
}
