//! `kdeploy/patch`: patches, what they change, and where.

use schemars::JsonSchema;
use serde::Serialize;

use crate::patch::PatchedFile;
use crate::plan::PatchKind;
use crate::report::Document;

/// A patch and whether it is called for.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct PatchInfo {
    /// Its name.
    pub name: String,
    /// Do the facts call for it? Absent when that is not known, or no model was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<bool>,
    /// Why not, or why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// How a launch would put it into effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<PatchKind>,
    /// The option, when that does the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flag: Option<String>,
    /// Why it exists.
    pub why: String,
    /// When it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// When the need ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Where that is from.
    pub links: Vec<String>,
}

/// A file and its unified diff.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PatchDiff {
    /// The file with its changes and hashes.
    #[serde(flatten)]
    pub file: PatchedFile,
    /// Unified diff.
    pub diff: String,
}

/// An overlay in the cache.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OverlayBody {
    /// Where it lies.
    pub path: String,
    /// The checkpoint it stands for.
    pub source: String,
    /// Patches in it.
    pub patches: Vec<String>,
    /// Does a launch use it?
    pub in_use: bool,
}

/// Edits in the checkpoint itself.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InPlaceBody {
    /// The checkpoint.
    pub path: String,
    /// When they were made.
    pub at: String,
    /// Patches applied.
    pub patches: Vec<String>,
    /// Files changed.
    pub files: Vec<String>,
}

/// What `patch` says or did.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct PatchBody {
    /// `list`, `show`, `diff`, `apply`, `revert` or `status`.
    pub action: &'static str,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Patches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<PatchInfo>,
    /// Files that they edit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PatchDiff>,
    /// Overlays: those that there are, the one that was made, those that `revert` removed or, where they
    /// are in use, left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<OverlayBody>,
    /// Edits in the checkpoint itself: there, made, or taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlaceBody>,
}

impl Document for PatchBody {
    const SCHEMA: &'static str = "kdeploy/patch";
    const VERSION: u32 = 1;
}
