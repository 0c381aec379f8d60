//! What a GPU holds beside weights and KV cache: activations, memory outside PyTorch, CUDA graphs.
//! Each as low, likely and high, since none of it can be read before a start (vllm-memory.md 6).

use crate::facts::{EngineVersion, ModelConfig};
use crate::units::Bytes;

/// An estimate with its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub low: Bytes,
    pub likely: Bytes,
    pub high: Bytes,
    /// Formula or measurement it comes from.
    pub source: String,
}

impl Estimate {
    fn of(low: Bytes, likely: Bytes, high: Bytes, source: String) -> Self {
        let low = low.min(likely);
        Self { low, likely, high: high.max(likely), source }
    }

    /// A value that is known: no range.
    pub fn known(bytes: Bytes, source: String) -> Self {
        Self { low: bytes, likely: bytes, high: bytes, source }
    }
}

/// What the estimates depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverheadOptions<'a> {
    pub version: &'a EngineVersion,
    pub tensor_parallel: u64,
    pub batched_tokens: u64,
    pub sequences: u64,
    pub enforce_eager: bool,
    pub nvlink: Option<bool>,
}

/// Version from which the sampler may be left out of the profile run (runner V2).
const RUNNER_V2: (u64, u64) = (0, 26);
/// Version from which CUDA graphs are estimated and charged.
const GRAPHS_CHARGED: (u64, u64) = (0, 21);

const fn mib(n: u64) -> Bytes {
    Bytes::from_mib(n)
}

/// Activations at their peak: the larger of the dense forward pass and the sampler (fitted on 37
/// start-ups on H100, mean error 0.05 GiB), more for mixtures of experts.
pub(crate) fn activations(config: &ModelConfig, options: OverheadOptions<'_>) -> Result<Estimate, String> {
    let sizes = &config.sizes;
    let hidden = sizes.hidden.ok_or("hidden_size is not in config.json")?;
    let vocab = config.vocab.ok_or("vocab_size is not in config.json")?;
    let width =
        sizes.intermediate.or(sizes.expert_intermediate).ok_or("intermediate_size is not in config.json")?;
    let tp = options.tensor_parallel.max(1);
    let forward = 2_u64.saturating_mul(options.batched_tokens).saturating_mul(3 * (width / tp) + 4 * hidden);
    let sampler = options.sequences.saturating_mul(vocab).saturating_mul(31) / 2;
    let experts = if sizes.experts.is_some() { mib(410).as_u64() } else { 0 };
    let likely_sampler =
        if options.version.is_at_least(RUNNER_V2.0, RUNNER_V2.1) { sampler * 3 / 5 } else { sampler };
    // Encoders cost 0.3 to 0.4 GiB on top (Gemma-3, Kimi-VL).
    let experts = experts + if config.has_encoder { mib(350).as_u64() } else { 0 };
    let source = format!(
        "larger of 2 x {} x (3 x {} + 4 x {hidden}) and 15.5 x {} x {vocab}",
        options.batched_tokens,
        width / tp,
        options.sequences
    );
    Ok(Estimate::of(
        Bytes::new(forward + experts),
        Bytes::new(forward.max(likely_sampler) + experts),
        Bytes::new(forward.max(sampler) * 11 / 10 + 2 * experts),
        source,
    ))
}

/// Memory outside PyTorch after the first snapshot: communication buffers and workspaces.
pub(crate) fn non_torch(options: OverheadOptions<'_>) -> Estimate {
    let (low, likely, high, what) = match (options.tensor_parallel > 1, options.nvlink) {
        (false, _) => (70, 260, 470, "measured on H100, one rank"),
        (true, Some(true)) => (2_000, 2_130, 2_300, "measured on H100 over NVLink"),
        (true, Some(false)) => (300, 500, 800, "PCIe, implied by a public start on RTX PRO 6000"),
        (true, None) => (300, 1_200, 2_300, "between PCIe and NVLink: the links are not known"),
    };
    Estimate::of(mib(low), mib(likely), mib(high), what.to_owned())
}

/// CUDA graphs, where the engine charges them.
pub(crate) fn cuda_graphs(options: OverheadOptions<'_>) -> Estimate {
    if options.enforce_eager {
        return Estimate::known(Bytes::ZERO, "none with enforce_eager".to_owned());
    }
    if !options.version.is_at_least(GRAPHS_CHARGED.0, GRAPHS_CHARGED.1) {
        return Estimate::of(
            Bytes::ZERO,
            Bytes::ZERO,
            Bytes::ZERO,
            "outside the budget before 0.21".to_owned(),
        );
    }
    Estimate::of(
        mib(500),
        mib(1_450),
        mib(2_400),
        "0.5 to 1.85 GiB measured, the engine's estimate is often higher".to_owned(),
    )
}
