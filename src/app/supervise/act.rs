//! Actions of the machine, executed.

use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::log_reader::LogReader;
use super::request::{self, SMOKE_DEADLINE};
use super::watch::Watched;
use super::{Launch, Report, Supervisor, unrecordable};
use crate::api::Client;
use crate::app::verify::{gpu_use_before, what_is_not_free};
use crate::engine::{self, Cgroup, Tree};
use crate::facts::{EngineFigures, ShmObject};
use crate::lifecycle::{self, Action, IdleWatch, Limits, Mark, Notifier, Phase, State};
use crate::measure::Verdict;
use crate::plan::{Plan, contradictions};
use crate::report::schema::{Event, EventKind, ReadyBody};
use crate::report::{Diagnostic, ErrorCode};
use crate::store::{
    AttemptDir, ColdFigures, LaunchRecord, LaunchState, LogSink, RECORD_FORMAT, create_private_dir,
    write_atomic,
};
use crate::units::Bytes;

/// A loader that reads less than this between two looks is not making progress.
const READ_PROGRESS: Bytes = Bytes::from_mib(1);

impl Supervisor {
    pub(super) fn new(
        launch: Launch,
        events: mpsc::UnboundedSender<Event>,
        reports: mpsc::UnboundedSender<Report>,
        marks: mpsc::UnboundedSender<Mark>,
    ) -> Result<Self, Diagnostic> {
        let Launch { dirs, plan, api_key, nvml_library, manager, lock, overlay } = launch;
        let (manager, watchdog) = manager.unzip();
        let deployment = dirs.deployment(&plan.name);
        let supervisor = engine::current_process().map_err(|error| unrecordable(&error))?;
        let client = Client::new(&base_url(&plan), api_key.as_deref()).map_err(|error| {
            Diagnostic::new(ErrorCode::SettingInvalid, "the address cannot be used").cause_chain(&error)
        })?;
        engine::become_subreaper().map_err(|error| unrecordable(&error))?;
        let now = Timestamp::now();
        let record = LaunchRecord {
            format: RECORD_FORMAT,
            name: plan.name.clone(),
            began: now,
            since: now,
            state: LaunchState::Starting,
            detail: String::new(),
            plan: plan.clone(),
            supervisor,
            main: None,
            members: Vec::new(),
            shm: Vec::new(),
            runtime: None,
            attempt: 0,
            ready_ms: None,
            cold: None,
            smoke: None,
            cgroup: None,
            gpus_before: Vec::new(),
            evidence: Vec::new(),
            figures: EngineFigures::default(),
            stop: None,
        };
        record.save(&deployment).map_err(|error| unrecordable(&error))?;
        let smoke = SMOKE_DEADLINE * u32::try_from(plan.smoke.len()).unwrap_or(u32::MAX);
        let limits = Limits {
            start_stall: plan.timeouts.start_stall(),
            start_total: plan.timeouts.start_total(),
            warmup: plan.timeouts.warmup() + smoke,
            drain: plan.timeouts.drain(),
            max_attempts: plan.max_attempts,
            // Another launch, another spread.
            jitter_seed: record.supervisor.start_time ^ u64::from(record.supervisor.pid.unsigned_abs()),
        };
        Ok(Self {
            dirs,
            plan,
            deployment,
            limits,
            state: State::new(),
            clock: Instant::now(),
            record,
            client,
            events,
            reports,
            marks,
            next_plan: None,
            pending: Vec::new(),
            attempt_dir: None,
            attempt_began: Instant::now(),
            tree: None,
            child: None,
            exit_status: None,
            log: None,
            stage: None,
            living: Vec::new(),
            oom_kills: None,
            nvml_library,
            watched: Watched::default(),
            manager,
            notifier: Notifier::new(watchdog.flatten()),
            counted: None,
            idle: IdleWatch::new(None, std::time::Duration::ZERO),
            bytes_read: Bytes::ZERO,
            refreshed: None,
            shm_scanned: None,
            probed: None,
            probing: false,
            stop: crate::facts::StopReport::default(),
            ready: None,
            diagnostic: None,
            _lock: lock,
            _overlay: overlay,
        })
    }

    pub(super) async fn act(&mut self, action: Action) {
        match action {
            Action::Spawn => {
                if let Err(diagnostic) = self.spawn() {
                    self.diagnostic = Some(diagnostic);
                    self.pending.push(lifecycle::Event::SpawnFailed);
                }
            }
            Action::WarmUp => {
                let (client, plan, reports) = (self.client.clone(), self.plan.clone(), self.reports.clone());
                tokio::spawn(async move { reports.send(request::warm_up(&client, &plan).await) });
            }
            Action::AnnounceReady => self.announce_ready(),
            Action::TellStall { stage, still } => self.tell_stall(stage, still),
            Action::AskMain => self.ask_main(),
            Action::KillButTracker => self.kill(false),
            Action::KillRest => self.kill(true),
            Action::Clean => self.clean().await,
            Action::AnnounceRetry(failure) => self.announce_retry(failure),
            Action::End(outcome) => self.end(outcome),
        }
    }

    fn spawn(&mut self) -> Result<(), Diagnostic> {
        let refuse = |error: &dyn std::error::Error| unrecordable(error);
        let attempt = AttemptDir::create_next(&self.deployment).map_err(|error| refuse(&error))?;
        let plan_json = serde_json::to_vec_pretty(&self.plan).map_err(|error| refuse(&error))?;
        write_atomic(&attempt.path.join("plan.json"), &plan_json).map_err(|error| refuse(&error))?;
        let sink = LogSink::create(&attempt.engine_log()).map_err(|error| refuse(&error))?;
        let (base, path) = self.dirs.runtime_for(&self.plan.name);
        create_private_dir(&base).map_err(|error| refuse(&error))?;
        let runtime = engine::create_runtime_dir(&path).map_err(|error| refuse(&error))?;
        self.attempt_began = Instant::now();
        self.record.attempt = attempt.number;
        self.record.runtime = Some(runtime);
        self.record.members.clear();
        self.record.shm.clear();
        self.record.main = None;
        self.stage = None;
        self.exit_status = None;
        self.counted = None;
        self.watched = Watched::default();
        self.bytes_read = Bytes::ZERO;
        let log_path = attempt.engine_log();
        self.attempt_dir = Some(attempt);
        self.save();
        self.record.gpus_before = gpu_use_before(&self.plan, self.nvml_library.as_deref());
        let cgroup = self.own_cgroup();
        self.save();
        let spawned = engine::spawn(&self.plan, &path, cgroup.as_ref()).map_err(|error| {
            Diagnostic::new(ErrorCode::EngineUnusable, "the engine cannot be started")
                .cause_chain(&error)
                .fact(
                    self.plan.engine.executable.as_str(),
                    format!("found through {}", self.plan.engine.found),
                )
        })?;
        self.record.main = Some(spawned.main.clone());
        self.record.members = vec![spawned.main.clone()];
        self.tree = Some(Tree::new(spawned.main, cgroup));
        self.child = Some(spawned.child);
        self.save();
        self.log = Some(
            LogReader::start(spawned.output, sink, self.marks.clone(), &self.plan)
                .map_err(|error| refuse(&error))?,
        );
        let mut started = self.event(EventKind::AttemptStarted).text(log_path.as_str());
        started.eta_ms = self.plan.eta_ms;
        self.tell(started);
        self.enter_stage(lifecycle::Stage::Imports, None);
        Ok(())
    }

    /// A control group for the next tree, where the system allows one. Its name tells deployments of one
    /// name in several state directories apart.
    fn own_cgroup(&mut self) -> Option<Cgroup> {
        let leaf = self.record.runtime.as_ref().and_then(|dir| dir.path.file_name()).unwrap_or("engine");
        let leaf = format!("{}-{leaf}-{}", self.plan.name, self.record.attempt);
        let cgroup = Cgroup::create(&leaf);
        self.record.cgroup = cgroup.as_ref().map(|cgroup| cgroup.id().clone());
        cgroup
    }

    /// Looks at the process table; records new members, tells the machine of progress and of the end.
    pub(super) fn refresh_tree(&mut self) {
        self.refreshed = Some(Instant::now());
        let Some(tree) = &mut self.tree else {
            // Nothing was started: nothing can be left.
            self.pending.push(lifecycle::Event::TreeEmpty);
            return;
        };
        match tree.refresh() {
            Ok(living) => {
                let known = tree.known().len();
                self.living = living;
                if known != self.record.members.len() {
                    self.record.members = tree.known().iter().cloned().collect();
                    self.save();
                }
                self.watch_members();
                if self.living.is_empty() && self.child.is_none() {
                    self.pending.push(lifecycle::Event::TreeEmpty);
                }
            }
            Err(error) => self.warn(format!("the process table cannot be read: {error}")),
        }
        if matches!(self.state.phase, Phase::Starting { .. }) {
            let read = Tree::bytes_read(&self.living);
            if read.saturating_sub(self.bytes_read) >= READ_PROGRESS {
                self.bytes_read = read;
                self.pending.push(lifecycle::Event::Activity);
            }
        }
    }

    /// Records which shared-memory objects the tree uses now.
    pub(super) fn scan_shm(&mut self) {
        self.shm_scanned = Some(Instant::now());
        let pids: Vec<i32> = self.living.iter().map(|member| member.id.pid).collect();
        match engine::list_shm_of(&pids) {
            Ok(found) => self.record_shm(found),
            Err(error) => self.warn(format!("shared memory cannot be listed: {error}")),
        }
    }

    fn record_shm(&mut self, found: Vec<ShmObject>) {
        let before = self.record.shm.len();
        self.record.shm.extend(found);
        self.record.shm.sort();
        self.record.shm.dedup();
        if self.record.shm.len() != before {
            self.save();
        }
    }

    pub(super) fn probe(&mut self) {
        self.probed = Some(Instant::now());
        self.probing = true;
        let (client, reports) = (self.client.clone(), self.reports.clone());
        let served = self.plan.model.served_name.clone();
        tokio::spawn(async move { reports.send(request::probe(&client, &served).await) });
    }

    pub(super) fn take_warm_up(&mut self, cold: ColdFigures, verdicts: &[Verdict]) -> lifecycle::Event {
        if !cold.record.is_ok() {
            let why = cold.record.failure_text().unwrap_or_else(|| "no token came back".to_owned());
            self.diagnostic = Some(
                Diagnostic::new(
                    ErrorCode::WarmupFailed,
                    "the engine is healthy but did not answer the first request",
                )
                .cause(why),
            );
            return lifecycle::Event::WarmupFailed;
        }
        let figures = self.figures();
        let evidence = self.evidence();
        let mut contradictions: Vec<(Option<u64>, String)> =
            contradictions(&self.plan, &figures).into_iter().map(|line| (None, line)).collect();
        contradictions.extend(evidence.problems);
        self.record.figures = figures;
        let log = self.attempt_dir.as_ref().map(|dir| dir.engine_log().to_string()).unwrap_or_default();
        let place = |line: Option<u64>| line.map_or_else(|| log.clone(), |line| format!("{log}:{line}"));
        if !contradictions.is_empty() {
            let diagnostic =
                Diagnostic::new(ErrorCode::PlanContradicted, "the engine does not do what was planned");
            let add = |d: Diagnostic, (line, text)| d.log_line(place(line), text);
            self.diagnostic = Some(contradictions.into_iter().fold(diagnostic, add));
            return lifecycle::Event::WarmupFailed;
        }
        let confirmed: Vec<String> =
            evidence.confirmed.into_iter().map(|(line, text)| format!("engine.log:{line} {text}")).collect();
        self.record.evidence.clone_from(&confirmed);
        let passed = verdicts.iter().filter(|verdict| verdict.ok).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.ready = Some(ReadyBody {
            url: base_url(&self.plan),
            model: self.plan.model.served_name.clone(),
            ready_ms: 0,
            cold_ttft_ms: cold.record.ttft_ms(),
            cold_e2e_ms: cold.record.e2e_ms(),
            cold_output_tokens: cold.record.usage.as_ref().map(|usage| usage.completion_tokens),
            smoke_passed: count(passed),
            smoke_total: count(verdicts.len()),
            smoke_problems: verdicts
                .iter()
                .filter(|verdict| !verdict.ok)
                .map(|verdict| format!("smoke `{}`: {}", verdict.id, verdict.problems.join("; ")))
                .collect(),
            evidence: confirmed,
        });
        self.record.smoke = (!verdicts.is_empty()).then(|| (count(passed), count(verdicts.len())));
        self.record.cold = Some(cold);
        lifecycle::Event::WarmedUp
    }

    /// What lives when an end begins: told afterwards as ended.
    pub(super) fn remember_living(&mut self) {
        self.refresh_tree();
        self.scan_shm();
        for member in &self.living {
            self.stop.stopped.push(format!("{} {}", member.id.pid, member.title));
            self.stop.freed = self.stop.freed.checked_add(member.resident).unwrap_or(self.stop.freed);
        }
    }

    fn ask_main(&self) {
        if let Some(tree) = &self.tree
            && let Err(error) = engine::terminate(tree.main())
        {
            self.warn(error.to_string());
        }
    }

    /// Ends the tree by force; what it used until then is recorded first.
    fn kill(&mut self, tracker_too: bool) {
        let Some(tree) = &mut self.tree else { return };
        match engine::kill_tree(tree, !tracker_too) {
            Ok(killed) => {
                self.record.members = tree.known().iter().cloned().collect();
                self.record_shm(killed.shm);
                killed.refused.iter().for_each(|why| self.warn(why));
            }
            Err(error) => self.warn(format!("the engine's processes cannot be examined: {error}")),
        }
    }

    /// Verifies that the tree is gone and removes what it left.
    async fn clean(&mut self) {
        self.refresh_tree();
        if let Some(log) = &self.log {
            log.settle().await;
            if log.lost() > 0 {
                self.warn(format!(
                    "{} of the engine's log were lost: the disk took no more",
                    Bytes::new(log.lost())
                ));
            }
        }
        let mut left: Vec<String> =
            self.living.iter().map(|member| format!("process {} {}", member.id.pid, member.title)).collect();
        self.oom_kills = self.tree.as_ref().and_then(Tree::cgroup).and_then(Cgroup::oom_kills);
        if left.is_empty() {
            let cleaning = crate::app::reap::remove_leftovers(&self.record);
            self.stop.removed.extend(cleaning.removed);
            left.extend(cleaning.survivors);
            left.extend(what_is_not_free(&self.record, self.nvml_library.as_deref()).await);
        }
        self.stop.survivors.clone_from(&left);
        self.pending.retain(|event| *event != lifecycle::Event::TreeEmpty);
        self.revise();
        self.give_up_when_doomed();
        self.pending.push(lifecycle::Event::Cleaned { left: !left.is_empty() });
    }
}

/// Where this plan's API answers: a wildcard address is reached through loopback.
pub(in crate::app) fn base_url(plan: &Plan) -> String {
    let host = match plan.host.as_str() {
        "0.0.0.0" | "" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    format!("http://{host}:{}", plan.port)
}
