//! A plan held against what the engine said, and the one change that is made after a failure.

use serde_json::Value;

use super::defaults::fit_budget;
use super::model::{Plan, PlanWarning};
use crate::config::{Origin, OriginKind};
use crate::facts::EngineFigures;
use crate::units::{Bytes, Tokens};

/// A context that was named is rounded down to a multiple of this, where it is longer.
const STEP: u64 = 1024;

/// The same plan with the context that the engine says would fit; `None` when the length was asked for
/// by the user, is below the minimum, is no shorter, or was revised before.
#[must_use]
pub fn revise_context(plan: &Plan, named: Tokens) -> Option<Plan> {
    let chosen = plan.settings.iter().find(|setting| setting.name == "max_model_len")?;
    if chosen.origin.kind > OriginKind::Planned || plan.revised.is_some() {
        return None;
    }
    let length = if named.as_u64() > STEP { named.round_down_to(STEP) } else { named };
    let least = plan.context_min.unwrap_or(Tokens::new(1));
    if length < least || plan.context.is_some_and(|context| length >= context) || length.as_u64() == 0 {
        return None;
    }
    let mut revised = plan.clone();
    let flag = revised.argv.iter().position(|word| word == "--max-model-len")?;
    *revised.argv.get_mut(flag + 1)? = length.as_u64().to_string();
    let reason = format!("the engine named {named} tokens as the longest that fits");
    for setting in revised.settings.iter_mut().filter(|setting| setting.name == "max_model_len") {
        setting.value = Value::from(length.as_u64());
        setting.origin = Origin::planned(reason.clone());
        setting.reason.clone_from(&reason);
    }
    revised.context = Some(length);
    revised.warmup.max_tokens = fit_budget(revised.warmup.max_tokens, Some(length));
    revised.verdict = format!("with a {length}-token context: {reason}");
    revised.revised = Some(reason.clone());
    revised.warnings.push(PlanWarning { code: "context-reduced".to_owned(), text: reason });
    Some(revised)
}

/// Where plan and engine disagree about what was decided: the launch must not go on.
#[must_use]
pub fn contradictions(plan: &Plan, figures: &EngineFigures) -> Vec<String> {
    let mut found = Vec::new();
    let numeric = plan.argv.iter().any(|word| word == "--max-model-len");
    if let (Some(planned), Some(engine)) = (plan.context.filter(|_| numeric), figures.context)
        && planned != engine
    {
        found.push(format!("a context of {planned} tokens was planned, the engine uses {engine}"));
    }
    let setting = |name: &str| plan.settings.iter().find(|setting| setting.name == name);
    let whole = |name: &str| setting(name).and_then(|setting| setting.value.as_u64()).unwrap_or(1);
    let ranks = whole("tensor_parallel_size") * whole("pipeline_parallel_size");
    if let Some(engine) = figures.world_size.filter(|engine| *engine != ranks) {
        found.push(format!("{ranks} ranks were planned, the engine has {engine}"));
    }
    let asked =
        setting("kv_cache_dtype").and_then(|setting| setting.value.as_str()).filter(|dtype| *dtype != "auto");
    if let (Some(asked), Some(engine)) = (asked, &figures.kv_dtype)
        && !is_same_dtype(asked, engine)
    {
        found.push(format!("a KV cache of {asked} was asked for, the engine stores {engine}"));
    }
    found
}

/// What the engine must say while it starts, in words; [`contradictions`] holds it against that.
#[must_use]
pub fn expected_evidence(plan: &Plan) -> Vec<String> {
    let setting = |name: &str| plan.settings.iter().find(|setting| setting.name == name);
    let whole = |name: &str| setting(name).and_then(|setting| setting.value.as_u64()).unwrap_or(1);
    let mut evidence = Vec::new();
    if let Some(context) = plan.context.filter(|_| plan.argv.iter().any(|word| word == "--max-model-len")) {
        evidence.push(format!("Using max model len {}", context.as_u64()));
    }
    evidence.push(format!("world_size={}", whole("tensor_parallel_size") * whole("pipeline_parallel_size")));
    if let Some(dtype) = setting("kv_cache_dtype").and_then(|setting| setting.value.as_str()) {
        evidence.push(format!("a KV cache of {dtype}"));
    }
    evidence
}

/// vLLM resolves short names: `fp8` to `fp8_e4m3` or a backend's own form.
fn is_same_dtype(asked: &str, engine: &str) -> bool {
    let family = |name: &str| name.split('_').next().unwrap_or(name).to_owned();
    asked == engine || family(asked) == family(engine)
}

/// What the engine measured otherwise than planned, one line each.
#[must_use]
pub fn differences(plan: &Plan, figures: &EngineFigures) -> Vec<String> {
    let mut found = Vec::new();
    let row = |item: &str| plan.memory.iter().find(|row| row.item == item).map(|row| row.bytes);
    let differs = |planned: Bytes, engine: Bytes| {
        planned.as_u64().abs_diff(engine.as_u64()) > planned.as_u64() / 50 + Bytes::from_mib(64).as_u64()
    };
    for (name, item, engine) in
        [("weights", "weights", figures.weights), ("KV cache", "KV cache", figures.available)]
    {
        if let (Some(planned), Some(engine)) = (row(item), engine)
            && differs(planned, engine)
        {
            found.push(format!("{name}: {planned} planned, the engine says {engine}"));
        }
    }
    if let (Some(planned), Some(engine)) = (plan.kv_cache_tokens, figures.tokens)
        && planned.as_u64().abs_diff(engine.as_u64()) > planned.as_u64() / 50
    {
        found.push(format!("KV cache: {planned} tokens planned, the engine says {engine}"));
    }
    found
}

/// What a GPU of this plan holds beside weights and KV cache, from what the engine said.
#[must_use]
pub fn beside(plan: &Plan, figures: &EngineFigures) -> Option<Bytes> {
    let row = |item: &str| plan.memory.iter().find(|row| row.item == item).map(|row| row.bytes);
    let requested = row("all")?.checked_sub(row("kept free")?)?;
    requested.checked_sub(figures.weights?)?.checked_sub(figures.available?)
}

#[cfg(test)]
mod tests {
    use super::{contradictions, differences, revise_context};
    use crate::facts::EngineFigures;
    use crate::plan::make::tests::plan_for_tests;
    use crate::units::{Bytes, Tokens};

    #[test]
    fn a_context_that_was_chosen_is_lowered_once() {
        let plan = plan_for_tests("");
        let revised = revise_context(&plan, Tokens::new(5_000)).expect("revised");
        assert_eq!(revised.context, Some(Tokens::new(4096)), "rounded down");
        let at = revised.argv.iter().position(|word| word == "--max-model-len").expect("the flag");
        assert_eq!(revised.argv[at + 1], "4096");
        assert_eq!(revise_context(&revised, Tokens::new(2_000)), None, "once");
        assert_eq!(revise_context(&plan, Tokens::new(8192)), None, "no shorter");
        let exact = plan_for_tests("[context]\nwant = 8192");
        assert_eq!(revise_context(&exact, Tokens::new(5_000)), None, "the user's own");
        let least = plan_for_tests("[context]\nmin = 6000");
        assert_eq!(revise_context(&least, Tokens::new(5_000)), None, "below the minimum");
        assert!(revise_context(&plan, Tokens::new(100)).is_some());
    }

    #[test]
    fn disagreements_are_told_apart() {
        let plan = plan_for_tests("[vllm]\nkv_cache_dtype = \"fp8\"");
        let agreed = EngineFigures {
            context: plan.context,
            world_size: Some(1),
            kv_dtype: Some("fp8_e4m3".to_owned()),
            tokens: plan.kv_cache_tokens,
            ..EngineFigures::default()
        };
        assert!(contradictions(&plan, &agreed).is_empty() && differences(&plan, &agreed).is_empty());
        let other = EngineFigures {
            context: Some(Tokens::new(1)),
            world_size: Some(2),
            kv_dtype: Some("bfloat16".to_owned()),
            tokens: Some(Tokens::new(1)),
            available: Some(Bytes::from_gib(9)),
            ..EngineFigures::default()
        };
        assert_eq!(contradictions(&plan, &other).len(), 3);
        assert!(differences(&plan, &other).iter().any(|line| line.contains("the engine says 1")));
        assert!(contradictions(&plan, &EngineFigures::default()).is_empty(), "silence is no disagreement");
    }
}
