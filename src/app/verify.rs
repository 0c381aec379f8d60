//! After the last process: are the port and the GPUs' memory free again?

use std::time::{Duration, Instant};

use crate::facts::GpuUse;
use crate::lifecycle::{HeldGpu, still_held};
use crate::plan::{EngineDevice, Plan};
use crate::probe::{self, PortState};
use crate::store::LaunchRecord;

/// The driver gives memory back after the process is gone, some seconds later when it was killed.
const GPU_PATIENCE: Duration = Duration::from_secs(10);
/// The kernel closes a dead process's sockets before it is reaped.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(200);

/// What is used on the GPUs before an attempt; nothing where none are used.
pub(super) fn gpu_use_before(plan: &Plan, nvml_library: Option<&str>) -> Vec<GpuUse> {
    match plan.engine.device {
        EngineDevice::Cuda => probe::read_gpu_use(nvml_library),
        EngineDevice::Cpu => Vec::new(),
    }
}

/// Waits (bounded) until the port and the GPU memory of a launch whose processes are all dead are
/// free; returns what is not, in words.
pub(super) async fn what_is_not_free(record: &LaunchRecord, nvml_library: Option<&str>) -> Vec<String> {
    if record.main.is_none() {
        return Vec::new(); // nothing was started
    }
    let mut left: Vec<String> = wait_for_gpus(record, nvml_library).await.iter().map(held_text).collect();
    left.extend(wait_for_port(&record.plan).await);
    left
}

async fn wait_for_gpus(record: &LaunchRecord, nvml_library: Option<&str>) -> Vec<HeldGpu> {
    if record.gpus_before.is_empty() {
        return Vec::new();
    }
    let ours: Vec<u32> = record.members.iter().filter_map(|id| u32::try_from(id.pid).ok()).collect();
    let deadline = Instant::now() + GPU_PATIENCE;
    loop {
        let held = still_held(&record.gpus_before, &probe::read_gpu_use(nvml_library), &ours);
        if held.is_empty() || Instant::now() >= deadline {
            return held;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn wait_for_port(plan: &Plan) -> Option<String> {
    let deadline = Instant::now() + PORT_PATIENCE;
    loop {
        match probe::check_port(&plan.host, plan.port) {
            PortState::Taken { holder: None } if Instant::now() >= deadline => {
                return Some(format!("port {} (it cannot be seen by whom it is held)", plan.port));
            }
            PortState::Taken { holder: None } => tokio::time::sleep(LOOK).await,
            // No process of the launch lives: whoever listens now came afterwards.
            PortState::Taken { .. } | PortState::Free | PortState::Lingering | PortState::Unusable { .. } => {
                return None;
            }
        }
    }
}

fn held_text(held: &HeldGpu) -> String {
    let by = match held.by.as_slice() {
        [] => "no process is listed for it".to_owned(),
        pids => {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("the driver still lists process {pids}")
        }
    };
    format!("{} of memory on GPU {} ({by})", held.bytes, held.index)
}
