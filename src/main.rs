//! Parses arguments, starts tracing and tokio, calls the command, maps the outcome to an exit code.

use std::process::ExitCode;

use clap::Parser as _;
use kdeploy::app;
use kdeploy::cli::Cli;
use kdeploy::report::{Diagnostic, ErrorCode, Exit, Ui, UiOptions};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("kdeploy {} stopped because of a bug in itself: {info}", env!("CARGO_PKG_VERSION"));
        eprintln!(
            "Attach this text, the command line and the output of `kdeploy status --all --json` to a report."
        );
    }));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error).into(),
    };
    app::start_tracing(cli.global.verbose);
    let ui = Ui::new(app::ui_options(&cli.global));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let refused =
                Diagnostic::new(ErrorCode::OsRefused, "no threads can be started").cause_chain(&error);
            ui.failure(&refused);
            return refused.exit().into();
        }
    };
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(app::run(cli, ui))));
    // A thread that still reads must not hold up the end.
    runtime.shutdown_background();
    outcome.unwrap_or(Exit::Bug).into()
}

/// Help and version are answers; everything else clap says is a usage error, 64 and not its own 2.
fn usage(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // A closed pipe is nobody's error.
        let _ = error.print();
        return Exit::Done;
    }
    let json = std::env::args_os().any(|argument| argument == "--json");
    if json {
        let text = error.to_string();
        let summary = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Ui::new(UiOptions { json, ..UiOptions::default() })
            .failure(&Diagnostic::new(ErrorCode::Usage, summary));
    } else {
        let _ = error.print();
    }
    Exit::Usage
}
