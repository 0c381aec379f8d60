//! Edits of a checkpoint's files: matched by facts, applied to text, proven by reading again, shown as
//! diffs.
//!
//! Pure: bytes and values in, bytes and values out. `store` puts the result into an overlay; the
//! checkpoint itself is never written.

mod edit;
mod json_text;

pub use edit::{Change, EditError, Edited, Operation, Splice, Step, apply_splices, edit_json, revert_splices};
pub use json_text::{JsonTextError, MAX_TEXT_BYTES, read_json};
