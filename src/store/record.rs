//! The launch record: what is needed to show, stop and clean a launch, also after its kdeploy died.

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::atomic::{read_bounded, write_atomic};
use crate::config::DeploymentName;
use crate::facts::{CgroupId, EngineFigures, GpuUse, ProcId, RuntimeDir, ShmObject, StopReport};
use crate::measure::RequestRecord;
use crate::plan::Plan;

/// Version of the stored form; raised with every change that an older kdeploy cannot read.
pub const RECORD_FORMAT: u32 = 1;

/// A record is a few kilobytes; anything longer is not one.
const MAX_RECORD: u64 = 16 << 20;

/// What the supervisor last said of the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaunchState {
    /// The engine starts or is warmed up.
    Starting,
    /// It answers.
    Ready,
    /// It died; the next attempt waits.
    Restarting,
    /// It is being ended.
    Stopping,
    /// It ended on request.
    Stopped,
    /// It failed.
    Failed,
}

impl LaunchState {
    /// Should a process of this launch be alive?
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Ready | Self::Restarting | Self::Stopping)
    }
}

/// The first request after the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColdFigures {
    /// The prompt that was sent.
    pub prompt: String,
    /// Its output budget.
    pub max_tokens: u64,
    /// What came back.
    pub record: RequestRecord,
}

/// Everything known of one launch. Fields that an older kdeploy did not write have defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaunchRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Name of the deployment.
    pub name: DeploymentName,
    /// When the launch began.
    #[schemars(with = "String")]
    pub began: Timestamp,
    /// Since when the state holds.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// What the supervisor last said.
    pub state: LaunchState,
    /// Stage of a start, or the reason of a failure, for people.
    pub detail: String,
    /// What is executed.
    pub plan: Plan,
    /// The supervising kdeploy.
    pub supervisor: ProcId,
    /// The engine's main process of the current attempt; it leads the session of the tree.
    pub main: Option<ProcId>,
    /// Every process of the current attempt that was seen.
    #[serde(default)]
    pub members: Vec<ProcId>,
    /// Every shared-memory object that they were seen to use.
    #[serde(default)]
    pub shm: Vec<ShmObject>,
    /// The private temporary directory.
    pub runtime: Option<RuntimeDir>,
    /// The control group of the tree, where the system allowed one.
    #[serde(default)]
    pub cgroup: Option<CgroupId>,
    /// What was used on the GPUs before the attempt; empty where none are used.
    #[serde(default)]
    pub gpus_before: Vec<GpuUse>,
    /// Number of the current attempt's directory.
    pub attempt: u64,
    /// Time from the start of the attempt to ready, in milliseconds.
    #[serde(default)]
    pub ready_ms: Option<u64>,
    /// The first request.
    #[serde(default)]
    pub cold: Option<ColdFigures>,
    /// Smoke result: passed and asked.
    #[serde(default)]
    pub smoke: Option<(u32, u32)>,
    /// Lines of the log that confirm the plan.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// What the engine said of itself.
    #[serde(default)]
    pub figures: EngineFigures,
    /// How it ended.
    #[serde(default)]
    pub stop: Option<StopReport>,
}

impl LaunchRecord {
    /// Where the record of a deployment lies.
    #[must_use]
    pub fn path(deployment: &Utf8Path) -> Utf8PathBuf {
        deployment.join("launch.json")
    }

    /// Reads a record; `None` when there is none. An unreadable one is set aside as
    /// `launch.json.corrupt` and reported: it is never taken as "nothing runs".
    ///
    /// # Errors
    /// When the file cannot be read, is not a record, or was written by a newer kdeploy.
    pub fn load(deployment: &Utf8Path) -> Result<Option<Self>, StoreError> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        let path = Self::path(deployment);
        let Some(bytes) = read_bounded(&path, MAX_RECORD)? else { return Ok(None) };
        let format = serde_json::from_slice::<Format>(&bytes).map(|f| f.format);
        if let Ok(found) = format
            && found > u64::from(RECORD_FORMAT)
        {
            return Err(StoreError::Newer { path, found, known: RECORD_FORMAT });
        }
        let reader = &mut serde_json::Deserializer::from_slice(&bytes);
        match serde_path_to_error::deserialize(reader) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                let aside = path.with_extension("json.corrupt");
                fs_err::rename(&path, &aside)?;
                let reason = format!("{error}; it was set aside as `{aside}`");
                Err(StoreError::Unreadable { path, reason })
            }
        }
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, deployment: &Utf8Path) -> Result<(), StoreError> {
        let path = Self::path(deployment);
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| StoreError::Unreadable { path: path.clone(), reason: error.to_string() })?;
        write_atomic(&path, &bytes)
    }

    /// Removes the record of a deployment that is gone.
    ///
    /// # Errors
    /// When it exists and cannot be removed.
    pub fn remove(deployment: &Utf8Path) -> Result<(), StoreError> {
        match fs_err::remove_file(Self::path(deployment)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LaunchRecord, StoreError};
    use camino::Utf8Path;

    #[test]
    fn a_torn_record_is_set_aside_and_a_newer_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert!(LaunchRecord::load(root).unwrap().is_none());
        std::fs::write(root.join("launch.json"), b"{\"format\": 99, \"later\": true}").unwrap();
        assert!(matches!(LaunchRecord::load(root), Err(StoreError::Newer { found: 99, .. })));
        assert!(root.join("launch.json").exists());
        std::fs::write(root.join("launch.json"), b"{\"format\": 1, \"name\": \"k").unwrap();
        let error = LaunchRecord::load(root).unwrap_err().to_string();
        assert!(error.contains("launch.json.corrupt"), "{error}");
        assert!(root.join("launch.json.corrupt").exists());
        assert!(LaunchRecord::load(root).unwrap().is_none());
    }
}
