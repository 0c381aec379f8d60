//! Sizes of a model's layers, as far as its weights can be computed from them.

use serde_json::Value;

/// Sizes from `config.json`; absent means not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchitectureSizes {
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Width of a dense MLP.
    pub intermediate: Option<u64>,
    /// Routed experts in a layer.
    pub experts: Option<u64>,
    /// Width of one expert.
    pub expert_intermediate: Option<u64>,
    /// Experts that every token passes.
    pub shared_experts: u64,
    /// Width of the shared expert, where it is given apart.
    pub shared_intermediate: Option<u64>,
    /// Layers with a dense MLP before the experts begin.
    pub dense_layers: u64,
    /// Rank of the query's low-rank projection (MLA).
    pub q_lora_rank: Option<u64>,
    /// Size of the part of a query head without position (MLA).
    pub qk_nope_head_dim: Option<u64>,
    /// Size of a value head (MLA).
    pub v_head_dim: Option<u64>,
}

/// Reads the sizes.
#[must_use]
pub fn parse_architecture(text: &Value) -> ArchitectureSizes {
    let whole = |key: &str| text.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let any = |keys: &[&str]| keys.iter().find_map(|key| whole(key));
    let experts = any(&["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"]);
    let shared_intermediate = any(&["shared_expert_intermediate_size"]);
    ArchitectureSizes {
        hidden: any(&["hidden_size", "n_embd", "d_model"]),
        intermediate: any(&["intermediate_size", "n_inner", "ffn_hidden_size"]),
        experts,
        expert_intermediate: any(&["moe_intermediate_size", "expert_ffn_hidden_size"])
            .or_else(|| experts.and(whole("intermediate_size"))),
        shared_experts: any(&["n_shared_experts", "num_shared_experts"])
            .unwrap_or(u64::from(shared_intermediate.is_some())),
        shared_intermediate,
        dense_layers: whole("first_k_dense_replace").unwrap_or(0),
        q_lora_rank: whole("q_lora_rank"),
        qk_nope_head_dim: whole("qk_nope_head_dim"),
        v_head_dim: whole("v_head_dim"),
    }
}
