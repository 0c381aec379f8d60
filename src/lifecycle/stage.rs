//! Stages of a start, recognised in the engine's log.
//!
//! The expressions are those of vLLM 0.8 – 0.32 (`vllm/v1/engine/core.py`,
//! `vllm/model_executor/model_loader/`, `vllm/v1/core/kv_cache_utils.py`, uvicorn); they match the
//! message, never file or line, because those move between releases.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::line::LogLine;
use crate::units::Tokens;

/// Stages of a start in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Python imports; silent.
    Imports,
    /// Arguments and model configuration are read.
    Configure,
    /// The engine process starts and imports again.
    Engine,
    /// Worker processes start and join their groups.
    Workers,
    /// Weights are loaded.
    Weights,
    /// Graphs are compiled and the model is profiled.
    Compile,
    /// KV cache is sized, CUDA graphs are captured.
    KvCache,
    /// The HTTP server starts.
    Http,
    /// kdeploy's own first request.
    WarmUp,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 9] = [
        Self::Imports,
        Self::Configure,
        Self::Engine,
        Self::Workers,
        Self::Weights,
        Self::Compile,
        Self::KvCache,
        Self::Http,
        Self::WarmUp,
    ];

    /// A word for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Imports => "imports",
            Self::Configure => "configure",
            Self::Engine => "engine",
            Self::Workers => "workers",
            Self::Weights => "weights",
            Self::Compile => "compile",
            Self::KvCache => "kv cache",
            Self::Http => "http",
            Self::WarmUp => "warm-up",
        }
    }
}

/// Something the engine measured and printed.
#[derive(Debug, Clone, PartialEq)]
pub enum Measured {
    /// vLLM's version as its banner says it.
    Version(String),
    /// KV cache capacity.
    KvCacheTokens(Tokens),
    /// Data type in which the KV cache is stored, when the checkpoint asked for one.
    KvCacheDtype(String),
    /// Context window in use.
    MaxModelLen(Tokens),
    /// Seconds the weights took.
    WeightsSeconds(f64),
}

/// What a log line says about the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The stage that now runs.
    pub stage: Stage,
    /// Work done and to do inside the stage, where the engine counts it (shards, graphs).
    pub done_of: Option<(u64, u64)>,
    /// A figure the line carries.
    pub measured: Option<Measured>,
}

/// What a row takes out of its match: work done and to do, and a measured figure.
type Taken = (Option<(u64, u64)>, Option<Measured>);
type Take = fn(&Captures<'_>) -> Taken;

/// One row: the stage that runs from this line on, and what to take out of it.
struct Row {
    pattern: Regex,
    stage: Stage,
    take: Take,
}

fn nothing(_: &Captures<'_>) -> Taken {
    (None, None)
}

fn figure<T: std::str::FromStr>(found: &Captures<'_>, group: usize) -> Option<T> {
    found.get(group)?.as_str().replace(',', "").parse().ok()
}

fn count(found: &Captures<'_>) -> Taken {
    (figure(found, 1).zip(figure(found, 2)), None)
}

fn text(found: &Captures<'_>, group: usize) -> String {
    found.get(group).map(|m| m.as_str().to_owned()).unwrap_or_default()
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let rows: &[(&str, Stage, Take)] = &[
        (r"version (\d+\.\d+\S*)$", Stage::Configure, |f| (None, Some(Measured::Version(text(f, 1))))),
        (r"^non-default args: \{", Stage::Configure, nothing),
        (r"^Resolved architecture: ", Stage::Configure, nothing),
        (r"^Using max model len (\d+)", Stage::Configure, |f| {
            (None, figure(f, 1).map(|n| Measured::MaxModelLen(Tokens::new(n))))
        }),
        (r"^Using (\S+) data type to store kv cache\.", Stage::Configure, |f| {
            (None, Some(Measured::KvCacheDtype(text(f, 1))))
        }),
        (r"^Initializing an? (?:V[01] )?LLM engine \(v", Stage::Engine, nothing),
        (r"^world_size=\d+ rank=\d+ local_rank=\d+", Stage::Workers, nothing),
        (r"^rank \d+ in world size \d+ is assigned as", Stage::Workers, nothing),
        (r"^Starting to load model ", Stage::Weights, nothing),
        (
            r"^(?:Multi-thread loading shards|Loading (?:\S*safetensors|pt|np_cache)[^:]*|Loading safetensors using [^:]*):\s+\d+% Completed \| (\d+)/(\d+)",
            Stage::Weights,
            count,
        ),
        (r"^Loading weights took ([\d.]+) seconds", Stage::Weights, |f| {
            (None, figure(f, 1).map(Measured::WeightsSeconds))
        }),
        (r"^Model loading took [\d.]+ G", Stage::Weights, nothing),
        (r"^Warming up model for the compilation\.\.\.", Stage::Compile, nothing),
        (r"Dynamo bytecode transform time: ", Stage::Compile, nothing),
        (r"Compiling a graph for ", Stage::Compile, nothing),
        (r"torch\.compile (?:took|takes) [\d.]+ s in total", Stage::Compile, nothing),
        (r"^Available KV cache memory: ", Stage::KvCache, nothing),
        (r"^Explicitly set \([\d.]+/[\d.]+\) GiB for KV cache", Stage::KvCache, nothing),
        (r"^Auto-fit max_model_len: full model context length (\d+) fits", Stage::KvCache, |f| {
            (None, figure(f, 1).map(|n| Measured::MaxModelLen(Tokens::new(n))))
        }),
        (r"^Auto-fit max_model_len: reduced from \d+ to (\d+) to fit", Stage::KvCache, |f| {
            (None, figure(f, 1).map(|n| Measured::MaxModelLen(Tokens::new(n))))
        }),
        (r"^\S+ KV cache size: ([\d,]+) tokens", Stage::KvCache, |f| {
            (None, figure(f, 1).map(|n| Measured::KvCacheTokens(Tokens::new(n))))
        }),
        (r"^Capturing CUDA graphs(?: \([^)]*\))?:\s+\d+%.*\| (\d+)/(\d+)", Stage::KvCache, count),
        (r"^Graph capturing finished in ", Stage::KvCache, nothing),
        (r"^init engine \(profile, create kv cache, warmup model\) took", Stage::Http, nothing),
        (r"^Supported[_ ]tasks: ", Stage::Http, nothing),
        (r"^Starting vLLM (?:API )?server(?: \d+)? on ", Stage::Http, nothing),
        (r"^Available routes are:", Stage::Http, nothing),
        (
            r"^INFO:\s+(?:Started server process|Waiting for application startup|Application startup complete)",
            Stage::Http,
            nothing,
        ),
    ];
    rows.iter()
        .filter_map(|(pattern, stage, take)| {
            Regex::new(pattern).ok().map(|pattern| Row { pattern, stage: *stage, take: *take })
        })
        .collect()
});

/// Reads what a line says about the start; `None` for most lines.
#[must_use]
pub fn read_mark(line: &LogLine<'_>) -> Option<Mark> {
    ROWS.iter().find_map(|row| {
        let found = row.pattern.captures(line.message)?;
        let (done_of, measured) = (row.take)(&found);
        Some(Mark { stage: row.stage, done_of, measured })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::LineSplitter;

    fn marks(log: &[u8]) -> Vec<Mark> {
        let mut out = Vec::new();
        let mut splitter = LineSplitter::default();
        splitter.feed(log, |_, line| out.extend(read_mark(&LogLine::parse(line))));
        out
    }

    #[test]
    fn every_row_compiles() {
        assert_eq!(ROWS.len(), 28);
    }

    #[test]
    fn a_real_start_passes_every_stage_in_order() {
        let log = include_bytes!("../../tests/golden/start-vllm-0.32-cpu-compile.log");
        let found = marks(log);
        let mut stages: Vec<Stage> = found.iter().map(|mark| mark.stage).collect();
        stages.dedup();
        assert_eq!(
            stages,
            [
                Stage::Configure,
                Stage::Engine,
                Stage::Workers,
                Stage::Weights,
                Stage::Compile,
                Stage::KvCache,
                Stage::Http
            ]
        );
        let measured: Vec<&Measured> = found.iter().filter_map(|mark| mark.measured.as_ref()).collect();
        assert!(measured.contains(&&Measured::Version("0.32.0".into())));
        assert!(measured.contains(&&Measured::KvCacheTokens(Tokens::new(1_048_576))));
        assert!(measured.contains(&&Measured::MaxModelLen(Tokens::new(4096))));
        assert!(found.iter().any(|mark| mark.done_of == Some((1, 1))));
    }

    #[test]
    fn gpu_lines_and_older_wordings_count_too() {
        let table = [
            (
                "Loading safetensors checkpoint shards:  43% Completed | 41/96 [03:12<04:18,  4.70s/it]",
                Stage::Weights,
                Some((41, 96)),
            ),
            (
                "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|█████     | 26/51 [00:02<00:02]",
                Stage::KvCache,
                Some((26, 51)),
            ),
            ("Initializing an LLM engine (v0.6.2) with config:", Stage::Engine, None),
        ];
        for (line, stage, done_of) in table {
            let mark = read_mark(&LogLine::parse(line)).expect(line);
            assert_eq!((mark.stage, mark.done_of), (stage, done_of), "{line}");
        }
    }

    #[test]
    fn lines_that_only_look_alike_do_not_count() {
        for line in [
            "(APIServer pid=1) INFO 12-01 05:09:50 [a.py:1] the user said: Resolved architecture: Foo",
            "INFO:     127.0.0.1:59104 - \"GET /health HTTP/1.1\" 200 OK",
            "Loading safetensors checkpoint shards: soon",
        ] {
            assert_eq!(read_mark(&LogLine::parse(line)), None, "{line}");
        }
    }
}
