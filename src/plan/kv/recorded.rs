//! The arithmetic held against public start-ups of real engines (`tests/data/startups.jsonl`).

use super::{AttentionDevice, KvLayout, KvOptions, kv_layout};
use crate::facts::{
    AttentionLayout, EngineVersion, MlaRanks, ModelConfig, StateLayers, StateShape, WindowedLayers,
};
use crate::units::{Bytes, Tokens};
use serde_json::Value;

/// Records whose figures contradict each other, with the reason.
const CONTRADICTIONS: &[(&str, &str)] = &[
    ("vsl-008", "two nodes: the printed memory is that of one rank, the tokens are the smallest rank's"),
    ("vsl-044", "two pipeline stages: the printed memory is the first one's, the last one decides"),
    ("vsl-000", "its type is given as fp8 and its figures are those of two bytes an element"),
    ("vsl-004", "the printed memory is one rank's, the other had less: 81,536 tokens need 7.47 GiB"),
    ("vsl-074", "the speculative settings are cut off in the source"),
];

fn records() -> Vec<Value> {
    include_str!("../../../tests/data/startups.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn whole(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64()
}

fn config(facts: &Value) -> ModelConfig {
    let layers = |key: &str| whole(facts, key).unwrap_or(0);
    let window = |layers: &str, tokens: &str| {
        Some(WindowedLayers { layers: whole(facts, layers)?, tokens: whole(facts, tokens)? })
    };
    let gdn = whole(facts, "linear_layers").map(|layers| StateLayers {
        layers,
        shape: StateShape::Gdn {
            key_heads: facts["linear_num_key_heads"].as_u64().expect("heads"),
            value_heads: facts["linear_num_value_heads"].as_u64().expect("heads"),
            key_dim: facts["linear_key_head_dim"].as_u64().expect("dim"),
            value_dim: facts["linear_value_head_dim"].as_u64().expect("dim"),
            conv: facts["conv_kernel"].as_u64().expect("kernel"),
        },
        state_element: Some(4),
    });
    let ranks = whole(facts, "kv_lora_rank").zip(whole(facts, "qk_rope_head_dim"));
    ModelConfig {
        dtype: Some("bfloat16".to_owned()),
        kv_heads: whole(facts, "kv_heads"),
        head_dim: whole(facts, "head_dim"),
        mla: ranks.map(|(kv_lora_rank, qk_rope_head_dim)| MlaRanks { kv_lora_rank, qk_rope_head_dim }),
        attention: AttentionLayout {
            full: whole(facts, "full_layers").unwrap_or_else(|| layers("layers")),
            sliding: window("sliding_layers", "sliding_window"),
            chunked: window("chunked_layers", "attention_chunk_size"),
            cross: None,
            state: gdn,
            indexer: whole(facts, "index_head_dim"),
            prediction_layers: 1,
        },
        ..ModelConfig::default()
    }
}

/// A version with the record's own rule of printing.
fn version(record: &Value) -> EngineVersion {
    let new = record["token_rule"].as_str().is_some_and(|rule| rule.starts_with("max_concurrency"));
    let given = record["vllm_version"].as_str().unwrap_or(if new { "0.22" } else { "0.19" });
    let given: EngineVersion = given.parse().expect("a version");
    // Some builds called 0.20.2rc print as 0.21 does.
    if new && !given.is_at_least(0, 21) { "0.21".parse().expect("a version") } else { given }
}

fn options<'a>(record: &'a Value, version: &'a EngineVersion) -> KvOptions<'a> {
    let speculative = record["other_flags"]["mtp"].as_u64().unwrap_or(0);
    let dtype = record["other_flags"]["dtype"].as_str().filter(|dtype| *dtype == "float32");
    KvOptions {
        tensor_parallel: record["tp"].as_u64().expect("tp"),
        pipeline_parallel: record["pp"].as_u64().expect("pp"),
        context_parallel: record["dcp"].as_u64().expect("dcp"),
        dtype: record["kv_cache_dtype"].as_str().filter(|dtype| *dtype != "auto").or(dtype),
        block: record["other_flags"]["block_size"]
            .as_u64()
            .or(Some(16).filter(|_| record["model_facts"]["indexer"].is_null())),
        version,
        device: AttentionDevice::Gpu,
        batched_tokens: record["max_num_batched_tokens"].as_u64().unwrap_or(8192),
        sparse_is_fp8: false,
        prediction_layers: u64::from(speculative > 0),
        speculative_tokens: speculative,
    }
}

/// Compares a figure of every record that has it and whose figures agree with each other; returns how
/// many were compared.
fn compare(figure: &str, plan: impl Fn(&KvLayout, &Value, f64) -> Option<(f64, f64, f64)>) -> usize {
    let (mut checked, mut wrong) = (0, Vec::new());
    for record in records() {
        let id = record["id"].as_str().expect("an id");
        if record["model_facts"].is_null() || CONTRADICTIONS.iter().any(|(known, _)| *known == id) {
            continue;
        }
        let version = version(&record);
        let layout = kv_layout(&config(&record["model_facts"]), options(&record, &version)).expect(id);
        let gib = record["available_kv_gib"].as_f64().unwrap_or(0.0);
        let Some((planned, recorded, tolerance)) = plan(&layout, &record, gib) else { continue };
        if (planned - recorded).abs() > recorded * tolerance {
            wrong.push(format!("{id} {}: {figure} {planned} planned, {recorded} recorded", record["model"]));
        }
        let class = record["model_facts"]["attention"].as_str().unwrap_or_default();
        println!("{figure:8} {class:14} {id} {:+.3}%", (planned / recorded - 1.0) * 100.0);
        checked += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    checked
}

/// A tenth of a percent, and what rounding to hundredths of a GiB hides.
fn tolerance(gib: f64) -> f64 {
    0.001 + 0.005 / gib.abs()
}

fn bytes(gib: f64) -> Bytes {
    Bytes::new((gib * f64::from(1 << 30)) as u64)
}

#[test]
fn printed_tokens_follow_from_the_available_memory() {
    let checked = compare("tokens", |layout, record, gib| {
        let tokens = record["kv_tokens"].as_f64().filter(|_| gib > 0.0)?;
        let length = Tokens::new(record["max_model_len"].as_u64().unwrap_or(8192));
        Some((layout.printed(bytes(gib), length).as_u64() as f64, tokens, tolerance(gib)))
    });
    assert_eq!(checked, 39);
}

#[test]
fn the_length_that_an_engine_names_is_found() {
    let checked = compare("length", |layout, record, gib| {
        let named = record["est_max_len"].as_f64().filter(|_| gib > 0.0)?;
        let most = Tokens::new(record["max_model_len"].as_u64().unwrap_or(1 << 20));
        let longest = layout.longest(bytes(gib), most).map_or(0, Tokens::as_u64);
        Some((longest as f64, named, tolerance(gib)))
    });
    assert_eq!(checked, 3);
}

#[test]
fn what_a_request_needs_is_what_an_engine_says() {
    let checked = compare("GiB", |layout, record, _| {
        let needed = record["needed_kv_gib"].as_f64()?;
        let length = Tokens::new(record["max_model_len"].as_u64()?);
        Some((layout.needed(length).as_gib_f64(), needed, tolerance(needed)))
    });
    assert_eq!(checked, 3);
}

#[test]
fn concurrency_is_what_an_engine_prints() {
    let checked = compare("requests", |layout, record, gib| {
        let concurrency = record["max_concurrency"].as_f64().filter(|_| gib > 0.0)?;
        let length = Tokens::new(record["max_model_len"].as_u64()?);
        Some((layout.concurrency(bytes(gib), length), concurrency, tolerance(gib) + 0.005 / concurrency))
    });
    assert_eq!(checked, 37);
}
