//! The JSON shapes of `--json`: one struct per command, apart from internal state.

mod bench;
mod down;
mod event;
mod export;
mod logs;
mod patch;
mod plan;
mod quickstart;
mod reap;
mod smoke;
mod status;
mod up;

pub use bench::{BenchBody, EnvironmentBody, RunBody, WorkloadBody};
pub use down::DownBody;
pub use event::{Event, EventKind, ReadyBody};
pub use export::ExportBody;
pub use logs::{LogLineBody, LogsBody};
pub use patch::{InPlaceBody, OverlayBody, PatchBody, PatchDiff, PatchInfo};
pub use plan::{PlanBody, PlannedEdit};
pub use quickstart::{InstalledBody, PartBody, QuickstartBody};
pub use reap::{ReapBody, ReapedBody};
pub use smoke::SmokeBody;
pub use status::{DeploymentBody, StatusBody};
pub use up::UpBody;
