//! What people and programs read: exit codes, error codes, diagnostics, JSON shapes, and the one
//! door to the terminal.
//!
//! Reads values, decides nothing. Only `app` and `main` use this room.

mod codes;
mod diagnostic;
mod envelope;
mod exit;
mod launch_view;
mod progress;
pub mod schema;
mod table;
mod ui;

pub use codes::ErrorCode;
pub use diagnostic::{Diagnostic, Evidence, EvidenceKind, Remedy, Retry};
pub use envelope::{Document, Envelope, ErrorBody, Failure};
pub use exit::Exit;
pub use launch_view::{LaunchView, exit_when_ready, stop_line};
pub use progress::Step;
pub use table::plain_table;
pub use ui::{ColorChoice, Ui, UiOptions};
