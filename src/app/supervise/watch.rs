//! What is watched beside the main process: the processes below it through their pidfds, and whether
//! an idle engine still answers.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use super::{Report, Supervisor};
use crate::api::{Client, Deadlines, PromptRequest};
use crate::engine::{Member, Watch};
use crate::facts::ProcId;
use crate::lifecycle::{self, Phase, is_idle};
use crate::measure::{FailureKind, Outcome, ServerLoad};
use crate::plan::Plan;
use crate::units::Tokens;

const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The watched processes of one attempt.
#[derive(Debug, Default)]
pub(super) struct Watched {
    members: BTreeMap<ProcId, (String, Watch)>,
    /// The one whose end was noticed first.
    first: Option<ProcId>,
}

impl Watched {
    /// Title of the process that ended first, and how it ended when the kernel tells.
    pub(super) fn first_ended(&self) -> Option<(i32, &str, Option<ExitStatus>)> {
        let (title, watch) = self.members.get(self.first.as_ref()?)?;
        Some((watch.id().pid, title, watch.exit_status()))
    }
}

/// Processes whose end is the end of the attempt: those that vLLM gives titles. A process that was
/// just forked from one still shows its parent's title, and may end at any time.
fn essential(living: &[Member]) -> impl Iterator<Item = &Member> {
    living.iter().filter(move |member| {
        let parent = living.iter().find(|parent| parent.id.pid == member.parent);
        member.title.starts_with("VLLM::") && parent.is_none_or(|parent| parent.title != member.title)
    })
}

impl Supervisor {
    /// Begins to watch essential processes that are not watched yet.
    pub(super) fn watch_members(&mut self) {
        if !self.is_up() {
            return;
        }
        let new: Vec<(ProcId, String)> = essential(&self.living)
            .filter(|member| !self.watched.members.contains_key(&member.id))
            .map(|member| (member.id.clone(), member.title.clone()))
            .collect();
        for (id, title) in new {
            match Watch::new(&id) {
                Ok(Some(watch)) => {
                    self.watched.members.insert(id.clone(), (title, watch.clone()));
                    let reports = self.reports.clone();
                    tokio::spawn(async move {
                        watch.ended().await;
                        // Nobody listens any more when the launch is over.
                        let _ = reports.send(Report::MemberEnded(id));
                    });
                }
                // Gone between two looks: the next one sees what that means.
                Ok(None) => {}
                Err(error) => self.warn(error.to_string()),
            }
        }
    }

    /// Does an attempt start or serve?
    const fn is_up(&self) -> bool {
        matches!(self.state.phase, Phase::Starting { .. } | Phase::WarmingUp { .. } | Phase::Ready { .. })
    }

    /// A watched process ended. One of an earlier attempt means nothing.
    pub(super) fn take_member_ended(&mut self, id: ProcId) -> Option<lifecycle::Event> {
        self.watched.members.contains_key(&id).then(|| {
            // What ends during a stop was ended by it.
            if self.is_up() {
                self.watched.first.get_or_insert(id);
            }
            lifecycle::Event::MemberExited
        })
    }

    /// Looks whether the engine did anything lately, and asks it for a token when it did not.
    pub(super) fn look_whether_idle(&mut self) {
        let before = self.idle.look();
        let (client, plan, reports) = (self.client.clone(), self.plan.clone(), self.reports.clone());
        tokio::spawn(async move {
            let (work, hung) = idle_look(&client, &plan, before).await;
            reports.send(Report::Idle { work, hung })
        });
    }

    pub(super) fn take_idle(&mut self, work: Option<f64>, hung: bool) -> Option<lifecycle::Event> {
        self.idle.worked(self.now(), work);
        hung.then_some(lifecycle::Event::Hung)
    }
}

/// Work done so far by the server's own counters, and whether it left a request of one token without
/// an answer. An answer that is an error is no hang: `/health` judges those.
async fn idle_look(client: &Client, plan: &Plan, before: Option<f64>) -> (Option<f64>, bool) {
    let work = work_done(client).await;
    if !is_idle(before, work) {
        return (work, false);
    }
    let request = PromptRequest::new(
        plan.model.served_name.clone(),
        plan.endpoint,
        plan.warmup.prompt.clone(),
        Tokens::new(1),
    );
    let limit = plan.timeouts.idle_probe_timeout();
    let record = client.stream(&request, Deadlines { total: limit, idle: limit }).await;
    let hung =
        matches!(record.outcome, Outcome::Failed { kind: FailureKind::TimedOut | FailureKind::Stalled, .. });
    // Its own token counts as work only after this look.
    (work_done(client).await, hung)
}

async fn work_done(client: &Client) -> Option<f64> {
    let text = client.metrics(METRICS_TIMEOUT).await.ok()?;
    let load = ServerLoad::from_text(&text);
    match (load.generation_tokens, load.finished) {
        (None, None) => None,
        (tokens, finished) => Some(tokens.unwrap_or_default() + finished.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::essential;
    use crate::engine::Member;
    use crate::facts::ProcId;
    use crate::units::Bytes;

    fn member(pid: i32, parent: i32, title: &str) -> Member {
        let id = ProcId { pid, start_time: 1, boot_id: String::new() };
        Member { id, parent, title: title.to_owned(), is_tracker: false, resident: Bytes::ZERO }
    }

    #[test]
    fn a_compiler_that_was_just_forked_is_not_essential() {
        let living = [
            member(1, 0, "vllm"),
            member(2, 1, "resource tracker"),
            member(3, 1, "VLLM::EngineCore"),
            member(4, 3, "VLLM::Worker_TP0"),
            member(5, 3, "VLLM::Worker_TP1"),
            member(6, 4, "VLLM::Worker_TP0"), // forked, about to become gcc
            member(7, 1, "VLLM::APIServer_0"),
            member(8, 4, "gcc"),
        ];
        let pids: Vec<i32> = essential(&living).map(|member| member.id.pid).collect();
        assert_eq!(pids, [3, 4, 5, 7]);
    }
}
