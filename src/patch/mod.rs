//! Edits of a checkpoint's files: matched by facts, applied to text, proven by reading again, shown as
//! diffs.
//!
//! Pure: bytes and values in, bytes and values out. `store` puts the result into an overlay; the
//! checkpoint itself is never written.

mod apply;
mod definition;
mod diff;
mod edit;
mod json_text;
mod library;
mod named;

pub use apply::{PatchError, PatchedFile, Texts, apply_patches, sha256};
pub use definition::{
    EMBEDDED_PATCHES, FileEdit, FlagRemedy, LogEvidence, Op, OpKind, Operand, Patch, parse_patch,
};
pub use diff::unified_diff;
pub use edit::{
    Change, EditError, Edited, Operation, Splice, Step, apply_splices, edit_json, revert_splices,
};
pub use json_text::{JsonTextError, MAX_TEXT_BYTES, read_json};
pub use library::PatchLibrary;
pub use named::checkpoint_facts;
