//! `kdeploy/plan`: the plan in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::plan::{
    MemoryRow, Plan, PlanChange, PlanWarning, PlannedEngine, PlannedKvType, PlannedModel, PlannedSetting,
    expected_evidence,
};
use crate::report::Document;
use crate::units::{Bytes, Tokens};

/// One row of the memory ledger.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryBody {
    /// What takes the memory.
    pub item: String,
    /// How much.
    pub bytes: Bytes,
    /// Formula or reading it comes from.
    pub source: String,
}

/// Hardware planned for.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HardwareBody {
    /// One line for people.
    pub summary: String,
}

/// The context window.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ContextBody {
    /// Its length.
    pub planned_tokens: Tokens,
    /// A shorter one is never used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<Tokens>,
    /// Requests of that length at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<f64>,
}

/// One value that a patch changes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlannedEdit {
    /// The patches of its file.
    pub id: String,
    /// The file.
    pub file: String,
    /// JSON Pointer; empty for a whole file.
    pub pointer: String,
    /// The value before; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<serde_json::Value>,
    /// The value afterwards; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<serde_json::Value>,
}

/// What `plan` decided.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlanBody {
    /// Name of the deployment.
    pub name: String,
    /// What is served.
    pub model: PlannedModel,
    /// What serves it.
    pub engine: PlannedEngine,
    /// On what.
    pub hardware: HardwareBody,
    /// Does it fit?
    pub fits: bool,
    /// Why, one sentence.
    pub verdict: String,
    /// Context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<Tokens>,
    /// KV cache capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_tokens: Option<Tokens>,
    /// The context window with what one request of that length takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextBody>,
    /// The KV cache, where its layout is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<MemoryBody>,
    /// Weights of the rank that binds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<MemoryBody>,
    /// What the engine must say while it starts, or the launch is ended.
    pub evidence: Vec<String>,
    /// Every value with its origin.
    pub settings: Vec<PlannedSetting>,
    /// Memory ledger.
    pub memory: Vec<MemoryBody>,
    /// The command line.
    pub argv: Vec<String>,
    /// Variables set for the engine.
    pub env: BTreeMap<String, String>,
    /// Values that patches change in the overlay.
    pub patches: Vec<PlannedEdit>,
    /// Data type of the KV cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_type: Option<PlannedKvType>,
    /// What the reader should know.
    pub warnings: Vec<PlanWarning>,
    /// Changes that would let more fit, best first.
    pub changes: Vec<PlanChange>,
    /// Expected time to ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
    /// All of it in the form that `up --plan` takes.
    pub launch: Plan,
}

impl From<&Plan> for PlanBody {
    fn from(plan: &Plan) -> Self {
        let row = |row: &MemoryRow| MemoryBody {
            item: row.item.clone(),
            bytes: row.bytes,
            source: row.source.clone(),
        };
        Self {
            name: plan.name.to_string(),
            model: plan.model.clone(),
            engine: plan.engine.clone(),
            hardware: HardwareBody { summary: plan.hardware.clone() },
            fits: plan.fits,
            verdict: plan.verdict.clone(),
            context: plan.context.map(|tokens| ContextBody {
                planned_tokens: tokens,
                min_tokens: plan.context_min,
                concurrency: plan
                    .kv_cache_tokens
                    .map(|kv| kv.as_u64() as f64 / tokens.as_u64().max(1) as f64),
            }),
            kv: plan.memory.iter().find(|row| row.item.starts_with("KV cache")).map(row),
            weights: plan.memory.iter().find(|row| row.item == "weights").map(row),
            evidence: expected_evidence(plan),
            context_tokens: plan.context,
            kv_cache_tokens: plan.kv_cache_tokens,
            settings: plan.settings.clone(),
            memory: plan.memory.iter().map(row).collect(),
            argv: plan.argv.clone(),
            env: plan.env.clone(),
            patches: edits(plan),
            kv_type: plan.kv_type.clone(),
            warnings: plan.warnings.clone(),
            changes: plan.changes.clone(),
            eta_ms: plan.eta_ms,
            launch: plan.clone(),
        }
    }
}

fn edits(plan: &Plan) -> Vec<PlannedEdit> {
    let files = plan.overlay.iter().flat_map(|overlay| &overlay.files);
    let edit = |file: &crate::patch::PatchedFile| {
        let (id, path) = (file.patches.join(","), file.path.clone());
        let edit = move |change: &crate::patch::Change| PlannedEdit {
            id: id.clone(),
            file: path.clone(),
            pointer: change.pointer.clone(),
            before: change.before.clone(),
            after: change.after.clone(),
        };
        file.changes.iter().map(edit).collect::<Vec<_>>()
    };
    files.flat_map(edit).collect()
}

impl Document for PlanBody {
    const SCHEMA: &'static str = "kdeploy/plan";
    const VERSION: u32 = 1;
}
