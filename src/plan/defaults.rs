//! What is asked when nobody says otherwise: the story's own request and question.

use super::model::{Endpoint, WarmupPlan};
use crate::config::{Expectation, SmokeCase};
use crate::units::Tokens;

/// Output budget of the warm-up request.
const WARMUP_TOKENS: u64 = 512;
/// Share of the context window that is left for the prompt of a request with a full budget.
const PROMPT_SHARE: u64 = 4;

/// The story's request: long enough to measure decoding, short enough to wait for. The budget is
/// lowered where the context window is short, so that the prompt fits beside it.
#[must_use]
pub fn default_warmup(context: Option<Tokens>) -> WarmupPlan {
    WarmupPlan {
        prompt: "Count from 1 to 50.".to_owned(),
        max_tokens: fit_budget(Tokens::new(WARMUP_TOKENS), context),
    }
}

/// Lowers an output budget so that a quarter of the context window stays for the prompt.
pub(super) fn fit_budget(budget: Tokens, context: Option<Tokens>) -> Tokens {
    let room = context.map(|tokens| tokens.as_u64() - tokens.as_u64() / PROMPT_SHARE);
    Tokens::new(room.map_or(budget.as_u64(), |room| budget.as_u64().min(room)).max(1))
}

/// The story's question, in the form that the endpoint takes: a model without a chat template
/// continues a sentence, and goes on for as long as it may.
#[must_use]
pub fn default_smoke(endpoint: Endpoint) -> Vec<SmokeCase> {
    let contains = vec!["Paris".to_owned()];
    let (prompt, max_tokens, may_be_cut) = match endpoint {
        Endpoint::Chat => ("What is the capital of France? Answer in one sentence.", 2048, false),
        Endpoint::Completions => ("The capital of France is", 16, true),
    };
    vec![SmokeCase {
        id: "capital-of-france".to_owned(),
        prompt: prompt.to_owned(),
        max_tokens: Tokens::new(max_tokens),
        expect: Expectation { contains, may_be_cut },
    }]
}

#[cfg(test)]
mod tests {
    use super::default_warmup;
    use crate::units::Tokens;

    #[test]
    fn the_budget_leaves_room_for_the_prompt() {
        for (context, budget) in [(None, 512), (Some(8192), 512), (Some(512), 384), (Some(1), 1)] {
            assert_eq!(
                default_warmup(context.map(Tokens::new)).max_tokens,
                Tokens::new(budget),
                "{context:?}"
            );
        }
    }
}
