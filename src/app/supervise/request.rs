//! Requests to the engine that is being started: health, the first request, smoke.

use std::time::Duration;

use super::Report;
use crate::api::{Client, Deadlines, PromptRequest};
use crate::config::SmokeCase;
use crate::lifecycle::Event;
use crate::measure::{Verdict, judge};
use crate::plan::Plan;
use crate::store::ColdFigures;

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for one smoke answer.
pub(super) const SMOKE_DEADLINE: Duration = Duration::from_secs(120);

/// Asks once whether the engine is healthy and serves the planned name.
pub(super) async fn probe(client: &Client, served_name: &str) -> Report {
    let healthy = client.health(PROBE_TIMEOUT).await.is_ok_and(|status| status == 200);
    if !healthy {
        return Report::Health(Event::Unhealthy);
    }
    let event = match client.models(PROBE_TIMEOUT).await {
        Ok(models) if models.iter().any(|model| model.id == served_name) => Event::Healthy,
        Ok(_) => Event::WrongModel,
        Err(_) => Event::Unhealthy,
    };
    Report::Health(event)
}

/// Sends the first request of all and then the smoke questions.
pub(super) async fn warm_up(client: &Client, plan: &Plan) -> Report {
    let request = PromptRequest::new(
        plan.model.served_name.clone(),
        plan.endpoint,
        plan.warmup.prompt.clone(),
        plan.warmup.max_tokens,
    );
    let total = plan.timeouts.warmup();
    let record = client.stream(&request, Deadlines { total, idle: total }).await;
    let cold = ColdFigures {
        prompt: plan.warmup.prompt.clone(),
        max_tokens: plan.warmup.max_tokens.as_u64(),
        record,
    };
    let mut verdicts = Vec::new();
    if cold.record.is_ok() {
        for case in &plan.smoke {
            verdicts.push(ask(client, plan, case).await);
        }
    }
    Report::WarmedUp(Box::new(cold), verdicts)
}

async fn ask(client: &Client, plan: &Plan, case: &SmokeCase) -> Verdict {
    let request = PromptRequest::new(
        plan.model.served_name.clone(),
        plan.endpoint,
        case.prompt.clone(),
        case.max_tokens,
    );
    let record = client.stream(&request, Deadlines { total: SMOKE_DEADLINE, idle: SMOKE_DEADLINE }).await;
    judge(case, &record)
}
