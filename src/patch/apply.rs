//! Patches on the texts of a checkpoint: the edited files, each with what changed and why it is sure.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::definition::{FileEdit, Op, OpKind, Operand, Patch};
use super::edit::{Change, EditError, Operation, Splice, Step, apply_splices, edit_json};
use crate::facts::{FactSet, FactValue};

/// Texts of a checkpoint by file name.
pub type Texts = BTreeMap<String, Vec<u8>>;

/// A file that patches changed, ready to be written elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PatchedFile {
    /// Its name in the checkpoint.
    pub path: String,
    /// Patches that changed it, in order.
    pub patches: Vec<String>,
    /// SHA-256 of the original; absent when there was no such file.
    #[serde(default)]
    pub sha256_before: Option<String>,
    /// SHA-256 of the result.
    pub sha256_after: String,
    /// Values that changed.
    pub changes: Vec<Change>,
    /// How the original becomes the result.
    pub splices: Vec<Splice>,
}

/// Why a patch does not apply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatchError {
    /// The checkpoint has no such file.
    #[error("patch `{patch}`: the checkpoint has no `{file}`")]
    NoFile {
        /// The patch.
        patch: String,
        /// The file.
        file: String,
    },
    /// An operation does not apply.
    #[error("patch `{patch}` does not apply to `{file}`: {source}")]
    Edit {
        /// The patch.
        patch: String,
        /// The file.
        file: String,
        /// Why.
        source: EditError,
    },
    /// Nothing in the checkpoint is what the patch changes.
    #[error("patch `{patch}` finds nothing to change")]
    NothingToChange {
        /// The patch.
        patch: String,
    },
    /// A fact that the patch writes is not known.
    #[error("patch `{patch}` writes `{fact}`, which is not known here")]
    UnknownFact {
        /// The patch.
        patch: String,
        /// The fact.
        fact: String,
    },
    /// The file is not the one that the plan was made for.
    #[error("`{file}` is not the file that the patch was planned for")]
    Drift {
        /// The file.
        file: String,
        /// SHA-256 expected.
        expected: String,
        /// SHA-256 found; absent when there is no such file.
        found: Option<String>,
    },
}

/// SHA-256 in hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies patches in order, each on the result of those before.
///
/// # Errors
/// When one does not apply or finds nothing to change.
pub fn apply_patches(
    patches: &[(&Patch, Option<&str>)],
    facts: &FactSet,
    texts: &Texts,
) -> Result<(Texts, Vec<PatchedFile>), PatchError> {
    let mut patched = texts.clone();
    let mut files: Vec<PatchedFile> = Vec::new();
    for (patch, argument) in patches {
        let mut touched = !patch.copy.is_empty();
        for edit in &patch.files {
            let Some((after, splices, changes)) = apply_edit(patch, edit, *argument, facts, &patched)? else {
                continue;
            };
            touched = true;
            let mut file = match files.iter().position(|file| file.path == edit.path) {
                Some(index) => files.remove(index),
                None => PatchedFile {
                    path: edit.path.clone(),
                    patches: Vec::new(),
                    sha256_before: texts.get(&edit.path).map(|bytes| sha256(bytes)),
                    sha256_after: String::new(),
                    changes: Vec::new(),
                    splices: Vec::new(),
                },
            };
            file.patches.push(patch.name.clone());
            file.sha256_after = sha256(after.as_bytes());
            file.changes.extend(changes);
            file.splices.extend(splices);
            files.push(file);
            patched.insert(edit.path.clone(), after.into_bytes());
        }
        if !touched {
            return Err(PatchError::NothingToChange { patch: patch.name.clone() });
        }
    }
    Ok((patched, files))
}

type Applied = (String, Vec<Splice>, Vec<Change>);

fn apply_edit(
    patch: &Patch,
    edit: &FileEdit,
    argument: Option<&str>,
    facts: &FactSet,
    texts: &Texts,
) -> Result<Option<Applied>, PatchError> {
    let before = texts.get(&edit.path);
    if edit.replaced {
        let after = argument.unwrap_or_default();
        let old = before.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        if old.as_deref() == Some(after) {
            return Ok(None);
        }
        let digest = |text: &str| Value::from(format!("sha256:{}", sha256(text.as_bytes())));
        let change =
            Change { pointer: String::new(), before: old.as_deref().map(digest), after: Some(digest(after)) };
        let splice = Splice { at: 0, before: old.unwrap_or_default(), after: after.to_owned() };
        return Ok(Some((after.to_owned(), vec![splice], vec![change])));
    }
    let Some(bytes) = before else {
        let missing = PatchError::NoFile { patch: patch.name.clone(), file: edit.path.clone() };
        return if edit.optional { Ok(None) } else { Err(missing) };
    };
    let fail = |source| PatchError::Edit { patch: patch.name.clone(), file: edit.path.clone(), source };
    let mut text = bytes.clone();
    let (mut splices, mut changes) = (Vec::new(), Vec::new());
    for op in &edit.ops {
        if op.when.as_ref().is_some_and(|when| !when.judge(facts).is_true()) {
            continue;
        }
        let value = operand(patch, op, argument, facts)?;
        let steps = steps_of(op, &value, &text).map_err(fail)?;
        let edited = edit_json(&text, &steps).map_err(fail)?;
        text = edited.text.into_bytes();
        splices.extend(edited.splices);
        changes.extend(edited.changes);
    }
    if splices.is_empty() {
        // A file that cannot be read as JSON is told, also when nothing is to be changed in it.
        edit_json(bytes, &[]).map_err(fail)?;
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some((text, splices, changes)))
}

/// The value of an operation.
fn operand(patch: &Patch, op: &Op, argument: Option<&str>, facts: &FactSet) -> Result<Value, PatchError> {
    Ok(match &op.value {
        Operand::None => Value::Null,
        Operand::Value(value) => value.clone(),
        Operand::Argument => Value::from(argument.unwrap_or_default()),
        Operand::Fact(name) => json_of(
            facts
                .get(name)
                .ok_or_else(|| PatchError::UnknownFact { patch: patch.name.clone(), fact: name.clone() })?,
        ),
    })
}

/// An operation as steps; those on items of a list look at the text first.
fn steps_of(op: &Op, value: &Value, text: &[u8]) -> Result<Vec<Step>, EditError> {
    let step = |pointer: String, operation: Operation| Step { pointer, operation, if_present: op.if_present };
    let whole = |operation: Operation| Ok(vec![step(op.pointer.clone(), operation)]);
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let there = || {
        let (_, whole) = super::json_text::read_json(text)?;
        Ok::<_, EditError>(whole.pointer(&op.pointer).and_then(Value::as_array).cloned().unwrap_or_default())
    };
    match op.kind {
        OpKind::Test => whole(Operation::Test(value.clone())),
        OpKind::Remove => whole(Operation::Remove),
        OpKind::Replace => whole(Operation::Replace(value.clone())),
        OpKind::Add => whole(Operation::Add(value.clone())),
        OpKind::AddEach => {
            let known = there()?;
            let new = items.iter().filter(|item| !known.contains(item));
            Ok(new.map(|item| step(format!("{}/-", op.pointer), Operation::Add(item.clone()))).collect())
        }
        OpKind::RemoveItems => {
            let known = there()?;
            let hits = known.iter().enumerate().filter(|(_, item)| items.contains(item));
            // From the end, so that indices before stay.
            let mut steps: Vec<Step> =
                hits.map(|(index, _)| step(format!("{}/{index}", op.pointer), Operation::Remove)).collect();
            steps.reverse();
            Ok(steps)
        }
    }
}

fn json_of(value: &FactValue) -> Value {
    match value {
        FactValue::Nothing => Value::Null,
        FactValue::Number(number) => Value::from(*number),
        FactValue::Flag(flag) => Value::from(*flag),
        FactValue::List(items) => Value::from(items.clone()),
        other => Value::from(other.to_string()),
    }
}

impl PatchedFile {
    /// Makes the result from the original's bytes, which must be the ones it was planned for.
    ///
    /// # Errors
    /// [`PatchError::Drift`] when they are not.
    pub fn make(&self, original: Option<&[u8]>) -> Result<Vec<u8>, PatchError> {
        let found = original.map(sha256);
        let drift = || PatchError::Drift {
            file: self.path.clone(),
            expected: self.sha256_before.clone().unwrap_or_else(|| "no file".to_owned()),
            found: found.clone(),
        };
        if found != self.sha256_before {
            return Err(drift());
        }
        let text = std::str::from_utf8(original.unwrap_or_default()).map_err(|_| drift())?;
        let made = apply_splices(text, &self.splices).ok_or_else(drift)?;
        if sha256(made.as_bytes()) == self.sha256_after { Ok(made.into_bytes()) } else { Err(drift()) }
    }
}

#[cfg(test)]
mod tests;
