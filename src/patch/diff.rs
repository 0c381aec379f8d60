//! Unified diffs of edited files.

use similar::TextDiff;

/// A unified diff with three lines of context; empty when both are the same.
#[must_use]
pub fn unified_diff(file: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(3)
        .header(&format!("a/{file}"), &format!("b/{file}"))
        .to_string()
}
