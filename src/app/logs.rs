//! `kdeploy logs`: the engine's own words, as they were captured.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::Duration;

use super::context::{App, io_error, store_error};
use super::reap::supervisor_lives;
use crate::cli::LogsArgs;
use crate::config::DeploymentName;
use crate::lifecycle::{LineSplitter, LogFilter, ParseLevelError};
use crate::report::schema::{LogLineBody, LogsBody};
use crate::report::{Diagnostic, ErrorCode, Exit};
use crate::store::{AttemptDir, tail_lines};

const LOOK: Duration = Duration::from_millis(200);

/// Shows the captured log; `--follow` goes on until the launch is over.
///
/// # Errors
/// When there is no such deployment or attempt, or the log cannot be read.
pub async fn logs(app: &App, args: &LogsArgs) -> Result<Exit, Diagnostic> {
    let Some(name) = app.choose(args.name.as_ref())? else {
        app.ui.answer("nothing runs");
        app.ui.document(
            LogsBody { name: String::new(), attempt: 0, file: String::new(), lines: Vec::new() },
            Exit::NotRunning,
        );
        return Ok(Exit::NotRunning);
    };
    let Some(attempt) = find(app, &name, args.attempt)? else {
        app.ui.answer(&format!("`{name}` is not running and has no log"));
        let body = LogsBody { name: name.to_string(), attempt: 0, file: String::new(), lines: Vec::new() };
        app.ui.document(body, Exit::NotRunning);
        return Ok(Exit::NotRunning);
    };
    let path = attempt.engine_log();
    if !path.exists() {
        app.ui.say("the engine has not said anything yet");
    }
    let level = args.level.as_deref().map(str::parse).transpose();
    let level =
        level.map_err(|error: ParseLevelError| Diagnostic::new(ErrorCode::Usage, error.to_string()))?;
    let mut view =
        View { splitter: LineSplitter::default(), filter: LogFilter::new(level, args.rank), raw: args.raw };
    // A filter must see every line to know which are its last ones.
    let read = if view.filter.is_open() { args.lines } else { None };
    let (bytes, offset) = match tail_lines(&path, read) {
        Ok(found) => found,
        Err(_) if !path.exists() => (Vec::new(), 0),
        Err(error) => return Err(store_error(&error)),
    };
    if args.raw {
        app.ui.raw(&bytes);
    } else {
        let mut lines = view.take(&bytes);
        if !args.follow {
            lines.extend(view.rest());
        }
        let skipped = args.lines.map_or(0, |wanted| lines.len().saturating_sub(wanted));
        lines.drain(..skipped);
        if app.ui.is_json() && !args.follow {
            let body =
                LogsBody { name: name.to_string(), attempt: attempt.number, file: path.to_string(), lines };
            app.ui.document(body, Exit::Done);
            return Ok(Exit::Done);
        }
        show(app, &lines);
    }
    if args.follow {
        follow(app, &name, attempt, args.attempt.is_some(), offset, view).await
    } else {
        Ok(Exit::Done)
    }
}

/// How lines are picked and shown.
struct View {
    splitter: LineSplitter,
    filter: LogFilter,
    raw: bool,
}

impl View {
    /// Wanted lines that these bytes complete.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        let filter = &mut self.filter;
        self.splitter.feed(bytes, |_, line| lines.extend(filter.passes(line).then(|| clean(line))));
        lines
    }

    /// The last line, when it has no end.
    fn rest(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let filter = &mut self.filter;
        self.splitter.finish(|_, line| lines.extend(filter.passes(line).then(|| clean(line))));
        lines
    }
}

/// Without control characters: the log is another program's, and a terminal obeys them.
fn clean(line: &str) -> String {
    line.chars().filter(|c| *c == '\t' || !c.is_control()).collect()
}

/// Goes on as the log grows, over the attempts of one launch unless one of them was asked for, until
/// the launch ends or the reader goes away.
async fn follow(
    app: &App,
    name: &DeploymentName,
    mut attempt: AttemptDir,
    is_pinned: bool,
    mut offset: u64,
    mut view: View,
) -> Result<Exit, Diagnostic> {
    let launch = app.record(name)?.map(|record| record.began);
    let mut was_live = false;
    loop {
        // Asked first: what was written before the end is read after it was seen.
        let over = !is_live(app, name, attempt.number)?;
        let path = attempt.engine_log();
        was_live |= !over;
        loop {
            let chunk = read_from(&path, offset).map_err(|error| io_error(&error))?;
            if chunk.is_empty() {
                break;
            }
            offset += chunk.len() as u64;
            if view.raw {
                app.ui.raw(&chunk);
            } else {
                show(app, &view.take(&chunk));
            }
        }
        if over {
            if !view.raw {
                show(app, &view.rest());
            }
            let record = app.record(name)?.filter(|r| r.state.is_live() && Some(r.began) == launch);
            if let Some(newer) = record.filter(|r| r.attempt > attempt.number).map(|r| r.attempt) {
                if is_pinned {
                    app.ui.say(&format!(
                        "attempt {} of `{name}` ended; attempt {newer} follows",
                        attempt.number
                    ));
                    return Ok(Exit::Done);
                }
                if let Some(next) = find(app, name, Some(newer))? {
                    (attempt, offset) = (next, 0);
                    view.splitter = LineSplitter::default();
                    continue;
                }
            }
            app.ui.say(&format!("`{name}` is not running any more"));
            // Following to the end is what was asked for; an end that had been before is an answer too.
            return Ok(if was_live { Exit::Done } else { Exit::NotRunning });
        }
        if app.ui.is_broken() {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        }
    }
}

fn find(app: &App, name: &DeploymentName, number: Option<u64>) -> Result<Option<AttemptDir>, Diagnostic> {
    let attempts = AttemptDir::list(&app.dirs.deployment(name)).map_err(|error| store_error(&error))?;
    let Some(number) = number else { return Ok(attempts.into_iter().next_back()) };
    let kept = attempts.iter().map(|a| a.number.to_string()).collect::<Vec<_>>().join(", ");
    match attempts.into_iter().find(|attempt| attempt.number == number) {
        Some(found) => Ok(Some(found)),
        None => Err(Diagnostic::new(ErrorCode::NameNotFound, format!("`{name}` has no attempt {number}"))
            .fact("attempts kept", if kept.is_empty() { "none".to_owned() } else { kept })),
    }
}

fn is_live(app: &App, name: &DeploymentName, attempt: u64) -> Result<bool, Diagnostic> {
    let record = app.record(name)?;
    Ok(record.is_some_and(|r| r.state.is_live() && supervisor_lives(&r) && r.attempt <= attempt))
}

fn read_from(path: &camino::Utf8Path, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(1 << 20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn show(app: &App, lines: &[String]) {
    if app.ui.is_json() {
        for line in lines {
            app.ui.json_line(&LogLineBody { schema: "kdeploy/log-line", version: 1, line });
        }
    } else if !lines.is_empty() {
        app.ui.raw((lines.join("\n") + "\n").as_bytes());
    }
}
