//! Profiles, environment and flags merged into settings; the origin of every value is kept.
//!
//! Pure: files are read by `store`, the environment arrives as a value.

mod name;
mod smoke_case;

pub use name::{DeploymentName, NameError};
pub use smoke_case::{Expectation, SmokeCase};
