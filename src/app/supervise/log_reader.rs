//! Drains the engine's output from the first byte: raw to disk, lines to the marks and the failure
//! scan. A thread of its own, because a pipe that nobody reads stops the engine.

use std::io::{PipeReader, Read as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::facts::EngineFigures;
use crate::lifecycle::{FailureScan, LineSplitter, LogLine, Mark, read_figures, read_mark};
use crate::plan::{EvidenceScan, Plan};
use crate::store::LogSink;

/// What the log says so far.
#[derive(Debug)]
pub(super) struct Said {
    /// Of a failure.
    pub scan: FailureScan,
    /// Of what the plan needs confirmed.
    pub evidence: EvidenceScan,
    /// Of the engine's memory.
    pub figures: EngineFigures,
}

/// The reader's side that the loop sees.
#[derive(Debug)]
pub(super) struct LogReader {
    said: Arc<Mutex<Said>>,
    done: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl LogReader {
    /// Starts draining.
    pub(super) fn start(
        mut output: PipeReader,
        mut sink: LogSink,
        marks: mpsc::UnboundedSender<Mark>,
        plan: &Plan,
    ) -> std::io::Result<Self> {
        let said = Arc::new(Mutex::new(Said {
            scan: FailureScan::default(),
            evidence: EvidenceScan::new(plan),
            figures: EngineFigures::default(),
        }));
        let done = Arc::new(AtomicBool::new(false));
        let lost = Arc::new(AtomicU64::new(0));
        let reader = Self { said: Arc::clone(&said), done: Arc::clone(&done), lost: Arc::clone(&lost) };
        std::thread::Builder::new().name("engine-log".to_owned()).spawn(move || {
            let mut splitter = LineSplitter::default();
            let mut block = vec![0; 64 * 1024];
            loop {
                let read = match output.read(&mut block) {
                    Ok(0) => break,
                    Ok(read) => read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                let bytes = block.get(..read).unwrap_or_default();
                sink.write(bytes);
                lost.store(sink.lost(), Ordering::Relaxed);
                splitter.feed(bytes, |number, line| take_line(&said, &marks, number, line));
            }
            splitter.finish(|number, line| take_line(&said, &marks, number, line));
            done.store(true, Ordering::Release);
        })?;
        Ok(reader)
    }

    /// Waits (bounded) until the last bytes are in; call it when the tree is gone.
    pub(super) async fn settle(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.done.load(Ordering::Acquire) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What the log says so far.
    pub(super) fn said(&self) -> std::sync::MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Bytes that the disk did not take.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

fn take_line(said: &Mutex<Said>, marks: &mpsc::UnboundedSender<Mark>, number: u64, line: &str) {
    let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    said.scan.feed(number, line);
    read_figures(&mut said.figures, line);
    said.evidence.line(number, line);
    drop(said);
    if let Some(mark) = read_mark(&LogLine::parse(line)) {
        // The loop has ended before the tree did: nobody needs marks any more.
        let _ = marks.send(mark);
    }
}
