//! The command line as it is typed. Defaults that come from profiles, environment or planning are
//! not set here: a flag that was not given is `None`.

use std::time::Duration;

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::export_args::ExportArgs;
use super::patch_args::PatchArgs;
use crate::config::{DeploymentName, MemoryItem, ParseMemoryItemError};
use crate::units::{Bytes, ParseBytesError, parse_duration};

/// Serve a large language model with vLLM, right the first time
#[derive(Debug, Parser)]
#[command(
    name = "kdeploy",
    version,
    disable_help_subcommand = true,
    before_help = "Examples:\n  kdeploy quickstart                  the whole way on this machine, with a small real model\n  kdeploy up nvidia/Kimi-K2.5-NVFP4   plan, start, warm up, check; then stay and supervise",
    after_help = "Exit codes: 0 done, 1 the answer is no, 3 not running, 4 not ready, 64-85 see README.md, 130 interrupted."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// Flags of every command.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Print one JSON document on stdout, also on failure
    #[arg(long, global = true)]
    pub json: bool,
    /// Print only the answer and errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Show what kdeploy does (twice: everything)
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Use colour
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: ColorWhen,
    /// Draw no progress bars [env: KDEPLOY_NO_PROGRESS]
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Answer every question with yes
    #[arg(long, global = true)]
    pub yes: bool,
    /// Use no network: what is not on this machine is missing [env: KDEPLOY_OFFLINE]
    #[arg(long, global = true)]
    pub offline: bool,
}

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` or `TERM=dumb`
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Plan, start, warm up and check a model; then stay and supervise it
    Up(Box<UpArgs>),
    /// Show what `up` would do and touch nothing
    Plan(Box<PlanArgs>),
    /// Show, make and take back edits of a checkpoint
    Patch(PatchArgs),
    /// Write a deployment as a file for another tool
    Export(ExportArgs),
    /// Ask a running model questions with known answers
    Smoke(SmokeArgs),
    /// Measure the cold and warm speed of a running model
    Bench(BenchArgs),
    /// Show what runs, since when, and how it feels
    Status(StatusArgs),
    /// Show the engine's own log
    Logs(LogsArgs),
    /// Stop a deployment and prove that nothing of it is left
    Down(DownArgs),
    /// End and clean what a killed kdeploy left, by its launch record only
    Reap(ReapArgs),
    /// Walk the whole way on this machine with a small real model
    Quickstart(QuickstartArgs),
    /// Print shell completions
    Completions(CompletionsArgs),
    /// Print the man page
    Man,
    /// Supervise a planned launch (started by `up`)
    #[command(hide = true)]
    Supervise(SuperviseArgs),
}

/// What to serve, on what, how.
#[derive(Debug, Clone, Default, Args)]
pub struct LaunchArgs {
    /// Model directory, or model id of the local model cache
    #[arg(value_name = "MODEL", help_heading = "Model")]
    pub model: Option<String>,
    /// Name of the deployment [env: KDEPLOY_NAME] [default: from the model]
    #[arg(long, help_heading = "Model")]
    pub name: Option<DeploymentName>,
    /// Profile by name or path of a TOML file [env: KDEPLOY_PROFILE]
    #[arg(long, short, help_heading = "Model")]
    pub profile: Option<String>,
    /// Context window in tokens, or `auto` for what fits [env: KDEPLOY_CONTEXT]
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    pub context: Option<String>,
    /// Let the model's own Python code run
    #[arg(long, help_heading = "Model")]
    pub trust_remote_code: bool,
    /// Tensor parallel size [env: KDEPLOY_TP]
    #[arg(long, value_name = "N", help_heading = "Hardware")]
    pub tp: Option<u32>,
    /// Pipeline parallel size [env: KDEPLOY_PP]
    #[arg(long, value_name = "N", help_heading = "Hardware")]
    pub pp: Option<u32>,
    /// GPUs to use, as `0,1` [env: KDEPLOY_GPUS]
    #[arg(long, value_name = "LIST", help_heading = "Hardware")]
    pub gpus: Option<String>,
    /// Path of `vllm`, a virtual environment, or a managed engine [env: KDEPLOY_ENGINE]
    #[arg(long, value_name = "PATH", help_heading = "Engine")]
    pub engine: Option<String>,
    /// Port to listen on [env: KDEPLOY_PORT] [default: 8000]
    #[arg(long, help_heading = "Engine")]
    pub port: Option<u16>,
    /// Address to listen on [env: KDEPLOY_HOST] [default: 127.0.0.1]
    #[arg(long, help_heading = "Engine")]
    pub host: Option<String>,
    /// Data type of the KV cache [env: KDEPLOY_KV_CACHE_DTYPE]
    #[arg(long, value_name = "TYPE", help_heading = "Engine")]
    pub kv_cache_dtype: Option<String>,
    /// Edits of the checkpoint, in an overlay: `auto`, `none`, or names, separated by commas
    /// [env: KDEPLOY_PATCHES] [default: auto]
    #[arg(long, value_name = "WHICH", help_heading = "Model")]
    pub patches: Option<String>,
    /// Warn only of what this check would refuse; may be repeated
    #[arg(long, value_name = "CODE", value_parser = ["kv-dtype-unsupported"], help_heading = "Model")]
    pub force_preflight: Vec<String>,
    /// Any vLLM option under its own name; may be repeated [env: KDEPLOY_SET]
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_key_value, help_heading = "Engine")]
    pub set: Vec<(String, String)>,
    /// Starts allowed in one launch [env: KDEPLOY_MAX_ATTEMPTS] [default: 3]
    #[arg(long, value_name = "N", help_heading = "Waiting")]
    pub max_attempts: Option<u32>,
    /// Ask no questions after the warm-up
    #[arg(long, help_heading = "Waiting")]
    pub no_smoke: bool,
    /// Flags handed to vLLM as they are; they win over the plan
    #[arg(last = true, value_name = "VLLM_FLAGS", help_heading = "Engine")]
    pub vllm_flags: Vec<String>,
}

/// `kdeploy up`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy up ./SmolLM2-135M -d               start in the background, return when ready\n  kdeploy up Qwen/Qwen3-8B --context 32K -- --enforce-eager"
)]
pub struct UpArgs {
    /// What to serve.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// Run a plan made elsewhere (`kdeploy plan --json`), word for word
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "profile", "context", "tp", "pp", "gpus", "engine", "port", "host", "kv_cache_dtype", "patches", "force_preflight", "set", "vllm_flags"], help_heading = "Model")]
    pub plan: Option<Utf8PathBuf>,
    /// Return when ready; the supervisor stays
    #[arg(long, short, help_heading = "Waiting")]
    pub detach: bool,
    /// With `-d`: give up waiting after this time; the start goes on
    #[arg(long, value_name = "DUR", value_parser = parse_duration, requires = "detach", help_heading = "Waiting")]
    pub wait_timeout: Option<Duration>,
    /// Print events as JSON lines on stdout
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub events: bool,
}

/// `kdeploy plan`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy plan ./SmolLM2-135M            what would happen, and why\n  kdeploy plan ./SmolLM2-135M --argv     just the command line, ready to paste"
)]
pub struct PlanArgs {
    /// What to serve.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// Plan for another machine: a facts file, or `builtin:NAME` (`builtin:` lists them)
    #[arg(long, value_name = "FILE", help_heading = "Hardware")]
    pub facts: Option<String>,
    /// Plan for this vLLM version instead of the one found
    #[arg(long, value_name = "VERSION", help_heading = "Engine")]
    pub engine_version: Option<String>,
    /// Take a row of the memory table as known, such as `activations=2GiB`; may be repeated
    #[arg(long, value_name = "ROW=SIZE", value_parser = parse_assumption, help_heading = "Hardware")]
    pub assume: Vec<(MemoryItem, Bytes)>,
    /// Show the edits of the checkpoint as unified diffs
    #[arg(long, help_heading = "Output")]
    pub show_patches: bool,
    /// Show every value with its origin
    #[arg(long, help_heading = "Output")]
    pub all: bool,
    /// Print just the command line
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub argv: bool,
}

/// `kdeploy smoke`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy smoke kimi\n  kdeploy smoke --url http://gpu-host:8000 --max-ttft 2s"
)]
pub struct SmokeArgs {
    /// Deployment [default: the only one]
    pub name: Option<DeploymentName>,
    /// Ask a server by its URL instead of a deployment (key from KDEPLOY_API_KEY)
    #[arg(long, conflicts_with = "name", help_heading = "Model")]
    pub url: Option<String>,
    /// Fail when an answer's first token takes longer
    #[arg(long, value_name = "DUR", value_parser = parse_duration, help_heading = "Waiting")]
    pub max_ttft: Option<Duration>,
}

/// `kdeploy bench`
#[derive(Debug, Clone, Args)]
#[command(before_help = "Examples:\n  kdeploy bench kimi\n  kdeploy bench --url http://gpu-host:8000 --json")]
pub struct BenchArgs {
    /// Deployment [default: the only one]
    pub name: Option<DeploymentName>,
    /// Measure a server by its URL instead of a deployment (key from KDEPLOY_API_KEY)
    #[arg(long, conflicts_with = "name", help_heading = "Model")]
    pub url: Option<String>,
    /// Warm requests that are measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Model")]
    pub requests: u32,
    /// Write the result with every request's record to a file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<Utf8PathBuf>,
}

/// `kdeploy status`
#[derive(Debug, Clone, Args)]
#[command(before_help = "Examples:\n  kdeploy status\n  kdeploy status kimi --watch")]
pub struct StatusArgs {
    /// Deployment [default: all]
    pub name: Option<DeploymentName>,
    /// Repeat every SECONDS (default 2)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600), help_heading = "Output")]
    pub watch: Option<u64>,
    /// Show stopped and failed ones too
    #[arg(long, help_heading = "Output")]
    pub all: bool,
}

/// `kdeploy logs`
#[derive(Debug, Clone, Args)]
#[command(before_help = "Examples:\n  kdeploy logs -f kimi\n  kdeploy logs kimi -n 200")]
pub struct LogsArgs {
    /// Deployment [default: the only one]
    pub name: Option<DeploymentName>,
    /// Go on as the log grows
    #[arg(long, short, help_heading = "Output")]
    pub follow: bool,
    /// Only the last N lines
    #[arg(long, short = 'n', value_name = "N", help_heading = "Output")]
    pub lines: Option<usize>,
    /// Only records of this level and above: debug, info, warning, error, critical
    #[arg(long, value_name = "LEVEL", help_heading = "Output")]
    pub level: Option<String>,
    /// Only the worker of this rank
    #[arg(long, value_name = "R", help_heading = "Output")]
    pub rank: Option<u32>,
    /// The bytes as the engine wrote them, control characters included
    #[arg(long, conflicts_with_all = ["level", "rank", "json"], help_heading = "Output")]
    pub raw: bool,
    /// An earlier attempt by its number [default: the last]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub attempt: Option<u64>,
}

/// `kdeploy down`
#[derive(Debug, Clone, Args)]
#[command(before_help = "Examples:\n  kdeploy down kimi\n  kdeploy down --all")]
pub struct DownArgs {
    /// Deployment [default: the only one]
    pub name: Option<DeploymentName>,
    /// Stop all deployments
    #[arg(long, conflicts_with = "name", help_heading = "Model")]
    pub all: bool,
    /// Kill what has not ended after this time [default: the plan's]
    #[arg(long, value_name = "DUR", value_parser = parse_duration, help_heading = "Waiting")]
    pub timeout: Option<Duration>,
    /// Leave the overlay of a patched checkpoint
    #[arg(long, help_heading = "Model")]
    pub keep_overlay: bool,
    /// Do not wait for requests in flight
    #[arg(long, help_heading = "Waiting")]
    pub force: bool,
}

/// `kdeploy reap`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy reap                  after every kdeploy that was killed\n  kdeploy reap --dry-run        only show what would go"
)]
pub struct ReapArgs {
    /// Deployment [default: all whose kdeploy is dead]
    pub name: Option<DeploymentName>,
    /// Show what would be ended and removed, touch nothing
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
    /// List remains of engines that no launch record knows, then ask whether to end and remove them
    #[arg(long, conflicts_with = "name", help_heading = "Model")]
    pub unrecorded: bool,
}

/// `kdeploy quickstart`
#[derive(Debug, Clone, Args)]
#[command(
    before_help = "Examples:\n  kdeploy quickstart           install, start, ask, measure, stop\n  kdeploy quickstart --keep    leave it running"
)]
pub struct QuickstartArgs {
    /// Leave the model running
    #[arg(long, help_heading = "Waiting")]
    pub keep: bool,
    /// Install engine and model, start nothing
    #[arg(long, conflicts_with = "keep", help_heading = "Waiting")]
    pub install_only: bool,
    /// Use this vLLM instead of installing one [env: KDEPLOY_ENGINE]
    #[arg(long, value_name = "PATH", help_heading = "Engine")]
    pub engine: Option<String>,
    /// Port to listen on [default: a free one]
    #[arg(long, help_heading = "Engine")]
    pub port: Option<u16>,
}

/// `kdeploy completions`
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `kdeploy supervise`
#[derive(Debug, Clone, Args)]
pub struct SuperviseArgs {
    /// Plan to execute
    pub plan: Utf8PathBuf,
}

fn parse_assumption(text: &str) -> Result<(MemoryItem, Bytes), String> {
    let (row, size) = text.split_once('=').ok_or("write it as ROW=SIZE, such as `activations=2GiB`")?;
    let row = row.parse().map_err(|error: ParseMemoryItemError| error.to_string())?;
    Ok((row, size.parse().map_err(|error: ParseBytesError| error.to_string())?))
}

fn parse_key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.replace('-', "_"), value.to_owned())),
        _ => Err("write it as KEY=VALUE, such as `max_num_seqs=64`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn the_declarations_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_after_the_argument() {
        for line in [
            "kdeploy --json up ./m -d",
            "kdeploy up -d ./m --json",
            "kdeploy up --set max-num-seqs=4 ./m -- --enforce-eager",
            "kdeploy status --watch kimi",
            "kdeploy status --watch=5",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "kdeploy",
            "kdeploy up --wait-timeout 5s ./m",
            "kdeploy down --all kimi",
            "kdeploy up --port 99999 m",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
