//! All patches that are known: those that come with kdeploy and the user's own.

use super::definition::{EMBEDDED_PATCHES, Patch, parse_patch};
use crate::config::{ConfigError, nearest};
use std::collections::BTreeMap;

/// Patches by name, in the order in which they apply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatchLibrary {
    patches: Vec<Patch>,
    /// Contents of the files that were given as arguments, by path.
    arguments: BTreeMap<String, String>,
}

impl PatchLibrary {
    /// The patches that come with kdeploy.
    ///
    /// # Errors
    /// Never in a released kdeploy: a test parses them all.
    pub fn embedded() -> Result<Self, ConfigError> {
        let patches = EMBEDDED_PATCHES.iter().map(|(file, text)| parse_patch(file, text));
        Ok(Self { patches: patches.collect::<Result<_, _>>()?, arguments: BTreeMap::new() })
    }

    /// Adds a patch; one of the same name is replaced.
    pub fn add(&mut self, patch: Patch) {
        match self.patches.iter_mut().find(|known| known.name == patch.name) {
            Some(known) => *known = patch,
            None => self.patches.push(patch),
        }
    }

    /// Keeps the content of a file that is given as an argument.
    pub fn add_argument(&mut self, file: String, content: String) {
        self.arguments.insert(file, content);
    }

    /// Content of an argument's file.
    #[must_use]
    pub fn argument(&self, file: &str) -> Option<&str> {
        self.arguments.get(file).map(String::as_str)
    }

    /// All patches.
    #[must_use]
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// The patch of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Patch> {
        self.patches.iter().find(|patch| patch.name == name)
    }

    /// The known name most like this one.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<String> {
        nearest(name, self.patches.iter().map(|patch| patch.name.as_str()))
    }
}
