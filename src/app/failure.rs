//! Failures of a launch, put into words: what happened, the first error that is no cascade, what to
//! do next.

use camino::Utf8Path;
use std::process::ExitStatus;

use crate::facts::EngineFigures;
use crate::lifecycle::{Failure, FailureScan, FirstError};
use crate::plan::Plan;
use crate::report::{Diagnostic, ErrorCode, Retry};
use crate::units::format_duration;

/// Lines of the log's end that are shown when no error was found in it.
const TAIL_SHOWN: usize = 6;

/// Explains why a launch failed. `known` is what a room already said about it.
pub(super) fn explain(
    failure: Failure,
    known: Option<Diagnostic>,
    heard: Option<(&FailureScan, &EngineFigures)>,
    log: Option<&Utf8Path>,
    status: Option<ExitStatus>,
    plan: &Plan,
) -> Diagnostic {
    let name = &plan.name;
    let (scan, figures) = heard.unzip();
    let kv_error = scan.and_then(|scan| kv_type_error(scan, plan));
    let file = log.map_or("engine.log", |path| path.as_str());
    let of_kv_type = || {
        let error = kv_error?;
        let place = format!("{file}:{}", error.line);
        let diagnostic = super::explain_patches::kv_type_failed(plan.kv_type.as_ref(), &plan.model.id);
        Some(diagnostic.log_line(place, error.text.clone()))
    };
    let mut diagnostic = of_kv_type()
        .or(known)
        .or_else(|| refused_context(failure, figures?, plan))
        .unwrap_or_else(|| describe(failure, plan));
    if let Some(status) = status {
        let meaning = match failure {
            Failure::DiedServing if status.success() => " (vLLM exits 0 after its engine died)",
            _ => "",
        };
        diagnostic = diagnostic.fact("main process", format!("{}{meaning}", describe_status(status)));
    }
    if let Some(scan) = scan.filter(|_| kv_error.is_none()) {
        diagnostic = with_evidence(diagnostic, scan, log);
    }
    if diagnostic.remedy.is_empty() {
        diagnostic = diagnostic.command("read the engine's own words", format!("kdeploy logs {name} -n 100"));
    }
    diagnostic
}

/// The line that says that the KV cache type does not work. One that tells of types in general counts
/// only where the plan has a quantised cache.
pub(super) fn kv_type_error<'a>(scan: &'a FailureScan, plan: &Plan) -> Option<&'a FirstError> {
    let error = scan.kv_type_error()?;
    let quantised =
        plan.kv_type.as_ref().is_some_and(|kv| kv.dtype.starts_with("fp8") || kv.dtype.starts_with("nvfp4"));
    (error.names_kv_cache || quantised).then_some(&error.error)
}

/// The engine had less memory for the KV cache than the context needs, and said so.
fn refused_context(failure: Failure, figures: &EngineFigures, plan: &Plan) -> Option<Diagnostic> {
    let Failure::ExitedDuringStart { .. } = failure else { return None };
    let refused = figures.refused_context?;
    let needs =
        figures.refused_needs.map(|needs| format!("it needs {needs} of KV cache")).unwrap_or_default();
    let has = figures.available.map(|available| format!("the engine has {available}")).unwrap_or_default();
    let diagnostic = Diagnostic::new(
        ErrorCode::KvCacheTooSmall,
        format!("the {refused}-token context does not fit after all"),
    )
    .cause([needs, has].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" and "));
    Some(match figures.named_context {
        Some(named) => diagnostic
            .command(
                format!("the engine says that {named} tokens would fit"),
                format!("kdeploy up {} --context {}", plan.model.id, named.as_u64()),
            )
            .command("or let kdeploy choose", format!("kdeploy up {} --context auto", plan.model.id)),
        None => diagnostic
            .advice("not even a short context fits: give the engine more memory, or use a smaller model"),
    })
}

fn describe(failure: Failure, plan: &Plan) -> Diagnostic {
    let stall = format_duration(plan.timeouts.start_stall());
    let total = format_duration(plan.timeouts.start_total());
    match failure {
        Failure::NotStarted => Diagnostic::new(ErrorCode::OsRefused, "the engine could not be started"),
        Failure::ExitedDuringStart { stage } => Diagnostic::new(
            ErrorCode::UnknownFailure,
            format!("the engine ended during its start, at stage `{}`", stage.label()),
        )
        .cause("kdeploy does not know this failure; the first error in the log is shown as evidence, not as a cause"),
        Failure::Stalled { stage } => Diagnostic::new(
            ErrorCode::StartStalled,
            format!("the start made no progress for {stall}, at stage `{}`", stage.label()),
        )
        .cause("no stage advanced and nothing was read in that time")
        .retry(Retry::Later),
        Failure::TooSlow { stage } => Diagnostic::new(
            ErrorCode::StartStalled,
            format!("the start took longer than {total} and was still at stage `{}`", stage.label()),
        )
        .advice("allow more time: `[launch] start_total` in a profile"),
        Failure::WrongModel => Diagnostic::new(
            ErrorCode::PortBusy,
            format!("another server answers on port {}", plan.port),
        )
        .cause(format!("it does not serve `{}`", plan.model.served_name))
        .advice("use another port: --port"),
        Failure::WarmupFailed => Diagnostic::new(
            ErrorCode::WarmupFailed,
            "the engine said it was healthy but did not answer the first request with tokens",
        ),
        Failure::DiedServing => {
            Diagnostic::new(ErrorCode::EngineDied, "the engine served and then ended by itself").retry(Retry::Later)
        }
        Failure::HealthLost => Diagnostic::new(
            ErrorCode::EngineDied,
            "the engine served and then stopped answering `/health`",
        )
        .cause("three probes in a row failed or took more than 2 s")
        .retry(Retry::Later),
        Failure::Hung => {
            let patience = format_duration(plan.timeouts.idle_probe_timeout());
            Diagnostic::new(ErrorCode::EngineDied, "the engine served and then hung")
                .cause(format!(
                    "`/health` still says 200, but nothing was generated any more and a request of one token was not answered within {patience}"
                ))
                .retry(Retry::Later)
        }
    }
}

fn with_evidence(mut diagnostic: Diagnostic, scan: &FailureScan, log: Option<&Utf8Path>) -> Diagnostic {
    let file = log.map_or("engine.log", |path| path.as_str());
    let place = |line: u64| format!("{file}:{line}");
    match (scan.first_error(), scan.first_cascade()) {
        (Some(first), _) => {
            let role = first.role.as_deref().map(|role| format!("({role}) ")).unwrap_or_default();
            return diagnostic.log_line(place(first.line), format!("{role}{}", first.text));
        }
        (None, Some(cascade)) => {
            diagnostic = diagnostic.log_line(
                place(cascade.line),
                format!("{} [only a consequence; its cause is not in this log]", cascade.text),
            );
        }
        (None, None) => {}
    }
    let tail: Vec<_> = scan.tail().collect();
    for (line, text) in tail.iter().skip(tail.len().saturating_sub(TAIL_SHOWN)) {
        diagnostic = diagnostic.log_line(place(*line), text.clone());
    }
    diagnostic
}

pub(super) fn describe_status(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => nix::sys::signal::Signal::try_from(signal)
            .map_or_else(|_| format!("signal {signal}"), |signal| format!("ended by {}", signal.as_str())),
        (None, None) => "ended".to_owned(),
    }
}
