//! Runs one launch to its end: feeds the pure machine of `lifecycle` with what happens, executes the
//! actions it returns.
//!
//! One `select!` loop owns all state; the log reader, the probes and the first request run beside it
//! and report through channels.

mod act;
mod announce;
mod learn;
mod log_reader;
mod request;
mod tell_manager;
mod watch;

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use tokio::process::Child;
use tokio::sync::mpsc;

use crate::api::Client;
use crate::engine::{Member, NotifySocket, Tree};
use crate::facts::{ProcId, StopReport};
use crate::lifecycle::{self, IdleWatch, Limits, Mark, Notifier, Outcome, Phase, Stage, State, step};
use crate::measure::Verdict;
use crate::plan::Plan;
use crate::report::schema::{Event, EventKind, ReadyBody};
use crate::report::{Diagnostic, ErrorCode};
use crate::store::{AttemptDir, ColdFigures, Dirs, LaunchRecord, LaunchState, Lock, OverlayHold};
use crate::units::Bytes;
pub(super) use act::base_url;
use log_reader::LogReader;
use watch::Watched;

/// A prepared launch: the name is locked, the plan is fixed.
#[derive(Debug)]
pub struct Launch {
    /// Directories.
    pub dirs: Dirs,
    /// What to execute.
    pub plan: Plan,
    /// Key for the API when the engine asks for one; goes nowhere else.
    pub api_key: Option<String>,
    /// The NVML library, when it is not the system's.
    pub nvml_library: Option<String>,
    /// The service manager, and how long its watchdog waits.
    pub manager: Option<(NotifySocket, Option<Duration>)>,
    /// Holds the name.
    pub lock: Lock,
    /// Holds the overlay of the checkpoint, when there is one.
    pub overlay: Option<OverlayHold>,
}

/// A request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// In order.
    Ordered,
    /// Skip the waiting.
    Urgent,
}

/// How a launch ended.
#[derive(Debug)]
pub struct Ended {
    /// The machine's verdict.
    pub outcome: Outcome,
    /// What went wrong, when something did.
    pub diagnostic: Option<Diagnostic>,
    /// What the stop ended and removed.
    pub stop: StopReport,
    /// Figures from when it became ready.
    pub ready: Option<ReadyBody>,
}

/// What tasks beside the loop report.
#[derive(Debug)]
enum Report {
    /// Result of a health probe.
    Health(lifecycle::Event),
    /// The first request and the smoke answers.
    WarmedUp(Box<ColdFigures>, Vec<Verdict>),
    /// A watched process below the main one ended.
    MemberEnded(ProcId),
    /// Work done by the server's own counters, and whether it left an idle probe without an answer.
    Idle { work: Option<f64>, hung: bool },
}

const TICK: Duration = Duration::from_millis(100);

/// Everything the loop owns.
struct Supervisor {
    dirs: Dirs,
    plan: Plan,
    deployment: Utf8PathBuf,
    limits: Limits,
    state: State,
    clock: Instant,
    record: LaunchRecord,
    client: Client,
    events: mpsc::UnboundedSender<Event>,
    reports: mpsc::UnboundedSender<Report>,
    marks: mpsc::UnboundedSender<Mark>,
    /// The plan of the next attempt, when this one taught something.
    next_plan: Option<Plan>,
    /// Events that actions caused; handled before anything else.
    pending: Vec<lifecycle::Event>,
    attempt_dir: Option<AttemptDir>,
    attempt_began: Instant,
    tree: Option<Tree>,
    child: Option<Child>,
    exit_status: Option<std::process::ExitStatus>,
    log: Option<LogReader>,
    stage: Option<(Stage, Instant)>,
    living: Vec<Member>,
    watched: Watched,
    manager: Option<NotifySocket>,
    notifier: Notifier,
    /// Work counted inside a stage: done and total.
    counted: Option<(Stage, u64, u64)>,
    nvml_library: Option<String>,
    /// Processes that the kernel killed for lack of memory, by the control group's count.
    oom_kills: Option<u64>,
    idle: IdleWatch,
    bytes_read: Bytes,
    refreshed: Option<Instant>,
    shm_scanned: Option<Instant>,
    probed: Option<Instant>,
    probing: bool,
    stop: StopReport,
    ready: Option<ReadyBody>,
    diagnostic: Option<Diagnostic>,
    _lock: Lock,
    _overlay: Option<OverlayHold>,
}

/// Runs a launch until it ends. `stop` carries requests to stop; `events` receives everything that is
/// told.
///
/// # Errors
/// When the launch cannot be recorded at all; nothing was started then.
pub async fn supervise(
    launch: Launch,
    mut stop: mpsc::Receiver<StopRequest>,
    events: mpsc::UnboundedSender<Event>,
) -> Result<Ended, Diagnostic> {
    let (reports, mut reports_rx) = mpsc::unbounded_channel();
    let (marks, mut marks_rx) = mpsc::unbounded_channel();
    let mut me = Supervisor::new(launch, events, reports, marks)?;
    let mut ticker = tokio::time::interval(TICK);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            Some(request) = stop.recv() => match request {
                StopRequest::Ordered => lifecycle::Event::StopAsked,
                StopRequest::Urgent => lifecycle::Event::StopUrged,
            },
            status = wait_for(&mut me.child) => {
                me.child = None;
                me.exit_status = status;
                lifecycle::Event::MainExited
            }
            Some(mark) = marks_rx.recv() => me.take_mark(&mark),
            Some(report) = reports_rx.recv() => match me.take_report(report) {
                Some(event) => event,
                None => continue,
            },
            _ = ticker.tick() => {
                me.housekeeping();
                lifecycle::Event::Tick
            }
        };
        me.handle(event).await;
        me.tell_manager();
        if let Phase::Ended(outcome) = me.state.phase {
            return Ok(Ended { outcome, diagnostic: me.diagnostic, stop: me.stop, ready: me.ready });
        }
    }
}

/// Waits for the main process; for ever when there is none.
async fn wait_for(child: &mut Option<Child>) -> Option<std::process::ExitStatus> {
    match child {
        Some(child) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

impl Supervisor {
    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Feeds one event, and those that its actions cause, to the machine.
    async fn handle(&mut self, event: lifecycle::Event) {
        self.pending.push(event);
        while !self.pending.is_empty() {
            let event = self.pending.remove(0);
            let before = self.state.phase;
            let (next, actions) = step(self.state, self.now(), event, &self.limits);
            self.state = next;
            self.note_change(before);
            for action in actions {
                self.act(action).await;
            }
        }
    }

    /// Tells and records what changed.
    fn note_change(&mut self, before: Phase) {
        match (before, self.state.phase) {
            (Phase::Starting { .. }, Phase::Starting { stage, .. }) => self.enter_stage(stage, None),
            (Phase::Starting { .. }, Phase::WarmingUp { .. }) => self.enter_stage(Stage::WarmUp, None),
            (Phase::Stopping { .. }, Phase::Stopping { .. }) => {}
            (_, Phase::Stopping { failure: None, .. }) => {
                self.record_state(LaunchState::Stopping, "");
                self.tell(self.event(EventKind::Stopping).text("stopping"));
                self.remember_living();
            }
            (_, Phase::Stopping { failure: Some(_), .. }) => self.remember_living(),
            _ => {}
        }
    }

    /// Goes to a stage, closing the one before.
    fn enter_stage(&mut self, stage: Stage, text: Option<String>) {
        if self.stage.is_some_and(|(current, _)| current >= stage) {
            return;
        }
        self.leave_stage();
        self.stage = Some((stage, Instant::now()));
        let mut event = self.event(EventKind::StageStarted).stage(stage);
        event.text = text;
        self.tell(event);
        self.record_state(LaunchState::Starting, stage.label());
    }

    fn leave_stage(&mut self) {
        if let Some((stage, began)) = self.stage.take() {
            let mut event = self.event(EventKind::StageDone).stage(stage);
            event.elapsed_ms = Some(millis(began.elapsed()));
            self.tell(event);
        }
    }

    /// A line of the log named a stage. It counts while the attempt starts: several API servers each say
    /// that they are up, the last of them after the first one answered, and an engine that is being
    /// stopped while it loads goes on with both, the load and its log.
    fn take_mark(&mut self, mark: &Mark) -> lifecycle::Event {
        if !matches!(self.state.phase, Phase::Starting { .. }) {
            return lifecycle::Event::Mark(mark.stage);
        }
        self.enter_stage(mark.stage, None);
        if self.stage.is_some_and(|(stage, _)| stage == mark.stage) {
            let mut event = self.event(EventKind::StageProgress).stage(mark.stage);
            (event.done, event.total) = match mark.done_of {
                Some((done, total)) => {
                    self.counted = Some((mark.stage, done, total));
                    (Some(done), Some(total))
                }
                None => (None, None),
            };
            event.text = mark.measured.as_ref().map(announce::measured_text);
            if event.done.is_some() || event.text.is_some() {
                self.tell(event);
            }
        }
        lifecycle::Event::Mark(mark.stage)
    }

    fn take_report(&mut self, report: Report) -> Option<lifecycle::Event> {
        match report {
            Report::Health(event) => {
                self.probing = false;
                Some(event)
            }
            Report::WarmedUp(cold, verdicts) => Some(self.take_warm_up(*cold, &verdicts)),
            Report::MemberEnded(id) => self.take_member_ended(id),
            Report::Idle { work, hung } => self.take_idle(work, hung),
        }
    }

    /// Looks around: processes, shared memory, health. How often depends on what is going on.
    fn housekeeping(&mut self) {
        let (every, shm_every, probe_every) = match self.state.phase {
            Phase::Starting { stage, .. } => {
                let probe = if stage >= Stage::Http { 200 } else { 1_000 };
                (Duration::from_millis(500), Duration::from_secs(1), Some(Duration::from_millis(probe)))
            }
            Phase::WarmingUp { .. } => (Duration::from_millis(500), Duration::from_secs(5), None),
            Phase::Ready { .. } => {
                (Duration::from_secs(2), Duration::from_secs(30), Some(Duration::from_secs(2)))
            }
            Phase::Stopping { .. } => (TICK, Duration::from_secs(3_600), None),
            Phase::Waiting { .. } | Phase::Ended(_) => return,
        };
        if is_due(self.refreshed, every) {
            self.refresh_tree();
        }
        if is_due(self.shm_scanned, shm_every) {
            self.scan_shm();
        }
        if let Some(every) = probe_every
            && !self.probing
            && is_due(self.probed, every)
        {
            self.probe();
        }
        if matches!(self.state.phase, Phase::Ready { .. }) && self.idle.is_due(self.now()) {
            self.look_whether_idle();
        }
    }

    fn event(&self, kind: EventKind) -> Event {
        Event::new(self.plan.name.as_str(), self.state.attempt, kind)
    }

    /// Tells the world and appends to the attempt's `events.jsonl`.
    fn tell(&self, event: Event) {
        if let Some(dir) = &self.attempt_dir
            && let Err(error) = announce::append_event(&dir.events(), &event)
        {
            tracing::warn!("cannot write an event: {error}");
        }
        // Nobody listens any more when the reader went away: the launch goes on.
        let _ = self.events.send(event);
    }

    fn warn(&self, text: impl Into<String>) {
        self.tell(self.event(EventKind::Warning).text(text));
    }

    /// Saves the record; a state directory that cannot be written is told and does not end the launch.
    fn save(&self) {
        if let Err(error) = self.record.save(&self.deployment) {
            self.warn(format!("the launch record cannot be written: {error}"));
        }
    }

    fn record_state(&mut self, state: LaunchState, detail: &str) {
        if self.record.state != state {
            self.record.since = jiff::Timestamp::now();
        }
        self.record.state = state;
        detail.clone_into(&mut self.record.detail);
        self.save();
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A launch that cannot be recorded is not begun.
fn unrecordable(error: &dyn std::error::Error) -> Diagnostic {
    Diagnostic::new(ErrorCode::CannotCreate, "the launch cannot be recorded, so nothing was started")
        .cause_chain(error)
        .advice("make the state directory writable, or name another one with KDEPLOY_STATE_DIR")
}
