//! Flags, help texts, completions: declarations only.

mod args;

pub use args::{
    BenchArgs, Cli, ColorWhen, Command, CompletionsArgs, DownArgs, GlobalArgs, LaunchArgs, LogsArgs,
    PlanArgs, QuickstartArgs, SmokeArgs, StatusArgs, SuperviseArgs, UpArgs,
};
