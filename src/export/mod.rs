//! Plans as files for other tools: pure writers, values to text.

mod systemd;
mod words;

pub use systemd::{ServiceUnit, write_unit};
pub use words::{UnwritableWord, exec_line, quoted};
