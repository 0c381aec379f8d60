//! Profiles, environment and flags merged into settings; the origin of every value is kept.
//!
//! Pure: files are read by `store`, the environment arrives as a value. Order, lowest first: built-in
//! default, profile, environment, flag ([`resolve`]).

mod context;
pub mod env_vars;
mod error;
mod flags;
mod memory_item;
mod name;
mod origin;
mod patches_wanted;
mod predicate;
mod profile;
mod profile_match;
mod requirement;
mod settings;
mod smoke_case;
mod toml_section;

pub use context::ContextWanted;
pub use error::ConfigError;
pub(crate) use error::nearest;
pub use flags::LaunchFlags;
pub use memory_item::{MemoryItem, ParseMemoryItemError};
pub use name::{DeploymentName, NameError};
pub use origin::{Origin, OriginKind, Setting};
pub use patches_wanted::{NamedPatch, ParsePatchesError, PatchesWanted};
pub use predicate::{Operator, Predicate, Truth};
pub use profile::{EMBEDDED_PROFILES, Profile, ProfileLaunch, parse_profile};
pub use profile_match::ProfileMatch;
pub use requirement::{ParseRequirementError, VersionRequirement};
pub use settings::{LaunchDeadlines, NamedProfile, Settings, resolve};
pub use smoke_case::{Expectation, SmokeCase};
pub(crate) use toml_section::{Section, Source};
