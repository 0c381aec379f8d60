//! The first error of a failed start, told apart from what merely follows it.
//!
//! vLLM ends every failed start with `Engine core initialization failed. See root cause above`; that
//! sentence and its kind are cascades and are never reported as a cause. What is reported here is
//! evidence (the first error by time that is no cascade), not a diagnosis.

use std::collections::VecDeque;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use super::line::LogLine;

/// How many lines before the end are kept for an unknown failure.
const TAIL_LINES: usize = 20;

/// Longest excerpt of one line that is kept.
const EXCERPT: usize = 600;

/// A line that reports an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstError {
    /// Line number in the engine's log, from 1.
    pub line: u64,
    /// Role of the process that printed it, when the line says.
    pub role: Option<String>,
    /// The message without decoration.
    pub text: String,
}

/// A line that says that a data type of the KV cache does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvTypeError {
    /// The line.
    pub error: FirstError,
    /// Does it speak of the KV cache, or only of data types?
    pub names_kv_cache: bool,
}

/// Reads an engine's log once, line by line, in bounded memory.
#[derive(Debug, Default)]
pub struct FailureScan {
    first: Option<FirstError>,
    cascade: Option<FirstError>,
    kv_type: Option<KvTypeError>,
    tail: VecDeque<(u64, String)>,
    lines: u64,
}

/// Sentences that only say that something else failed (vLLM 0.6 – 0.32, torch, Python).
static CASCADES: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    RegexSet::new([
        r"Engine core initialization failed",
        r"Frontend process failed during engine core initialization",
        r"EngineCore (?:failed to start|hit an exception|encountered (?:a fatal error|an issue))",
        r"WorkerProc (?:failed|hit an exception|initialization failed|was terminated)",
        r"EngineDeadError|AsyncLLM output_handler failed|Engine loop is not running",
        r"Engine process failed to start",
        r"Worker proc \S+ died unexpectedly",
        r"please check the stack trace above for the root cause",
        r"Parent process exited, terminating worker",
        r"resource_tracker: There appear to be",
        r"destroy_process_group\(\) was not called",
        r"KeyboardInterrupt|SystemExit|CancelledError",
        r"Exception ignored in",
        r"Dumping (?:input data|scheduler)",
    ])
    .ok()
});

/// The last line of a traceback (`ValueError: …`, `torch.OutOfMemoryError: …`), native fatal lines,
/// and what argparse prints for a wrong flag.
static ERRORS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|NotFound)\b(?::|$)",
        r"|^(?:terminate called|fatal error:|Fatal Python error|Segmentation fault|ptxas fatal|NCCL WARN)",
        r"|^(?:vllm|\S+\.py)(?: \w+)?: error: ",
        r"|^\S+: error while loading shared libraries",
        r"|^\S+: line \d+: ",
    ))
    .ok()
});

/// What backends say of a KV cache type that they cannot use (failure-catalog.md,
/// `kv-dtype-unsupported`; vLLM 0.11 - 0.32).
static KV_TYPE: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    RegexSet::new([
        r"MLA\w* V1 with FP8 KV cache not yet supported",
        r"FP8 KV cache is not supported by the",
        r"AMXMLAImpl only supports an unquantized",
        r"FP8 KV cache on CPU requires x86 with AVX-512 or AMX",
        r"fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
        r"nvfp4 KV cache is not supported with MLA",
        r"--kv-cache-dtype \S+ is not supported|kv_cache_dtype \S+ (?:is )?not supported",
    ])
    .ok()
});

/// The same, in words that could be about other tensors too.
static KV_TYPE_IN_GENERAL: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    RegexSet::new([
        r"expected scalar type \w+ but found Float8",
        r"type fp8e4nv not supported in this architecture",
        r"native FP8 \(fp8e4nv\) requires SM89",
    ])
    .ok()
});

/// `No valid attention backend found … Reasons: {A: [kv_cache_dtype not supported], …}`: about the KV
/// cache when every backend that says why says that, beside what the hardware rules out.
static NO_BACKEND: LazyLock<Option<(Regex, Regex)>> = LazyLock::new(|| {
    let all = Regex::new(r"No valid attention backend found.*Reasons: \{(.*)\}").ok()?;
    Some((all, Regex::new(r"\[([^\]]*)\]").ok()?))
});

fn only_the_kv_type(message: &str) -> bool {
    let Some((all, lists)) = NO_BACKEND.as_ref() else { return false };
    let Some(reasons) = all.captures(message).and_then(|found| found.get(1)) else { return false };
    let mut of_type = 0;
    for list in lists.captures_iter(reasons.as_str()).filter_map(|found| found.get(1)) {
        let mut parts = list.as_str().split(',').map(str::trim);
        let says_type = list.as_str().contains("kv_cache_dtype not supported");
        let by_hardware = parts.any(|part| {
            part.contains("compute capability not supported") || part.contains("not supported on")
        });
        if !says_type && !by_hardware {
            return false;
        }
        of_type += usize::from(says_type && !by_hardware);
    }
    of_type > 0
}

impl FailureScan {
    /// Looks at the next line.
    pub fn feed(&mut self, number: u64, line: &str) {
        self.lines = number;
        let parsed = LogLine::parse(line);
        let message = parsed.message.trim_start_matches(['|', ' ']).trim_end();
        if message.is_empty() {
            return;
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back((number, excerpt(line)));
        // pydantic says what is wrong on the line after.
        if let Some(first) = self.first.as_mut().filter(|first| first.line + 1 == number)
            && first.text.contains("validation error")
        {
            first.text = excerpt(&format!("{}: {message}", first.text));
        }
        if !is_error(parsed.level, message) {
            return;
        }
        if self.kv_type.is_none() {
            let matches =
                |set: &LazyLock<Option<RegexSet>>| set.as_ref().is_some_and(|set| set.is_match(message));
            let names_kv_cache = matches(&KV_TYPE) || only_the_kv_type(message);
            if names_kv_cache || matches(&KV_TYPE_IN_GENERAL) {
                let role = parsed.role.map(str::to_owned);
                let error = FirstError { line: number, role, text: excerpt(message) };
                self.kv_type = Some(KvTypeError { error, names_kv_cache });
            }
        }
        if self.first.is_some() {
            return;
        }
        let found = FirstError { line: number, role: parsed.role.map(str::to_owned), text: excerpt(message) };
        if CASCADES.as_ref().is_some_and(|set| set.is_match(message)) {
            self.cascade.get_or_insert(found);
        } else {
            self.first = Some(found);
        }
    }

    /// The first line that says that a data type of the KV cache does not work.
    #[must_use]
    pub const fn kv_type_error(&self) -> Option<&KvTypeError> {
        self.kv_type.as_ref()
    }

    /// The first error by time that is no cascade.
    #[must_use]
    pub const fn first_error(&self) -> Option<&FirstError> {
        self.first.as_ref()
    }

    /// The first cascade, to be shown as such when there is nothing else.
    #[must_use]
    pub const fn first_cascade(&self) -> Option<&FirstError> {
        self.cascade.as_ref()
    }

    /// The last lines that are not empty, with their numbers.
    pub fn tail(&self) -> impl Iterator<Item = &(u64, String)> {
        self.tail.iter()
    }
}

/// An exception line counts wherever it stands; a lone `ERROR` record counts when it is not the
/// inner line of a traceback (those are indented or say `Traceback`).
fn is_error(level: Option<&str>, message: &str) -> bool {
    if ERRORS.as_ref().is_some_and(|errors| errors.is_match(message)) {
        return true;
    }
    matches!(level, Some("ERROR" | "CRITICAL")) && CASCADES.as_ref().is_some_and(|set| set.is_match(message))
}

fn excerpt(text: &str) -> String {
    let mut out: String = text.chars().take(EXCERPT).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::FailureScan;
    use crate::lifecycle::LineSplitter;

    fn scan(log: &[u8]) -> FailureScan {
        let mut scan = FailureScan::default();
        let mut splitter = LineSplitter::default();
        splitter.feed(log, |number, line| scan.feed(number, line));
        splitter.finish(|number, line| scan.feed(number, line));
        scan
    }

    #[test]
    fn the_root_line_of_a_context_that_does_not_fit() {
        let scan = scan(include_bytes!("../../tests/golden/fail-context-too-large-vllm-0.32-cpu.log"));
        let first = scan.first_error().expect("an error");
        assert!(first.text.starts_with("ValueError: To serve at least one request"), "{first:?}");
        assert_eq!(first.role.as_deref(), Some("EngineCore"));
    }

    #[test]
    fn the_root_line_of_an_fp8_cache_that_mla_cannot_read() {
        let scan = scan(include_bytes!("../../tests/golden/fail-mla-fp8-vllm-0.32-cpu.log"));
        let first = scan.first_error().expect("an error");
        assert_eq!(first.text, "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn");
        assert_eq!(first.role.as_deref(), Some("Worker"));
    }

    #[test]
    fn the_line_after_a_validation_error_says_what_is_wrong() {
        let scan = scan(include_bytes!("../../tests/golden/fail-nvfp4-key-missing-vllm-0.32-cpu.log"));
        let first = scan.first_error().expect("an error");
        assert!(first.text.contains("NVFP4 quantization requires the following fields"), "{first:?}");
    }

    #[test]
    fn a_log_with_only_cascades_has_no_cause() {
        let scan = scan(
            b"(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
        );
        assert_eq!(scan.first_error(), None);
        assert!(scan.first_cascade().is_some());
    }

    #[test]
    fn a_healthy_start_holds_no_error() {
        let scan = scan(include_bytes!("../../tests/golden/start-vllm-0.32-cpu-compile.log"));
        assert_eq!(scan.first_error(), None);
        assert_eq!(scan.tail().count(), 20);
    }

    #[test]
    fn a_wrong_flag_is_named() {
        let scan = scan(b"usage: vllm serve [-h]\nvllm serve: error: unrecognized arguments: --nope\n");
        assert_eq!(scan.first_error().map(|e| e.line), Some(2));
    }
}
