//! Flags, help texts, completions: declarations only.

mod args;
mod export_args;
mod patch_args;

pub use args::{
    BenchArgs, Cli, ColorWhen, Command, CompletionsArgs, DownArgs, GlobalArgs, LaunchArgs, LogsArgs,
    PlanArgs, QuickstartArgs, ReapArgs, SmokeArgs, StatusArgs, SuperviseArgs, UpArgs,
};
pub use export_args::{ExportArgs, ExportFormat, ExportSystemdArgs};
pub use patch_args::{PatchApplyArgs, PatchArgs, PatchCommand, PatchModelArgs};
