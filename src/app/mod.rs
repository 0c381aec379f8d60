//! Commands: the only place where rooms meet. One file per command.

mod bench;
mod context;
mod down;
mod explain_inputs;
mod explain_patches;
mod export;
mod failure;
mod inputs;
mod logs;
mod overlay;
mod patch;
mod patch_library;
mod plan;
mod provision;
mod quickstart;
mod reap;
mod reap_command;
mod smoke;
mod status;
mod supervise;
mod target;
mod up;
mod verify;

use clap::CommandFactory as _;

use crate::cli::{Cli, ColorWhen, Command, GlobalArgs};
use crate::config::env_vars;
use crate::report::{ColorChoice, Diagnostic, ErrorCode, Exit, Ui, UiOptions};

pub use context::App;

/// What the door to the terminal needs to know of the command line and the environment.
#[must_use]
pub fn ui_options(global: &GlobalArgs) -> UiOptions {
    let no_progress = std::env::var_os(env_vars::NO_PROGRESS).is_some_and(|value| !value.is_empty());
    UiOptions {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose > 0,
        no_progress: global.no_progress || no_progress,
        color: match global.color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        },
    }
}

/// Runs a parsed command line and returns how to exit; failures are told through `ui`.
pub async fn run(cli: Cli, ui: Ui) -> Exit {
    let app = match App::new(ui, cli.global.offline, cli.global.yes) {
        Ok(app) => app,
        Err((ui, diagnostic)) => {
            ui.failure(&diagnostic);
            return diagnostic.exit();
        }
    };
    match dispatch(&app, &cli.command).await {
        Ok(exit) => exit,
        Err(diagnostic) => {
            app.ui.failure(&diagnostic);
            diagnostic.exit()
        }
    }
}

async fn dispatch(app: &App, command: &Command) -> Result<Exit, Diagnostic> {
    match command {
        Command::Up(args) => up::up(app, args).await,
        Command::Plan(args) => plan::plan(app, args).await,
        Command::Patch(args) => patch::patch(app, &args.command).await,
        Command::Export(args) => export::export(app, args).await,
        Command::Smoke(args) => smoke::smoke(app, args).await,
        Command::Bench(args) => bench::bench(app, args).await,
        Command::Status(args) => status::status(app, args).await,
        Command::Logs(args) => logs::logs(app, args).await,
        Command::Down(args) => down::down(app, args).await,
        Command::Reap(args) => reap_command::reap(app, args).await,
        Command::Quickstart(args) => quickstart::quickstart(app, args).await,
        Command::Supervise(args) => up::run_supervisor(app, args).await,
        Command::Completions(args) => {
            let mut text = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "kdeploy", &mut text);
            app.ui.raw(&text);
            Ok(Exit::Done)
        }
        Command::Man => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(|error| {
                Diagnostic::new(ErrorCode::Io, "the man page cannot be written").cause_chain(&error)
            })?;
            app.ui.raw(&text);
            Ok(Exit::Done)
        }
    }
}

/// Sends tracing to stderr when it was asked for: `KDEPLOY_LOG` is a filter, `-v` means info, `-vv`
/// everything of kdeploy.
pub fn start_tracing(verbosity: u8) {
    let filter = std::env::var(env_vars::LOG).ok().filter(|filter| !filter.is_empty());
    let level = match verbosity {
        0 => "off",
        1 => "kdeploy=info",
        _ => "kdeploy=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_new(filter.as_deref().unwrap_or(level));
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    // A second subscriber cannot be set; there is only this one.
    let _ = subscriber.with_env_filter(filter.unwrap_or_default()).try_init();
}
