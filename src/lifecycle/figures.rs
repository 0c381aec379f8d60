//! What an engine says of its own memory while it starts, in every wording since V0
//! (vllm-memory.md 2).

use std::sync::LazyLock;

use super::line::LogLine;
use crate::facts::EngineFigures;
use crate::units::{Bytes, Tokens};
use regex::Regex;

/// What a pattern says.
#[derive(Clone, Copy)]
enum Figure {
    Weights,
    LoadSeconds,
    Available,
    Tokens,
    TokensAndConcurrency,
    Concurrency,
    Blocks,
    Graphs,
    GraphsEstimate,
    Summary,
    SummaryConsumed,
    V0Profile,
    Context,
    KvDtype,
    WorldSize,
    Refused,
    RefusedV0,
}

static PATTERNS: LazyLock<Vec<(Regex, Figure)>> = LazyLock::new(|| {
    let patterns: &[(&str, Figure)] = &[
        (r"(?:Model loading|Loading model weights) took ([\d.]+) (GiB|GB)", Figure::Weights),
        (r"Loading weights took ([\d.]+) seconds", Figure::LoadSeconds),
        (r"Available KV cache memory: (-?[\d.]+) (GiB|GB)", Figure::Available),
        (r"Explicitly set \(([\d.]+)/[\d.]+\) (GiB) for KV cache", Figure::Available),
        (
            r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
            Figure::TokensAndConcurrency,
        ),
        (r"KV cache size: ([\d,]+) tokens", Figure::Tokens),
        (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", Figure::Concurrency),
        (r"# (?:GPU|CPU|cuda|cpu) blocks: (\d+)", Figure::Blocks),
        (r"Graph capturing finished in \d+ secs, took (-?[\d.]+) (GiB)", Figure::Graphs),
        (r"Estimated CUDA graph memory: ([\d.]+) (GiB) total", Figure::GraphsEstimate),
        (
            r"Actual usage is ([\d.]+) (GiB|bytes)? ?for weight, ([\d.]+) (?:GiB|bytes)? ?for peak activation, ([\d.]+) (?:GiB|bytes)? ?for non-torch memory, and ([\d.]+)",
            Figure::Summary,
        ),
        (
            r"Actual usage is [\d.]+ GiB for consumed memory \(weights \+ non-torch\), ([\d.]+) (GiB) for peak activation",
            Figure::SummaryConsumed,
        ),
        (
            r"model weights take ([\d.]+)(GiB); non_torch_memory takes ([\d.]+)GiB; PyTorch activation peak memory takes ([\d.]+)GiB; the rest of the memory reserved for KV Cache is ([\d.]+)GiB",
            Figure::V0Profile,
        ),
        (r"^Using max model len (\d+)", Figure::Context),
        (r"Auto-fit max_model_len: (?:full model context length|reduced from \d+ to) (\d+)", Figure::Context),
        (r"^Using (\S+) data type to store kv cache", Figure::KvDtype),
        (r"^world_size=(\d+) rank=", Figure::WorldSize),
        (
            r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory \((-?[\d.]+) GiB\)\.(?: Based on the available memory, the estimated maximum model length is (\d+))?",
            Figure::Refused,
        ),
        (
            r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((\d+)\)",
            Figure::RefusedV0,
        ),
    ];
    patterns.iter().filter_map(|(pattern, figure)| Some((Regex::new(pattern).ok()?, *figure))).collect()
});

/// Takes what a line says into the figures.
pub fn read_figures(figures: &mut EngineFigures, line: &str) {
    let message = LogLine::parse(line).message;
    for (pattern, figure) in PATTERNS.iter() {
        let Some(found) = pattern.captures(message) else { continue };
        let text =
            |group: usize| found.get(group).map(|part| part.as_str().replace(',', "")).unwrap_or_default();
        let number = |group: usize| text(group).parse::<f64>().ok().filter(|n| n.is_finite());
        let count = |group: usize| text(group).parse::<u64>().ok().map(Tokens::new);
        let unit = found.get(2).map_or("GiB", |unit| unit.as_str());
        let size = |group: usize| number(group).map(|n| size_of(n, unit));
        let more = |known: Option<Bytes>, new: Option<Bytes>| known.max(new);
        match figure {
            Figure::Weights => figures.weights = more(figures.weights, size(1)),
            Figure::LoadSeconds => {
                figures.load_seconds =
                    Some(number(1).unwrap_or(0.0).max(figures.load_seconds.unwrap_or(0.0)));
            }
            Figure::Available => figures.available = less(figures.available, size(1)),
            Figure::TokensAndConcurrency => (figures.tokens, figures.concurrency) = (count(1), number(2)),
            Figure::Tokens => figures.tokens = count(1),
            Figure::Concurrency => figures.concurrency = number(1),
            // V0 printed blocks of 16 tokens.
            Figure::Blocks => {
                figures.tokens = count(1).map(|blocks| Tokens::new(blocks.as_u64().saturating_mul(16)))
            }
            Figure::Graphs => figures.graphs = more(figures.graphs, size(1)),
            Figure::GraphsEstimate => figures.graphs_estimate = more(figures.graphs_estimate, size(1)),
            Figure::Summary => {
                figures.weights = more(figures.weights, size(1));
                figures.activations = more(figures.activations, size(3));
                figures.non_torch = more(figures.non_torch, size(4));
            }
            Figure::SummaryConsumed => figures.activations = more(figures.activations, size(1)),
            Figure::V0Profile => {
                figures.weights = more(figures.weights, size(1));
                figures.non_torch = more(figures.non_torch, size(3));
                figures.activations = more(figures.activations, size(4));
                figures.available = less(figures.available, size(5));
            }
            Figure::Context => figures.context = count(1),
            Figure::KvDtype => figures.kv_dtype = Some(text(1)),
            Figure::WorldSize => figures.world_size = text(1).parse().ok(),
            Figure::Refused => {
                figures.refused_context = count(1);
                figures.refused_needs = number(2).map(|n| size_of(n, "GiB"));
                figures.available = less(figures.available, number(3).map(|n| size_of(n, "GiB")));
                figures.named_context = count(4).or(figures.named_context);
            }
            Figure::RefusedV0 => (figures.refused_context, figures.named_context) = (count(1), count(2)),
        }
        // The combined pattern holds the single ones.
        if matches!(figure, Figure::TokensAndConcurrency) {
            break;
        }
    }
}

fn less(known: Option<Bytes>, new: Option<Bytes>) -> Option<Bytes> {
    match (known, new) {
        (Some(known), Some(new)) => Some(known.min(new)),
        (known, new) => known.or(new),
    }
}

/// vLLM says GB and means GiB; a negative rest is none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, far below 2^63")]
fn size_of(number: f64, unit: &str) -> Bytes {
    let scale = if unit == "bytes" { 1.0 } else { f64::from(1 << 30) };
    Bytes::new((number.max(0.0) * scale) as u64)
}

#[cfg(test)]
mod tests {
    use super::read_figures;
    use crate::facts::EngineFigures;
    use crate::lifecycle::LineSplitter;
    use crate::units::{Bytes, Tokens};

    fn read(lines: &[&str]) -> EngineFigures {
        let mut figures = EngineFigures::default();
        lines.iter().for_each(|line| read_figures(&mut figures, line));
        figures
    }

    fn gib(n: f64) -> Option<Bytes> {
        Some(Bytes::new((n * f64::from(1 << 30)) as u64))
    }

    #[test]
    fn every_wording_is_understood() {
        let tokens = |n| Some(Tokens::new(n));
        for line in [
            "(Worker_TP0 pid=1) INFO 12-01 05:10:24 [x.py:1] Model loading took 72.4 GiB memory and 523.0 seconds",
            "INFO 07-12 10:00:00 [gpu_model_runner.py:1] Model loading took 72.4 GiB and 523.0 seconds",
            "INFO 07-12 10:00:00 model_runner.py:1] Loading model weights took 72.4 GB",
        ] {
            assert_eq!(read(&[line]).weights, gib(72.4), "{line}");
        }
        assert_eq!(
            read(&["Available KV cache memory: 7.42 GiB", "Available KV cache memory: 6.5 GiB"]).available,
            gib(6.5)
        );
        assert_eq!(read(&["Available KV cache memory: -2.14 GiB"]).available, Some(Bytes::ZERO));
        let both = read(&[
            "GPU KV cache size: 142,096 tokens, Maximum concurrency for 131,072 tokens per request: 1.08x",
        ]);
        assert_eq!((both.tokens, both.concurrency), (tokens(142_096), Some(1.08)));
        let apart = read(&[
            "GPU KV cache size: 142,096 tokens",
            "Maximum concurrency for 131,072 tokens per request: 1.08x",
        ]);
        assert_eq!((apart.tokens, apart.concurrency), (both.tokens, both.concurrency));
        assert_eq!(read(&["# GPU blocks: 27896, # CPU blocks: 2048"]).tokens, tokens(27_896 * 16));
        assert_eq!(read(&["Graph capturing finished in 12 secs, took 1.22 GiB"]).graphs, gib(1.22));
        assert_eq!(read(&["Estimated CUDA graph memory: 4.77 GiB total"]).graphs_estimate, gib(4.77));
        let summary = read(&[
            "Free memory on device (78.84/79.19 GiB) on startup. Desired GPU memory utilization is (0.95, 75.23 GiB). Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, 0.25 GiB for non-torch memory, and 0.91 GiB for CUDAGraph memory. Replace",
        ]);
        assert_eq!(
            (summary.weights, summary.activations, summary.non_torch),
            (gib(14.99), gib(1.89), gib(0.25))
        );
        let v0 = read(&[
            "model weights take 14.99GiB; non_torch_memory takes 0.13GiB; PyTorch activation peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is 54.90GiB.",
        ]);
        assert_eq!((v0.weights, v0.available, v0.activations), (gib(14.99), gib(54.90), gib(1.2)));
        assert_eq!(read(&["Auto-fit max_model_len: reduced from 1048576 to 310672 to fit in available KV cache memory (1.0 GiB CPU)"]).context, tokens(310_672));
        assert_eq!(
            read(&["Using fp8_e4m3 data type to store kv cache. It reduces"]).kv_dtype.as_deref(),
            Some("fp8_e4m3")
        );
    }

    #[test]
    fn a_refusal_names_what_would_fit() {
        let new = read(&[
            "ValueError: To serve at least one request with the model's max seq len (1000000), (3.22 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum model length is 310672. Try increasing",
        ]);
        assert_eq!(
            (new.refused_context, new.named_context),
            (Some(Tokens::new(1_000_000)), Some(Tokens::new(310_672)))
        );
        assert_eq!((new.refused_needs, new.available), (gib(3.22), gib(1.0)));
        let bare = read(&[
            "ValueError: To serve at least one request with the models's max seq len (1048576), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory (9.97 GiB). Try increasing",
        ]);
        assert_eq!((bare.refused_context, bare.named_context), (Some(Tokens::new(1_048_576)), None));
        let v0 = read(&[
            "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (81536).",
        ]);
        assert_eq!(v0.named_context, Some(Tokens::new(81_536)));
    }

    #[test]
    fn recorded_logs_give_their_figures() {
        let read = |log: &[u8]| {
            let mut figures = EngineFigures::default();
            LineSplitter::default().feed(log, |_, line| read_figures(&mut figures, line));
            figures
        };
        let start = read(include_bytes!("../../tests/golden/start-vllm-0.32-cpu-compile.log"));
        assert_eq!((start.available, start.tokens), (gib(1.0), Some(Tokens::new(1_048_576))));
        assert_eq!((start.context, start.load_seconds), (Some(Tokens::new(4096)), Some(0.03)));
        let refused = read(include_bytes!("../../tests/golden/fail-context-too-large-vllm-0.32-cpu.log"));
        assert_eq!(refused.named_context, Some(Tokens::new(310_672)));
    }
}
