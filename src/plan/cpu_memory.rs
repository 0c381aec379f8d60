//! The memory ledger of a CPU engine: weights, KV cache and processes share the host's memory.

use super::kv::KvLayout;
use super::model::MemoryRow;
use crate::units::{Bytes, Tokens};

/// Resident memory without weights and KV cache, counted so that shared pages count once: API
/// server 667 MiB and EngineCore 631 MiB (measured, vLLM 0.32 CPU build).
const FRONT: Bytes = Bytes::from_mib(667 + 631);
/// The same of one worker (measured with a model of 2 MB).
const WORKER: Bytes = Bytes::from_mib(1_779);

/// What a CPU engine is planned from.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuNeeds<'a> {
    /// Sum of the weight files.
    pub weights: Option<Bytes>,
    /// Memory that can be had.
    pub available: Option<Bytes>,
    /// Worker processes.
    pub ranks: u64,
    /// Shape of the KV cache, when it is known.
    pub shape: Option<&'a KvLayout>,
    /// Context window to make room for, when one is known.
    pub context: Option<Tokens>,
    /// `VLLM_CPU_KVCACHE_SPACE` as the user set it.
    pub given_space: Option<Bytes>,
}

/// The ledger with the KV cache space that it arrives at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CpuMemory {
    /// KV cache of one rank.
    pub space: Bytes,
    /// Why it is that much.
    pub reason: String,
    /// Rows, the space of all ranks included.
    pub rows: Vec<MemoryRow>,
    /// Sum of the rows.
    pub total: Bytes,
    /// Does it fit into the memory that can be had? `None` when that is unknown.
    pub fits: Option<bool>,
}

/// Chooses the KV cache space and draws up the ledger. Whole GiB, since that is what
/// `VLLM_CPU_KVCACHE_SPACE` takes.
pub(super) fn plan_cpu_memory(needs: CpuNeeds<'_>) -> CpuMemory {
    let processes =
        WORKER.checked_mul(needs.ranks).and_then(|workers| workers.checked_add(FRONT)).unwrap_or(FRONT);
    let weights = needs.weights.unwrap_or(Bytes::ZERO);
    let fixed = weights.checked_add(processes).unwrap_or(weights);
    let (space, reason) = match needs.given_space {
        Some(space) => (space, "as given".to_owned()),
        None => choose_space(needs, fixed),
    };
    let cache = space.checked_mul(needs.ranks.max(1)).unwrap_or(space);
    let total = fixed.checked_add(cache).unwrap_or(fixed);
    let mut rows = Vec::new();
    if let Some(weights) = needs.weights {
        rows.push(row("weights", weights, "sum of the weight files"));
    }
    let tokens = needs.shape.zip(needs.context).map(|(shape, context)| shape.printed(space, context));
    let tokens = tokens.map(|tokens| format!("{tokens} tokens: ")).unwrap_or_default();
    let formula =
        needs.shape.map_or_else(|| "VLLM_CPU_KVCACHE_SPACE".to_owned(), |shape| shape.formula().to_owned());
    let item = if needs.ranks > 1 { "KV cache (all ranks)" } else { "KV cache" };
    rows.push(row(item, cache, &format!("{tokens}{formula}")));
    rows.push(row("processes", processes, "measured: vLLM 0.32 CPU build, API server, EngineCore, workers"));
    if let Some(available) = needs.available {
        rows.push(row(
            "left of what is available",
            available.saturating_sub(total),
            "MemAvailable less the above",
        ));
    }
    CpuMemory { space, reason, rows, total, fits: needs.available.map(|available| total <= available) }
}

fn row(item: &str, bytes: Bytes, source: &str) -> MemoryRow {
    MemoryRow { item: item.to_owned(), bytes, source: source.to_owned() }
}

/// Room for one request of full length, at least one GiB, at most half of what the rest leaves.
fn choose_space(needs: CpuNeeds<'_>, fixed: Bytes) -> (Bytes, String) {
    let wanted = needs.shape.zip(needs.context).map(|(shape, context)| shape.needed(context));
    let gib = Bytes::from_gib(1).as_u64();
    let wanted_gib = wanted.map_or(1, |bytes| bytes.as_u64().div_ceil(gib)).max(1);
    let room = needs
        .available
        .map(|available| available.saturating_sub(fixed).as_u64() / 2 / needs.ranks.max(1) / gib);
    let most = room.unwrap_or(wanted_gib).max(1);
    let reason = if wanted_gib <= most {
        "room for one request of full length, in whole GiB"
    } else {
        "half of the memory that the rest leaves; a request of full length needs more"
    };
    (Bytes::from_gib(wanted_gib.min(most)), reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{CpuNeeds, plan_cpu_memory};
    use crate::facts::{AttentionLayout, ModelConfig};
    use crate::plan::kv::{AttentionDevice, KvLayout, KvOptions, kv_layout};
    use crate::units::{Bytes, Tokens};

    /// SmolLM2-135M: 23,040 B a token.
    fn shape() -> KvLayout {
        let config = ModelConfig {
            kv_heads: Some(3),
            head_dim: Some(64),
            attention: AttentionLayout { full: 30, ..AttentionLayout::default() },
            ..ModelConfig::default()
        };
        let options = KvOptions {
            tensor_parallel: 1,
            pipeline_parallel: 1,
            context_parallel: 1,
            dtype: None,
            block: None,
            version: &"0.32.0".parse().expect("a version"),
            device: AttentionDevice::Cpu { amx: false },
            batched_tokens: 2048,
            sparse_is_fp8: false,
            prediction_layers: 0,
            speculative_tokens: 0,
        };
        kv_layout(&config, options).expect("known")
    }

    #[test]
    fn the_space_grows_with_the_context_and_stops_at_half_of_the_rest() {
        let shape = shape();
        let needs = |context, available| CpuNeeds {
            weights: Some(Bytes::from_mib(257)),
            available: Some(Bytes::from_gib(available)),
            ranks: 1,
            shape: Some(&shape),
            context: Some(Tokens::new(context)),
            given_space: None,
        };
        for (context, available, gib, fits) in
            [(8_192, 20, 1, true), (131_072, 20, 3, true), (1_000_000, 20, 8, true), (8_192, 3, 1, false)]
        {
            let memory = plan_cpu_memory(needs(context, available));
            assert_eq!(
                (memory.space, memory.fits),
                (Bytes::from_gib(gib), Some(fits)),
                "{context} {available}"
            );
            let sum: Bytes = memory.rows.iter().take(3).map(|row| row.bytes).sum();
            assert_eq!(sum, memory.total);
        }
        let given = plan_cpu_memory(CpuNeeds { given_space: Some(Bytes::from_gib(5)), ..needs(8_192, 20) });
        assert_eq!((given.space, given.reason.as_str()), (Bytes::from_gib(5), "as given"));
    }
}
