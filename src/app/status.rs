//! `kdeploy status`: what runs, since when, how it feels.

use std::time::Duration;

use jiff::Timestamp;

use super::context::App;
use super::reap::supervisor_lives;
use super::reap_command::find_unrecorded;
use super::supervise::base_url;
use crate::api::Client;
use crate::cli::StatusArgs;
use crate::engine::Tree;
use crate::facts::Unrecorded;
use crate::measure::ServerLoad;
use crate::report::schema::{DeploymentBody, StatusBody};
use crate::report::{Diagnostic, Envelope, Exit, plain_table};
use crate::store::{LaunchRecord, LaunchState};
use crate::units::{Bytes, format_duration};

const PROBE: Duration = Duration::from_secs(2);

/// Shows what runs. With a name the exit code is its state: 0 ready, 1 crashed or failed, 3 not
/// running, 4 alive but not ready.
///
/// # Errors
/// When records cannot be read.
pub async fn status(app: &App, args: &StatusArgs) -> Result<Exit, Diagnostic> {
    loop {
        let (body, exit) = look(app, args).await?;
        let Some(seconds) = args.watch else {
            app.ui.answer(&table(&body));
            app.ui.document(body, exit);
            return Ok(exit);
        };
        if app.ui.is_json() {
            app.ui.json_line(&Envelope::new(body, exit, Timestamp::now()));
        } else {
            app.ui.answer(&format!("{}\n{}\n", Timestamp::now().strftime("%H:%M:%S UTC"), table(&body)));
        }
        if app.ui.is_broken() {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        }
    }
}

async fn look(app: &App, args: &StatusArgs) -> Result<(StatusBody, Exit), Diagnostic> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => app.recorded()?,
    };
    let mut deployments = Vec::new();
    for name in &names {
        if let Some(record) = app.record(name)? {
            let body = describe(app, &record).await;
            let over = matches!(body.state.as_str(), "stopped");
            if args.all || args.name.is_some() || !over {
                deployments.push(body);
            }
        }
    }
    let exit = match (&args.name, deployments.as_slice()) {
        (Some(_), [one]) | (None, [one]) => exit_of(&one.state),
        (_, []) => Exit::NotRunning,
        (_, many) => {
            many.iter().map(|d| exit_of(&d.state)).max_by_key(|exit| severity(*exit)).unwrap_or(Exit::Done)
        }
    };
    let unrecorded = match &args.name {
        Some(_) => None,
        None => Some(find_unrecorded(app)?).filter(|found| !found.is_empty()),
    };
    Ok((StatusBody { deployments, unrecorded }, exit))
}

const fn severity(exit: Exit) -> u8 {
    match exit {
        Exit::No => 3,
        Exit::NotReady => 2,
        Exit::NotRunning => 1,
        _ => 0,
    }
}

fn exit_of(state: &str) -> Exit {
    match state {
        "ready" => Exit::Done,
        "crashed" | "failed" => Exit::No,
        "stopped" => Exit::NotRunning,
        _ => Exit::NotReady,
    }
}

async fn describe(app: &App, record: &LaunchRecord) -> DeploymentBody {
    let living = record.main.clone().map_or_else(Vec::new, |main| {
        Tree::from_record(main, &record.members, record.cgroup.as_ref()).refresh().unwrap_or_default()
    });
    let supervised = supervisor_lives(record);
    let mut state = match record.state {
        LaunchState::Starting => "starting",
        LaunchState::Ready => "ready",
        LaunchState::Restarting => "restarting",
        LaunchState::Stopping => "stopping",
        LaunchState::Stopped => "stopped",
        LaunchState::Failed => "failed",
    };
    let mut detail = record.detail.clone();
    if record.state.is_live() && !supervised {
        state = "crashed";
        detail = match living.len() {
            0 => "its kdeploy is gone; nothing of the engine lives".to_owned(),
            n => format!("its kdeploy is gone; {n} processes of the engine live on"),
        };
    }
    let mut load = ServerLoad::default();
    let mut url = None;
    if state == "ready" {
        let client = Client::new(&base_url(&record.plan), app.api_key().as_deref());
        let healthy = match &client {
            Ok(client) => client.health(PROBE).await.is_ok_and(|status| status == 200),
            Err(_) => false,
        };
        if healthy {
            url = Some(base_url(&record.plan));
            if let Ok(client) = &client
                && let Ok(text) = client.metrics(PROBE).await
            {
                load = ServerLoad::from_text(&text);
            }
        } else {
            state = "unresponsive";
            "`/health` did not answer 200 within 2 s".clone_into(&mut detail);
        }
    }
    let since_ms = Timestamp::now().as_millisecond().saturating_sub(record.since.as_millisecond());
    let whole = |value: Option<f64>| value.filter(|v| *v >= 0.0).map(|v| v.round() as u64);
    DeploymentBody {
        name: record.name.to_string(),
        state: state.to_owned(),
        detail,
        model: record.plan.model.id.clone(),
        url,
        since: record.since.to_string(),
        since_ms: u64::try_from(since_ms).unwrap_or_default(),
        pid: record.main.as_ref().filter(|_| !living.is_empty()).map(|main| main.pid),
        supervisor_pid: supervised.then_some(record.supervisor.pid),
        processes: living.len(),
        memory_bytes: living.iter().map(|member| member.resident).sum(),
        requests: whole(load.running),
        waiting: whole(load.waiting),
        kv_cache_usage: load.kv_cache_usage,
        smoke: record.smoke,
        ready_ms: record.ready_ms,
    }
}

fn table(body: &StatusBody) -> String {
    let leftovers = body.unrecorded.as_ref().map(|found| format!("\n{}", leftovers_line(found)));
    let leftovers = leftovers.unwrap_or_default();
    if body.deployments.is_empty() {
        return format!("nothing runs{leftovers}\nNext: kdeploy up MODEL");
    }
    let mut rows = Vec::new();
    for d in &body.deployments {
        let smoke_failed = d.smoke.is_some_and(|(passed, asked)| passed < asked);
        let state = match (d.state.as_str(), d.detail.as_str()) {
            ("ready", _) if smoke_failed => "ready (smoke failed)".to_owned(),
            (state, "") | (state @ "ready", _) => state.to_owned(),
            (state, detail) => format!("{state} ({detail})"),
        };
        let dash = || "-".to_owned();
        let memory = if d.memory_bytes == Bytes::ZERO { dash() } else { d.memory_bytes.to_string() };
        rows.push(vec![
            d.name.clone(),
            state,
            short_model(&d.model),
            d.url.clone().unwrap_or_else(dash),
            format_duration(Duration::from_millis(d.since_ms)),
            memory,
            d.requests.map_or_else(dash, |n| n.to_string()),
            d.kv_cache_usage.map_or_else(dash, |share| format!("{:.0}%", share * 100.0)),
        ]);
    }
    plain_table(&["NAME", "STATE", "MODEL", "URL", "UP", "MEMORY", "REQ", "KV"], &rows, &[4, 5, 6, 7])
        + &leftovers
}

/// One line about what no record knows.
fn leftovers_line(found: &Unrecorded) -> String {
    let oldest = |ages: &mut dyn Iterator<Item = u64>| {
        format_duration(Duration::from_millis(ages.max().unwrap_or_default()))
    };
    let mut parts = Vec::new();
    if !found.processes.is_empty() {
        let age = oldest(&mut found.processes.iter().map(|process| process.age_ms));
        parts.push(format!("{} orphaned engine processes (oldest {age})", found.processes.len()));
    }
    if !found.objects.is_empty() {
        let age = oldest(&mut found.objects.iter().map(|object| object.age_ms));
        let bytes = found.object_bytes();
        parts.push(format!("{} unused shared-memory objects ({bytes}, oldest {age})", found.objects.len()));
    }
    format!("left by others: {}; see them: kdeploy reap --unrecorded --dry-run", parts.join(", "))
}

/// A directory is shown by its last part, a model id as it is.
fn short_model(model: &str) -> String {
    if model.starts_with(['/', '.']) {
        model.trim_end_matches('/').rsplit('/').next().unwrap_or(model).to_owned()
    } else {
        model.to_owned()
    }
}
