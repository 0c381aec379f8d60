use super::{Spread, computed_inventory, layers_of_stage, rank_weights};
use crate::facts::{ModelConfig, WeightInventory, parse_model_config};
use crate::units::Bytes;

const FLAGSHIP: &str = include_str!("../../../tests/data/kimi-k2.5-nvfp4/config.json");

fn parse(text: &str) -> ModelConfig {
    parse_model_config(text.as_bytes(), None).expect(text)
}

fn spread(tensor_parallel: u64, pipeline_parallel: u64) -> Spread {
    Spread { tensor_parallel, pipeline_parallel, expert_parallel: None, prediction: false }
}

#[test]
fn the_flagship_weighs_what_the_arithmetic_says() {
    let config = parse(FLAGSHIP);
    let inventory = computed_inventory(&config).expect("known");
    let rank = rank_weights(&inventory, &config, spread(8, 1));
    // 70.7 GiB a GPU with the encoder's 0.11 (vllm-memory.md 8); its sizes are not in the text model.
    let gib = rank.heaviest.as_gib_f64();
    assert!((gib - 70.6).abs() < 0.15, "{gib} GiB");
    assert!(rank.source.contains("computed from the architecture"), "{}", rank.source);
    let total = inventory.total().as_gib_f64();
    assert!((total - 549.3).abs() < 1.0, "{total} GiB");
}

#[test]
fn dense_models_have_their_published_sizes() {
    // Parameters of published checkpoints, in bf16.
    let llama = r#"{"num_hidden_layers":32,"hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,
        "num_key_value_heads":8,"vocab_size":128256,"torch_dtype":"bfloat16","tie_word_embeddings":false}"#;
    let smollm2 = r#"{"num_hidden_layers":30,"hidden_size":576,"intermediate_size":1536,"num_attention_heads":9,
        "num_key_value_heads":3,"vocab_size":49152,"dtype":"bfloat16","tie_word_embeddings":true}"#;
    for (text, parameters) in [(llama, 8_030_261_248_u64), (smollm2, 134_515_008)] {
        let total = computed_inventory(&parse(text)).expect("known").total().as_u64() as f64;
        let published = parameters as f64 * 2.0;
        assert!((total / published - 1.0).abs() < 0.001, "{total} of {published}");
    }
    let mixtral = r#"{"num_hidden_layers":32,"hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,
        "num_key_value_heads":8,"vocab_size":32000,"num_local_experts":8,"torch_dtype":"bfloat16","tie_word_embeddings":false}"#;
    let total = computed_inventory(&parse(mixtral)).expect("known").total().as_u64() as f64;
    assert!((total / (46_702_792_704_f64 * 2.0) - 1.0).abs() < 0.001, "{total}");
}

#[test]
fn what_cannot_be_computed_is_said() {
    assert!(computed_inventory(&ModelConfig::default()).expect_err("nothing").contains("num_hidden_layers"));
    let unknown = r#"{"num_hidden_layers":1,"hidden_size":8,"intermediate_size":8,"num_attention_heads":1,"vocab_size":8,
        "quantization_config":{"quant_method":"bitsandbytes"}}"#;
    assert!(computed_inventory(&parse(unknown)).expect_err("unknown").contains("bitsandbytes"));
}

#[test]
fn ranks_and_stages_share_what_can_be_shared() {
    let config =
        parse(r#"{"num_hidden_layers":4,"num_key_value_heads":2,"num_attention_heads":8,"hidden_size":8}"#);
    let mut inventory = WeightInventory::default();
    for layer in 0..4 {
        for (name, bytes) in
            [("mlp.up_proj", 800), ("self_attn.k_proj", 80), ("mlp.experts.0.up_proj", 1600), ("norm", 8)]
        {
            inventory.add(&format!("model.layers.{layer}.{name}.weight"), bytes, Some(4));
        }
    }
    inventory.add("model.embed_tokens.weight", 4000, Some(4));
    inventory.add("lm_head.weight", 4000, Some(4));
    let heaviest = |spread| rank_weights(&inventory, &config, spread).heaviest.as_u64();
    assert_eq!(heaviest(spread(1, 1)), inventory.total().as_u64());
    assert_eq!(heaviest(spread(4, 1)), 4 * (200 + 40 + 400 + 8) + 2000, "keys and values at most by two");
    assert_eq!(heaviest(spread(1, 2)), 2 * (800 + 80 + 1600 + 8) + 4000);
    let experts = Spread { expert_parallel: Some(8), ..spread(4, 1) };
    assert_eq!(heaviest(experts), 4 * (200 + 40 + 200 + 8) + 2000);
    assert_eq!(rank_weights(&inventory, &config, spread(1, 1)).heaviest, Bytes::new(17_952));
}

#[test]
fn the_remainder_of_layers_goes_to_the_middle_stages() {
    let stages =
        |layers, stages| (0..stages).map(|stage| layers_of_stage(layers, stages, stage)).collect::<Vec<_>>();
    assert_eq!(stages(32, 4), [8, 8, 8, 8]);
    assert_eq!(stages(61, 4), [15, 15, 16, 15]);
    assert_eq!(stages(62, 4), [15, 16, 16, 15]);
    assert_eq!(stages(7, 1), [7]);
}
