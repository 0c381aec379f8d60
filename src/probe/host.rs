//! `/proc`, `/sys` → [`HostFacts`].

use super::files::read_kernel;
use crate::facts::{HostFacts, apply_memory_limit, parse_cpu_flags, parse_meminfo};
use crate::units::Bytes;

/// Reads the machine; what cannot be read is absent.
#[must_use]
pub fn read_host() -> HostFacts {
    let mut memory = parse_meminfo(&read_kernel("/proc/meminfo").unwrap_or_default());
    for cgroup in own_cgroups() {
        let file = |name: &str| read_kernel(&format!("{cgroup}/{name}"));
        if let (Some(max), Some(current)) = (file("memory.max"), file("memory.current")) {
            memory = apply_memory_limit(memory, &max, &current);
        }
    }
    let shm = nix::sys::statvfs::statvfs("/dev/shm").ok();
    HostFacts {
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        cpu_flags: parse_cpu_flags(&read_kernel("/proc/cpuinfo").unwrap_or_default()),
        arch: std::env::consts::ARCH.to_owned(),
        memory_total: memory.total,
        memory_available: memory.available,
        shm_free: shm.map(|shm| Bytes::new(shm.blocks_available().saturating_mul(shm.fragment_size()))),
    }
}

/// Our control group and all above it: each may set a limit.
fn own_cgroups() -> Vec<String> {
    let text = read_kernel("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let mut groups = vec!["/sys/fs/cgroup".to_owned()];
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
        let deeper = format!("{}/{part}", groups.last().map_or("", String::as_str));
        groups.push(deeper);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::read_host;

    #[test]
    fn this_machine_can_be_read() {
        let host = read_host();
        assert!(host.cpus.is_some_and(|cpus| cpus >= 1));
        let (total, available) =
            (host.memory_total.expect("total"), host.memory_available.expect("available"));
        assert!(available <= total, "{available} of {total}");
        assert!(!host.arch.is_empty());
    }
}
