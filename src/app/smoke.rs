//! `kdeploy smoke`: does it answer, and do the answers make sense?

use std::time::Duration;

use super::context::App;
use super::target::Target;
use crate::cli::SmokeArgs;
use crate::config::SmokeCase;
use crate::measure::{Verdict, judge};
use crate::plan::WarmupPlan;
use crate::report::schema::SmokeBody;
use crate::report::{Diagnostic, Exit};
use crate::units::three_digits;

/// Asks every case; exit 1 when an answer is wrong.
///
/// # Errors
/// When there is no server to ask.
pub async fn smoke(app: &App, args: &SmokeArgs) -> Result<Exit, Diagnostic> {
    let target = Target::find(app, args.name.as_ref(), args.url.as_deref()).await?;
    let verdicts = ask_all(app, &target, args.max_ttft).await;
    let passed = verdicts.iter().filter(|verdict| verdict.ok).count();
    let exit = if passed == verdicts.len() { Exit::Done } else { Exit::No };
    app.ui.answer(&text(&target, &verdicts, passed));
    app.ui.document(SmokeBody::new(target.label, target.model, verdicts), exit);
    Ok(exit)
}

/// Asks every case of a server, one after the other.
pub(super) async fn ask_all(app: &App, target: &Target, max_ttft: Option<Duration>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let step = app.ui.step("smoke");
    for (index, case) in target.smoke.iter().enumerate() {
        step.progress(index as u64, target.smoke.len() as u64, &case.id);
        verdicts.push(ask(target, case, max_ttft).await);
    }
    drop(step);
    verdicts
}

async fn ask(target: &Target, case: &SmokeCase, max_ttft: Option<Duration>) -> Verdict {
    let request = target.request(&WarmupPlan { prompt: case.prompt.clone(), max_tokens: case.max_tokens });
    let record = target.ask(&request).await;
    let mut verdict = judge(case, &record);
    if let (Some(limit), Some(ttft)) = (max_ttft, verdict.ttft_ms)
        && ttft > limit.as_secs_f64() * 1e3
    {
        let limit = crate::units::format_duration(limit);
        verdict.problems.push(format!("the first token took {} ms, more than {limit}", three_digits(ttft)));
        verdict.ok = false;
    }
    verdict
}

/// The verdicts as a person reads them.
pub(super) fn text(target: &Target, verdicts: &[Verdict], passed: usize) -> String {
    let mut out = String::new();
    for verdict in verdicts {
        let mark = if verdict.ok { "PASS" } else { "FAIL" };
        let ttft =
            verdict.ttft_ms.map(|ms| format!("   first token {} ms", three_digits(ms))).unwrap_or_default();
        let finish = verdict.finish_reason.as_deref().map(|f| format!("   finish {f}")).unwrap_or_default();
        let tokens = verdict.output_tokens.map(|n| format!("   {n} tokens")).unwrap_or_default();
        out += &format!("{mark}  {}{ttft}{tokens}{finish}\n", verdict.id);
        out += &format!("      asked     {}\n", one_line(&verdict.prompt));
        out += &format!("      answered  {}\n", one_line(&verdict.got));
        if verdict.reasoning_chars > 0 {
            out += &format!("      reasoned  {} characters before the answer\n", verdict.reasoning_chars);
        }
        if verdict.truncated {
            out += "      note      the answer was cut by max_tokens\n";
        }
        for problem in &verdict.problems {
            out += &format!("      wrong     {problem}\n");
        }
    }
    out + &format!("{passed} of {} answers correct ({} on {})", verdicts.len(), target.model, target.label)
}

/// Text on one line of bounded length, without control characters.
fn one_line(text: &str) -> String {
    const SHOWN: usize = 160;
    let line: String = text.trim().replace('\n', " | ").chars().filter(|c| !c.is_control()).collect();
    if line.chars().count() > SHOWN {
        line.chars().take(SHOWN).chain("…".chars()).collect()
    } else if line.is_empty() {
        "(nothing)".to_owned()
    } else {
        line
    }
}
