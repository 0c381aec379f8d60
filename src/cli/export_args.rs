//! `kdeploy export` as it is typed.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};

use super::args::LaunchArgs;

/// `kdeploy export`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy export systemd --profile kimi\n  kdeploy export systemd ./MODEL --name kimi -o /etc/systemd/system/kimi.service"
)]
pub struct ExportArgs {
    /// What to write.
    #[command(subcommand)]
    pub format: ExportFormat,
}

/// Formats.
#[derive(Debug, Clone, Subcommand)]
pub enum ExportFormat {
    /// A service unit that runs the deployment under systemd
    Systemd(Box<ExportSystemdArgs>),
}

/// `kdeploy export systemd`
#[derive(Debug, Clone, Args)]
pub struct ExportSystemdArgs {
    /// What to serve.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// A unit for a user's own manager (`systemctl --user`) instead of the system's
    #[arg(long, conflicts_with = "run_as", help_heading = "Output")]
    pub user: bool,
    /// User that the service runs as
    #[arg(long, value_name = "USER", default_value = "kdeploy", help_heading = "Output")]
    pub run_as: String,
    /// Write to a file; one that exists is only replaced with --yes
    #[arg(long, short, value_name = "FILE", default_value = "-", help_heading = "Output")]
    pub output: Utf8PathBuf,
}
