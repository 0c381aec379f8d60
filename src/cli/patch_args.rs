//! `kdeploy patch` as it is typed.

use clap::{Args, Subcommand};

use super::args::LaunchArgs;

/// `kdeploy patch`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy patch list ./MODEL                              which patches the facts call for, and why\n  kdeploy patch diff ./MODEL --patches drop-fp8-kv-cache  what one would change"
)]
pub struct PatchArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PatchCommand,
}

/// What to do with patches.
#[derive(Debug, Clone, Subcommand)]
pub enum PatchCommand {
    /// List the patches, and for a model whether the facts call for them
    List(Box<PatchModelArgs>),
    /// Show a patch: why, when, where it is from, what it edits
    Show {
        /// Its name
        name: String,
    },
    /// Show what would change, as unified diffs
    Diff(Box<PatchModelArgs>),
    /// Make the overlay, or with `--in-place` edit the checkpoint itself
    Apply(Box<PatchApplyArgs>),
    /// Take edits back: those in the checkpoint, byte for byte, and its overlays
    Revert(Box<PatchModelArgs>),
    /// Show which overlays there are, and what was edited in a checkpoint
    Status(Box<PatchModelArgs>),
}

/// A model, and for what it is looked at.
#[derive(Debug, Clone, Args)]
pub struct PatchModelArgs {
    /// What to serve.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// Look at it for another machine: a facts file, or `builtin:NAME`
    #[arg(long, value_name = "FILE", help_heading = "Hardware")]
    pub facts: Option<String>,
    /// Look at it for this vLLM version instead of the one found
    #[arg(long, value_name = "VERSION", help_heading = "Engine")]
    pub engine_version: Option<String>,
}

/// `kdeploy patch apply`
#[derive(Debug, Clone, Args)]
pub struct PatchApplyArgs {
    /// The model.
    #[command(flatten)]
    pub model: PatchModelArgs,
    /// Edit the checkpoint itself; the originals are kept beside it
    #[arg(long, help_heading = "Model")]
    pub in_place: bool,
}
