//! NVML → [`GpuFacts`].

use std::ffi::OsStr;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::facts::{ComputeCapability, Gpu, GpuFacts, GpuProcess, GpuUse, UnreadableGpu};
use crate::units::Bytes;

/// Reads the GPUs. No driver is no error: the facts say why there is none. `library` names the NVML
/// library where it is not the system's.
#[must_use]
pub fn read_gpus(library: Option<&str>) -> GpuFacts {
    let nvml = match open(library) {
        Ok(nvml) => nvml,
        Err(error) => {
            return GpuFacts { absent_because: Some(absence(&error, library)), ..GpuFacts::default() };
        }
    };
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return GpuFacts { absent_because: Some(error.to_string()), ..GpuFacts::default() },
    };
    let mut facts = GpuFacts { driver: nvml.sys_driver_version().ok(), ..GpuFacts::default() };
    for index in 0..count {
        match nvml.device_by_index(index) {
            Ok(device) => facts.gpus.push(read_gpu(index, &device)),
            Err(error) => facts.unreadable.push(UnreadableGpu { index, reason: error.to_string() }),
        }
    }
    if count == 0 {
        facts.absent_because = Some("the driver sees no GPU".to_owned());
    }
    facts
}

fn open(library: Option<&str>) -> Result<Nvml, NvmlError> {
    // The unversioned name of the wrapper's default exists only where headers are installed.
    Nvml::builder().lib_path(OsStr::new(library.unwrap_or("libnvidia-ml.so.1"))).init()
}

/// Reads what is used on each GPU now; those that cannot be read are left out.
#[must_use]
pub fn read_gpu_use(library: Option<&str>) -> Vec<GpuUse> {
    let Ok(nvml) = open(library) else { return Vec::new() };
    let read = |index| {
        let device = nvml.device_by_index(index).ok()?;
        let used = Bytes::new(device.memory_info().ok()?.used);
        let processes = device.running_compute_processes().unwrap_or_default();
        let processes = processes.into_iter().map(|process| GpuProcess {
            pid: process.pid,
            used: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Bytes::new(bytes)),
                UsedGpuMemory::Unavailable => None,
            },
        });
        Some(GpuUse { index, used, processes: processes.collect() })
    };
    (0..nvml.device_count().unwrap_or_default()).filter_map(read).collect()
}

fn read_gpu(index: u32, device: &Device<'_>) -> Gpu {
    let memory = device.memory_info().ok();
    let capability = device.cuda_compute_capability().ok();
    Gpu {
        index,
        name: device.name().ok().map(|name| name.chars().filter(|c| !c.is_control()).take(96).collect()),
        memory_total: memory.as_ref().map(|memory| Bytes::new(memory.total)),
        memory_reserved: memory.as_ref().map(|memory| Bytes::new(memory.reserved)),
        nvlink: device.link_wrapper_for(0).is_active().ok(),
        memory_free: memory.as_ref().map(|memory| Bytes::new(memory.free)),
        compute_capability: capability.and_then(|cc| {
            Some(ComputeCapability {
                major: u32::try_from(cc.major).ok()?,
                minor: u32::try_from(cc.minor).ok()?,
            })
        }),
    }
}

fn absence(error: &NvmlError, library: Option<&str>) -> String {
    match error {
        NvmlError::LibloadingError(_) => {
            format!(
                "no NVIDIA driver on this host ({} cannot be loaded)",
                library.unwrap_or("libnvidia-ml.so.1")
            )
        }
        other => format!("the NVIDIA driver does not answer: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::read_gpus;

    #[test]
    fn a_missing_driver_is_said() {
        let facts = read_gpus(Some("/nowhere/libnvidia-ml.so.1"));
        assert!(facts.gpus.is_empty());
        let reason = facts.absent_because.expect("a reason");
        assert!(reason.contains("/nowhere/libnvidia-ml.so.1"), "{reason}");
    }
}
