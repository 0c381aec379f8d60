//! Weights and available memory held against public start-ups of real engines. Prints the accuracy
//! (`cargo test --lib recorded -- --nocapture`).

use std::collections::BTreeMap;

use super::gpu_memory::{Budget, Ledger};
use super::overheads::{Estimate, OverheadOptions, activations, cuda_graphs, non_torch};
use super::weights::{Spread, computed_inventory, rank_weights};
use crate::facts::{EngineVersion, ModelConfig, parse_model_config};
use crate::units::Bytes;
use serde_json::Value;

/// A start-up of a text model whose sizes are published.
struct Startup {
    record: Value,
    config: ModelConfig,
    version: EngineVersion,
}

fn startups() -> Vec<Startup> {
    let configs: BTreeMap<String, Value> =
        serde_json::from_str(include_str!("../../tests/data/published-configs.json")).expect("configs");
    let records = include_str!("../../tests/data/startups.jsonl").lines();
    let records = records.map(|line| serde_json::from_str::<Value>(line).expect(line));
    let find = |record: Value| {
        let mut config = configs.get(record["model"].as_str()?)?.clone();
        if record["other_flags"]["dtype"] == "float32" {
            config["torch_dtype"] = Value::from("float32");
        }
        let config = parse_model_config(config.to_string().as_bytes(), None).expect("a config");
        let version = record["vllm_version"].as_str().unwrap_or("0.9").parse().expect("a version");
        Some(Startup { record, config, version })
    };
    records.filter_map(find).collect()
}

impl Startup {
    fn weights(&self) -> Estimate {
        let spread = Spread {
            tensor_parallel: self.record["tp"].as_u64().expect("tp"),
            pipeline_parallel: self.record["pp"].as_u64().expect("pp"),
            expert_parallel: None,
            prediction: false,
        };
        let inventory = computed_inventory(&self.config).expect("computed");
        Estimate::known(rank_weights(&inventory, &self.config, spread).heaviest, String::new())
    }
}

fn bytes(gib: f64) -> Bytes {
    Bytes::new((gib * f64::from(1 << 30)) as u64)
}

#[test]
fn weights_of_a_rank_are_within_a_percent() {
    let mut errors = Vec::new();
    for startup in startups() {
        let (Some(recorded), Some(1)) =
            (startup.record["weights_gib"].as_f64(), startup.record["pp"].as_u64())
        else {
            continue;
        };
        let planned = startup.weights().likely.as_gib_f64();
        let error = planned / recorded - 1.0;
        println!(
            "{:48} tp {} {planned:7.2} planned {recorded:7.2} recorded {:+.2}%",
            startup.record["model"].to_string(),
            startup.record["tp"],
            error * 100.0
        );
        errors.push(error.abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("weights: {} start-ups, mean error {:.2}%", errors.len(), mean * 100.0);
    assert!(errors.len() >= 20 && mean <= 0.0075, "{} start-ups, mean error {mean}", errors.len());
}

#[test]
fn available_memory_is_inside_the_range_and_near_its_middle() {
    let (mut errors, mut inside) = (Vec::new(), 0);
    for startup in startups() {
        let record = &startup.record;
        let figures = (
            record["available_kv_gib"].as_f64(),
            record["gpu_total_gib"].as_f64(),
            record["gpu_memory_utilization"].as_f64(),
        );
        let (Some(recorded), Some(total), Some(utilization)) = figures else { continue };
        // Before 0.10 the profile run was another one, and three times as large.
        if !startup.version.is_at_least(0, 10) || record["pp"] != 1 {
            continue;
        }
        let options = OverheadOptions {
            version: &startup.version,
            tensor_parallel: record["tp"].as_u64().expect("tp"),
            batched_tokens: record["max_num_batched_tokens"].as_u64().unwrap_or(8192),
            sequences: record["max_num_seqs"].as_u64().unwrap_or(1024),
            enforce_eager: record["enforce_eager"] == true,
            nvlink: Some(true), // H100
        };
        let ledger = Ledger {
            budget: Budget {
                total: bytes(total),
                utilization: (utilization * 1000.0) as u64,
                free: None,
                assumed: false,
            },
            weights: startup.weights(),
            activations: activations(&startup.config, options).expect("known"),
            graphs: cuda_graphs(options),
            outside: non_torch(options),
        };
        let [worst, likely, best] = ledger.available().map(Bytes::as_gib_f64);
        inside += u32::from((worst - 0.01..=best + 0.01).contains(&recorded));
        errors.push((likely / recorded - 1.0).abs());
        println!(
            "{:48} {worst:6.2} {likely:6.2} {best:6.2} planned {recorded:6.2} recorded",
            record["model"].to_string()
        );
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    let share = f64::from(inside) / errors.len() as f64;
    println!(
        "available: {} start-ups, median error {:.2}%, {:.0}% inside the range",
        errors.len(),
        median * 100.0,
        share * 100.0
    );
    assert!(errors.len() >= 15 && median <= 0.01 && share >= 0.8, "median {median}, inside {share}");
}
