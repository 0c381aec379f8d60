//! Has a launch given back the memory of its GPUs?

use crate::facts::GpuUse;
use crate::units::Bytes;

/// What the driver's own bookkeeping may move by, without any program having done something.
const NOISE: Bytes = Bytes::from_mib(256);

/// A GPU that still holds memory of an ended launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldGpu {
    /// NVML's index.
    pub index: u32,
    /// Memory beyond what was used before the launch and what others have taken since.
    pub bytes: Bytes,
    /// Processes of the launch that the driver still lists.
    pub by: Vec<u32>,
}

/// Compares the GPUs before a launch with those after its last process ended. `ours` are the pids of
/// the launch. What other processes use now and did not use before is theirs.
#[must_use]
pub fn still_held(before: &[GpuUse], now: &[GpuUse], ours: &[u32]) -> Vec<HeldGpu> {
    let mut held = Vec::new();
    for gpu in now {
        let Some(then) = before.iter().find(|then| then.index == gpu.index) else { continue };
        let by: Vec<u32> =
            gpu.processes.iter().map(|process| process.pid).filter(|pid| ours.contains(pid)).collect();
        let others: Bytes = gpu
            .processes
            .iter()
            .filter(|process| !ours.contains(&process.pid))
            .map(|process| {
                let had = then.processes.iter().find(|known| known.pid == process.pid);
                let had = had.and_then(|known| known.used).unwrap_or(Bytes::ZERO);
                process.used.unwrap_or(Bytes::ZERO).saturating_sub(had)
            })
            .sum();
        // A driver that does not tell what the others use cannot blame us for it.
        let told = gpu
            .processes
            .iter()
            .all(|process| process.used.is_some() || then.processes.iter().any(|p| p.pid == process.pid));
        let bytes = gpu.used.saturating_sub(then.used).saturating_sub(others);
        if !by.is_empty() || (told && bytes > NOISE) {
            held.push(HeldGpu { index: gpu.index, bytes, by });
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::{HeldGpu, still_held};
    use crate::facts::{GpuProcess, GpuUse};
    use crate::units::Bytes;

    fn gpu(index: u32, used_mib: u64, processes: &[(u32, Option<u64>)]) -> GpuUse {
        let processes = processes
            .iter()
            .map(|(pid, used)| GpuProcess { pid: *pid, used: used.map(Bytes::from_mib) })
            .collect();
        GpuUse { index, used: Bytes::from_mib(used_mib), processes }
    }

    #[test]
    fn memory_is_back_when_nothing_beyond_noise_and_others_is_used() {
        let before = [gpu(0, 500, &[(7, Some(400))]), gpu(1, 3, &[])];
        assert_eq!(still_held(&before, &[gpu(0, 600, &[(7, Some(400))]), gpu(1, 200, &[])], &[42]), []);
        let held = still_held(&before, &[gpu(0, 90_500, &[(7, Some(400))]), gpu(1, 3, &[])], &[42]);
        assert_eq!(held, [HeldGpu { index: 0, bytes: Bytes::from_mib(90_000), by: vec![] }]);
    }

    #[test]
    fn what_others_took_meanwhile_is_theirs() {
        let before = [gpu(0, 500, &[(7, Some(400))])];
        let now = [gpu(0, 20_500, &[(7, Some(10_400)), (8, Some(10_000))])];
        assert_eq!(still_held(&before, &now, &[42]), []);
        // Who it is, the driver may not tell (another container): then nothing can be said.
        assert_eq!(still_held(&before, &[gpu(0, 20_500, &[(8, None)])], &[42]), []);
    }

    #[test]
    fn a_process_of_ours_that_the_driver_still_lists_holds_its_gpu() {
        let held = still_held(&[gpu(0, 3, &[])], &[gpu(0, 10, &[(42, Some(7))])], &[41, 42]);
        assert_eq!(held, [HeldGpu { index: 0, bytes: Bytes::from_mib(7), by: vec![42] }]);
        // A GPU that was not seen before cannot be compared.
        assert_eq!(still_held(&[], &[gpu(0, 90_000, &[])], &[42]), []);
    }
}
