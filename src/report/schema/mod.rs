//! The JSON shapes of `--json`: one struct per command, apart from internal state.

mod down;
mod event;
mod logs;
mod plan;
mod status;
mod up;

pub use down::DownBody;
pub use event::{Event, EventKind, ReadyBody};
pub use logs::{LogLineBody, LogsBody};
pub use plan::PlanBody;
pub use status::{DeploymentBody, StatusBody};
pub use up::UpBody;
