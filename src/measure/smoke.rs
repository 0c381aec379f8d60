//! Does an answer make sense? Verdicts on smoke cases.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record::RequestRecord;
use crate::config::SmokeCase;

/// So many equal characters in a row are no answer (`!!!!…` is what broken NVFP4 kernels say).
const RUN_LIMIT: usize = 24;

/// The verdict on one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Case.
    pub id: String,
    /// Is the answer right?
    pub ok: bool,
    /// What was asked.
    pub prompt: String,
    /// Texts that had to occur.
    pub expected: Vec<String>,
    /// The answer, without reasoning.
    pub got: String,
    /// What is wrong with it, in words.
    pub problems: Vec<String>,
    /// Why generation ended.
    pub finish_reason: Option<String>,
    /// Was it cut by `max_tokens`?
    pub truncated: bool,
    /// Characters of reasoning before the answer.
    pub reasoning_chars: usize,
    /// Output tokens by the server's count.
    pub output_tokens: Option<u64>,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
}

/// Judges an answer: complete, not empty, not cut (unless that is allowed), not garbage, and holding
/// what was expected. Reasoning is not searched: the answer itself must be right.
#[must_use]
pub fn judge(case: &SmokeCase, record: &RequestRecord) -> Verdict {
    let mut problems = Vec::new();
    if let Some(failure) = record.failure_text() {
        problems.push(failure);
    }
    let answer = record.text.trim();
    if answer.is_empty() && record.is_ok() {
        problems.push(match (record.reasoning.is_empty(), record.output_tokens()) {
            (true, _) => "the answer is empty".to_owned(),
            (false, Some(n)) => format!("all {n} tokens were reasoning; there is no answer"),
            (false, None) => "everything was reasoning; there is no answer".to_owned(),
        });
    }
    if record.was_cut() && !case.expect.may_be_cut {
        problems.push(format!("the answer was cut by max_tokens ({})", case.max_tokens));
    }
    if let Some(garbage) = garbage_in(answer) {
        problems.push(garbage);
    }
    let lower = answer.to_lowercase();
    for text in &case.expect.contains {
        if !answer.is_empty() && !lower.contains(&text.to_lowercase()) {
            problems.push(format!("`{text}` does not occur in the answer"));
        }
    }
    Verdict {
        id: case.id.clone(),
        ok: problems.is_empty(),
        prompt: case.prompt.clone(),
        expected: case.expect.contains.clone(),
        got: record.text.clone(),
        problems,
        finish_reason: record.finish_reason.clone(),
        truncated: record.was_cut(),
        reasoning_chars: record.reasoning.chars().count(),
        output_tokens: record.output_tokens(),
        ttft_ms: record.ttft_ms(),
    }
}

fn garbage_in(answer: &str) -> Option<String> {
    let mut run = 0;
    let mut last = None;
    let mut broken = 0_usize;
    let mut total = 0_usize;
    for c in answer.chars() {
        total += 1;
        broken += usize::from(c == char::REPLACEMENT_CHARACTER);
        run = if last == Some(c) { run + 1 } else { 1 };
        last = Some(c);
        // Rules and tables are drawn with these.
        if run >= RUN_LIMIT && !c.is_whitespace() && !matches!(c, '-' | '=' | '_' | '*' | '#' | '.' | '─') {
            return Some(format!("`{c}` is repeated {run} times and more: garbage"));
        }
    }
    (broken > 3 && broken * 10 > total).then(|| format!("{broken} of {total} characters are broken: garbage"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Expectation;
    use crate::measure::{Chunk, Recorder, Usage};
    use crate::units::Tokens;
    use std::time::Duration;

    fn case() -> SmokeCase {
        SmokeCase {
            id: "capital".into(),
            prompt: "What is the capital of France?".into(),
            max_tokens: Tokens::new(64),
            expect: Expectation { contains: vec!["Paris".into()], may_be_cut: false },
        }
    }

    fn answer(content: &str, reasoning: &str, finish: &str) -> RequestRecord {
        let mut recorder = Recorder::default();
        let part = |content: &str, reasoning: &str| Chunk {
            content: content.into(),
            reasoning: reasoning.into(),
            ..Chunk::default()
        };
        recorder.chunk(Duration::from_millis(5), part("", reasoning));
        recorder.chunk(Duration::from_millis(9), part(content, ""));
        let usage =
            Usage { prompt_tokens: 1, completion_tokens: 64, reasoning_tokens: None, cached_tokens: None };
        recorder.chunk(
            Duration::from_millis(9),
            Chunk { finish_reason: Some(finish.into()), usage: Some(usage), done: true, ..Chunk::default() },
        );
        recorder.finish(Duration::from_millis(10))
    }

    #[test]
    fn right_answers_pass_and_each_wrong_one_says_why() {
        assert!(judge(&case(), &answer("The capital is PARIS.", "", "stop")).ok);
        let table = [
            (answer("Lyon.", "", "stop"), "`Paris` does not occur in the answer"),
            (answer("Paris is", "", "length"), "the answer was cut by max_tokens (64)"),
            (answer("", "Paris, surely", "length"), "all 64 tokens were reasoning; there is no answer"),
            (
                answer("Paris !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "", "stop"),
                "`!` is repeated 24 times and more: garbage",
            ),
            (
                answer("Paris \u{fffd}\u{fffd}\u{fffd}\u{fffd}", "", "stop"),
                "4 of 10 characters are broken: garbage",
            ),
        ];
        for (record, problem) in table {
            let verdict = judge(&case(), &record);
            assert!(!verdict.ok && verdict.problems.iter().any(|p| p == problem), "{:?}", verdict.problems);
        }
    }

    #[test]
    fn reasoning_is_kept_apart_and_a_cut_may_be_allowed() {
        let verdict = judge(&case(), &answer("Lyon", "It is Paris", "stop"));
        assert!(!verdict.ok, "the right word in the reasoning is not an answer");
        assert_eq!((verdict.got.as_str(), verdict.reasoning_chars), ("Lyon", 11));
        let mut lenient = case();
        lenient.expect.may_be_cut = true;
        let verdict = judge(&lenient, &answer("Paris, and", "", "length"));
        assert!(verdict.ok && verdict.truncated);
    }
}
