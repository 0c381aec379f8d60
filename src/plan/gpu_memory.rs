//! The memory ledger of the GPU that binds, and the context window that fits beside it.

use super::kv::KvLayout;
use super::model::MemoryRow;
use super::overheads::Estimate;
use crate::facts::Gpu;
use crate::units::{Bytes, Tokens};

/// Share of the total that the driver keeps, where NVML does not say: 0.62 of 95.6 GiB on an
/// RTX PRO 6000, 0.4 of 80 on an H100.
const RESERVED_SHARE: u64 = 154;

/// A GPU's memory as the engine sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    /// What CUDA reports as total.
    pub total: Bytes,
    /// Share that the engine may use, in thousandths.
    pub utilization: u64,
    /// Free now.
    pub free: Option<Bytes>,
    /// Is the total derived from an assumed reserve?
    pub assumed: bool,
}

impl Budget {
    pub fn of(gpu: &Gpu, utilization: u64) -> Option<Self> {
        let all = gpu.memory_total?;
        let reserved = gpu.memory_reserved.unwrap_or_else(|| Bytes::new(all.as_u64() / RESERVED_SHARE));
        let assumed = gpu.memory_reserved.is_none();
        Some(Self { total: all.saturating_sub(reserved), utilization, free: gpu.memory_free, assumed })
    }

    /// `ceil(total x utilization)`.
    pub fn requested(self) -> Bytes {
        Bytes::new(self.total.as_u64().saturating_mul(self.utilization).div_ceil(1000))
    }

    /// The largest utilization, in thousandths, that the free memory allows.
    pub fn allowed(self) -> Option<u64> {
        let free = self.free?.min(self.total);
        let thousandths = free.as_u64().saturating_mul(1000).checked_div(self.total.as_u64())?;
        Some(thousandths.saturating_sub(5))
    }
}

/// What a rank's GPU holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ledger {
    pub budget: Budget,
    pub weights: Estimate,
    pub activations: Estimate,
    pub graphs: Estimate,
    pub outside: Estimate,
}

/// How sure it is that something fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fits {
    No,
    /// Only when every estimate comes out at its low end.
    AtBest,
    Likely,
    Surely,
}

impl Ledger {
    fn rows(&self) -> [&Estimate; 4] {
        [&self.weights, &self.activations, &self.graphs, &self.outside]
    }

    /// Room for the KV cache with every estimate at its high, likely and low end.
    pub fn available(&self) -> [Bytes; 3] {
        let left = |pick: fn(&Estimate) -> Bytes| {
            self.budget.requested().saturating_sub(self.rows().into_iter().map(pick).sum())
        };
        [left(|e| e.high), left(|e| e.likely), left(|e| e.low)]
    }

    /// Does a request of this length fit?
    pub fn fits(&self, layout: &KvLayout, length: Tokens) -> Fits {
        let needed = layout.needed(length);
        let [worst, likely, best] = self.available();
        match needed {
            n if n <= worst => Fits::Surely,
            n if n <= likely => Fits::Likely,
            n if n <= best => Fits::AtBest,
            _ => Fits::No,
        }
    }

    /// Rows for people, the KV cache last.
    pub fn table(&self, kv: Option<(Bytes, String)>) -> Vec<MemoryRow> {
        let row = |item: &str, estimate: &Estimate| MemoryRow {
            item: item.to_owned(),
            bytes: estimate.likely,
            source: if estimate.low == estimate.high {
                estimate.source.clone()
            } else {
                format!("{} to {}: {}", estimate.low, estimate.high, estimate.source)
            },
        };
        let mut rows = vec![
            row("weights", &self.weights),
            row("activations (peak)", &self.activations),
            row("CUDA graphs", &self.graphs),
            row("outside PyTorch", &self.outside),
        ];
        if let Some((bytes, source)) = kv {
            rows.push(MemoryRow { item: "KV cache".to_owned(), bytes, source });
        }
        let kept = self.budget.total.saturating_sub(self.budget.requested());
        let utilization = format!("gpu-memory-utilization {:.2}", self.budget.utilization as f64 / 1000.0);
        rows.push(MemoryRow { item: "kept free".to_owned(), bytes: kept, source: utilization });
        let assumed = if self.budget.assumed {
            "NVML's total less an assumed reserve of the driver"
        } else {
            "as CUDA sees it"
        };
        rows.push(MemoryRow { item: "all".to_owned(), bytes: self.budget.total, source: assumed.to_owned() });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Ledger};
    use crate::plan::overheads::Estimate;
    use crate::units::Bytes;
    use proptest::prelude::*;

    fn estimate() -> impl Strategy<Value = Estimate> {
        (0u64..1 << 36, 0u64..1 << 33, 0u64..1 << 33).prop_map(|(low, more, most)| Estimate {
            low: Bytes::new(low),
            likely: Bytes::new(low + more),
            high: Bytes::new(low + more + most),
            source: String::new(),
        })
    }

    fn ledger(utilization: u64) -> impl Strategy<Value = Ledger> {
        (0u64..1 << 38, estimate(), estimate(), estimate(), estimate()).prop_map(
            move |(total, weights, activations, graphs, outside)| {
                let budget = Budget { total: Bytes::new(total), utilization, free: None, assumed: false };
                Ledger { budget, weights, activations, graphs, outside }
            },
        )
    }

    proptest! {
        #[test]
        fn the_ledger_never_exceeds_the_memory(ledger in ledger(920)) {
            let [worst, likely, best] = ledger.available();
            prop_assert!(worst <= likely && likely <= best && best <= ledger.budget.requested());
            prop_assert!(ledger.budget.requested() <= ledger.budget.total.checked_add(Bytes::new(1)).expect("small"));
            let used: Bytes = [&ledger.weights, &ledger.activations, &ledger.graphs, &ledger.outside].iter().map(|e| e.likely).sum();
            prop_assert!(likely == Bytes::ZERO || likely.checked_add(used).expect("small") <= ledger.budget.requested());
        }

        #[test]
        fn a_larger_share_never_leaves_less(ledger in ledger(500), more in 0u64..500) {
            let mut larger = ledger.clone();
            larger.budget.utilization += more;
            for (small, large) in ledger.available().into_iter().zip(larger.available()) {
                prop_assert!(small <= large);
            }
        }
    }
}
