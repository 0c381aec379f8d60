//! `kdeploy bench`: the story's own request, cold and warm, one stream.

use std::fmt::Write as _;
use std::time::Duration;

use super::context::{App, io_error, store_error};
use super::target::Target;
use crate::cli::BenchArgs;
use crate::measure::{RequestRecord, ServerLoad, Summary};
use crate::report::schema::{BenchBody, EnvironmentBody, RunBody, WorkloadBody};
use crate::report::{Diagnostic, Document as _, ErrorCode, Exit, plain_table};
use crate::store::write_atomic;
use crate::units::{format_duration, three_digits};

/// Measures one stream: cold where a fresh server allows it, then warm.
///
/// # Errors
/// When there is no server, or no request succeeded; exit 85 when some failed.
pub async fn bench(app: &App, args: &BenchArgs) -> Result<Exit, Diagnostic> {
    let target = Target::find(app, args.name.as_ref(), args.url.as_deref()).await?;
    let (mut body, records, exit) = measure(app, &target, args.requests).await?;
    if let Some(file) = &args.save {
        let saved = serde_json::json!({
            "schema": BenchBody::SCHEMA, "version": BenchBody::VERSION, "result": body, "records": records,
        });
        let bytes = serde_json::to_vec_pretty(&saved).map_err(|error| io_error(&error.into()))?;
        write_atomic(file, &bytes).map_err(|error| store_error(&error))?;
        body.records = Some(file.to_string());
    }
    app.ui.answer(&text(&body));
    app.ui.document(body, exit);
    Ok(exit)
}

/// Runs the measurement.
pub(super) async fn measure(
    app: &App,
    target: &Target,
    requests: u32,
) -> Result<(BenchBody, Vec<RequestRecord>, Exit), Diagnostic> {
    let request = target.request(&target.warmup);
    let before = target.load().await;
    let fresh = target.record.is_none() && target.is_fresh().await;
    let step = app.ui.step("bench");
    let (cold, why_not) = cold(target, fresh, &request).await;
    step.update("one request that is not counted");
    let unmeasured = target.ask(&request).await;
    let mut warm = Vec::new();
    let counted_from = target.load().await;
    for index in 0..requests {
        step.progress(u64::from(index), u64::from(requests), "warm requests");
        warm.push(target.ask(&request).await);
    }
    let after = target.load().await;
    drop(step);
    let mut runs: Vec<RunBody> =
        cold.iter().map(|record| RunBody::of("cold", std::slice::from_ref(record))).collect();
    let warm_run = RunBody::of("warm", &warm);
    if warm_run.counts.ok == 0 {
        let why =
            unmeasured.failure_text().or_else(|| warm_run.failures.first().cloned()).unwrap_or_default();
        return Err(Diagnostic::new(ErrorCode::BenchInvalid, "no request succeeded").cause(why));
    }
    let exit = if warm_run.counts.failed > 0 { Exit::BenchInvalid } else { Exit::Done };
    let mut notes = notes(&warm, &before, &counted_from, &after);
    notes.extend(why_not);
    runs.push(warm_run);
    let plan = target.record.as_ref().map(|record| &record.plan);
    let body = BenchBody {
        environment: EnvironmentBody {
            name: target.label.clone(),
            model: target.model.clone(),
            hardware: plan.map(|plan| plan.hardware.clone()),
            engine: plan.map(|plan| plan.engine.version.clone()),
            argv: plan.map(|plan| plan.argv.clone()),
            revision: plan.and_then(|plan| plan.model.revision.clone()),
            running_before: before.running.map(|n| n.max(0.0) as u64),
        },
        workload: WorkloadBody {
            prompt: target.warmup.prompt.clone(),
            max_tokens: target.warmup.max_tokens.as_u64(),
            temperature: request.temperature,
            concurrency: 1,
            seed: None,
        },
        runs,
        notes,
        formulas: BenchBody::formulas(),
        records: None,
    };
    let mut records: Vec<RequestRecord> = cold.into_iter().collect();
    records.extend(warm);
    Ok((body, records, exit))
}

/// The cold figure: of a deployment the first request of all, recorded when it started; of another
/// server this request, when the server has answered none before.
async fn cold(
    target: &Target,
    fresh: bool,
    request: &crate::api::PromptRequest,
) -> (Option<RequestRecord>, Option<String>) {
    if fresh {
        return (Some(target.ask(request).await), None);
    }
    let recorded = target.record.as_ref().and_then(|record| record.cold.as_ref());
    match recorded {
        Some(cold) if cold.prompt == request.prompt && cold.max_tokens == request.max_tokens.as_u64() => (
            Some(cold.record.clone()),
            Some("cold is the first request of all, recorded when the deployment started".to_owned()),
        ),
        Some(_) => {
            (None, Some("no cold figure: the first request of this deployment was another one".to_owned()))
        }
        None => (None, Some("no cold figure: the server had answered requests before".to_owned())),
    }
}

/// What could mislead a reader.
fn notes(warm: &[RequestRecord], before: &ServerLoad, from: &ServerLoad, after: &ServerLoad) -> Vec<String> {
    let mut notes = vec!["one stream alone: it says nothing about speed under load".to_owned()];
    let ok: Vec<&RequestRecord> = warm.iter().filter(|record| record.is_ok()).collect();
    notes.push("the prompt repeats, so the prefix cache may serve it: TTFT is not prefill speed".to_owned());
    if before.running.is_some_and(|n| n > 0.0) {
        notes.push("the server was busy with other requests when the measurement began".to_owned());
    }
    let cut = ok.iter().filter(|record| record.was_cut()).count();
    if cut > 0 {
        notes.push(format!("{cut} of {} answers were cut by max_tokens", ok.len()));
    }
    if ok.iter().any(|record| record.text != ok.first().map_or("", |first| first.text.as_str())) {
        notes.push("the answers differ from request to request although temperature is 0".to_owned());
    }
    if ok.iter().any(|record| record.usage.is_none()) {
        notes.push("the server reports no usage: tokens are unknown, so there is no TPOT".to_owned());
    }
    if ok.iter().any(|record| record.is_burst()) {
        notes.push(
            "answers arrived in one burst at their end (a buffering proxy?): no decode speed".to_owned(),
        );
    }
    if ok.iter().any(|record| record.first_answer_ms.is_none()) {
        notes.push("some answers were all reasoning".to_owned());
    }
    let counted: u64 = ok.iter().filter_map(|record| record.output_tokens()).sum();
    if let (Some(from), Some(after)) = (from.generation_tokens, after.generation_tokens) {
        let server = after - from;
        if server < 0.0 {
            notes.push("the server was restarted during the measurement".to_owned());
        } else if (server - counted as f64).abs() > 0.5 {
            notes.push(format!(
                "the server generated {server} tokens meanwhile, the answers hold {counted}: other traffic, or broken counts"
            ));
        }
    }
    notes
}

/// The result as a person reads it.
pub(super) fn text(body: &BenchBody) -> String {
    let mut out = String::new();
    let env = &body.environment;
    let hardware = env.hardware.as_deref().map(|h| format!(", {h}")).unwrap_or_default();
    let engine = env.engine.as_deref().map(|v| format!(", vLLM {v}")).unwrap_or_default();
    let _ = writeln!(out, "{}: {}{hardware}{engine}", env.name, env.model);
    let work = &body.workload;
    let _ = writeln!(
        out,
        "request: {:?}, at most {} tokens, temperature 0, one at a time\n",
        work.prompt, work.max_tokens
    );
    let mut rows = Vec::new();
    for run in &body.runs {
        let m = &run.metrics;
        let time = |s: &Option<Summary>| s.map_or_else(dash, |s| millis(s.p50));
        let tokens_in = m.prompt_tokens.map_or_else(dash, |n| n.to_string());
        let tokens_out = m.output_tokens.map_or_else(dash, |s| format!("{:.0}", s.p50));
        rows.push(vec![
            run.mode.to_owned(),
            run.counts.sent.to_string(),
            run.counts.ok.to_string(),
            m.ttft_ms.map_or_else(dash, |s| with_interval(&s, millis)),
            time(&m.tpot_ms),
            m.itl_p50_ms.map_or_else(dash, millis),
            time(&m.e2el_ms),
            m.decode_tokens_per_s.map_or_else(dash, |s| with_interval(&s, three_digits)),
            format!("{tokens_in}/{tokens_out}"),
        ]);
    }
    let header = [
        "",
        "n",
        "ok",
        "TTFT p50 [95% CI]",
        "TPOT p50",
        "ITL p50",
        "E2E p50",
        "decode tok/s [95% CI]",
        "tokens in/out",
    ];
    let _ = writeln!(out, "{}", plain_table(&header, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]));
    out.push('\n');
    phases(&mut out, body);
    for run in &body.runs {
        for failure in &run.failures {
            let _ = writeln!(out, "failed ({}): {failure}", run.mode);
        }
    }
    for note in &body.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(file) = &body.records {
        let _ = writeln!(out, "Saved: {file}");
    }
    out
}

fn phases(out: &mut String, body: &BenchBody) {
    for run in &body.runs {
        let Some(phases) = &run.metrics.phases else { continue };
        for (name, phase) in
            [("prefill", phases.prefill), ("thinking", phases.thinking), ("answer", phases.answer)]
        {
            let Some(phase) = phase else { continue };
            let tokens = phase.tokens.map(|n| format!(", {n} tokens")).unwrap_or_default();
            let speed =
                phase.tokens_per_s.map(|s| format!(", {} tok/s", three_digits(s))).unwrap_or_default();
            let _ = writeln!(out, "{:<5} {name:<9} {}{tokens}{speed}", run.mode, millis(phase.ms));
        }
        let reasons: Vec<String> =
            run.finish_reasons.iter().map(|(reason, n)| format!("{reason} {n}x")).collect();
        let _ = writeln!(out, "{:<5} finish    {}", run.mode, reasons.join(", "));
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn millis(ms: f64) -> String {
    if ms < 1_000.0 {
        format!("{} ms", three_digits(ms))
    } else {
        format_duration(Duration::from_secs_f64(ms / 1e3))
    }
}

fn with_interval(summary: &Summary, format: impl Fn(f64) -> String) -> String {
    match summary.ci95 {
        Some([low, high]) => {
            let number = |x: f64| three_digits(x.max(0.0));
            format!("{} [{}, {}]", format(summary.p50), number(low), number(high))
        }
        None => format(summary.p50),
    }
}
