//! Flags, help texts, completions: declarations only.

mod args;

pub use args::{
    BenchArgs, Cli, Command, CompletionsArgs, DownArgs, LaunchArgs, LogsArgs, PlanArgs, QuickstartArgs,
    SmokeArgs, StatusArgs, SuperviseArgs, UpArgs,
};
