//! What a launch does next: log stages, the supervisor's state machine, the first error of a failed
//! start.
//!
//! Pure: log bytes, exits, probe results and the clock come in as values; actions go out as values
//! and are executed by `app`.

mod failure;
mod figures;
mod gpu_release;
mod idle;
mod line;
mod log_filter;
mod machine;
mod notify;
mod stage;

pub use failure::{FailureScan, FirstError, KvTypeError};
pub use figures::read_figures;
pub use gpu_release::{HeldGpu, still_held};
pub use idle::{IdleWatch, is_idle};
pub use line::{LineSplitter, LogLine, MAX_LINE};
pub use log_filter::{LogFilter, LogLevel, ParseLevelError};
pub use machine::{Action, Event, Failure, Limits, Outcome, Phase, State, StopStep, step};
pub use notify::{Moment, Notifier, outcome_word, watchdog_interval};
pub use stage::{Mark, Measured, Stage, read_mark};
