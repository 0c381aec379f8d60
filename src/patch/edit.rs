//! JSON-Pointer operations on text: only the bytes of the edited value change, and that is proven by
//! reading the result again.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_text::{JsonTextError, Member, Node, NodeKind, places, read_json};

/// One replaced range of a text. Applied in order, each on the result of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Splice {
    /// Byte offset.
    pub at: usize,
    /// What stands there before.
    pub before: String,
    /// What stands there afterwards.
    pub after: String,
}

/// One value that an operation changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Change {
    /// JSON Pointer of the value.
    pub pointer: String,
    /// The value before; absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "present")]
    #[schemars(with = "Option<Value>")]
    pub before: Option<Value>,
    /// The value afterwards; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "present")]
    #[schemars(with = "Option<Value>")]
    pub after: Option<Value>,
}

/// `null` is a value here, and no absence.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    #[expect(clippy::ref_option, reason = "the shape that serde asks for")]
    pub fn serialize<S: Serializer>(value: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
        Value::deserialize(deserializer).map(Some)
    }
}

/// What is done at a pointer.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// The value must be there and be this one.
    Test(Value),
    /// Takes the value out.
    Remove,
    /// Puts another value in its place.
    Replace(Value),
    /// Adds a member, or an item (`-` at the end: behind the last); an existing member is replaced.
    Add(Value),
}

/// An operation at a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// JSON Pointer (RFC 6901).
    pub pointer: String,
    /// What is done there.
    pub operation: Operation,
    /// Is it passed over when nothing is there?
    pub if_present: bool,
}

/// Why an operation does not apply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EditError {
    /// The text cannot be edited at all.
    #[error(transparent)]
    Text(#[from] JsonTextError),
    /// There is no such value.
    #[error("there is no `{pointer}`")]
    Missing {
        /// The pointer.
        pointer: String,
    },
    /// A key stands twice on the way to the value: which one counts depends on the reader.
    #[error("`{key}` stands twice on the way to `{pointer}`")]
    Duplicate {
        /// The pointer.
        pointer: String,
        /// The key.
        key: String,
    },
    /// The value is another one.
    #[error("`{pointer}` is {found}, expected {expected}")]
    Differs {
        /// The pointer.
        pointer: String,
        /// What is there.
        found: String,
        /// What must be there.
        expected: String,
    },
    /// Not a JSON Pointer.
    #[error("`{pointer}` is no JSON Pointer: it starts with `/`")]
    BadPointer {
        /// As written.
        pointer: String,
    },
    /// Reading the result again showed something else than intended.
    #[error("the result does not read as intended: {what}")]
    Unproven {
        /// What differs.
        what: String,
    },
}

/// A text after operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Edited {
    /// The new text.
    pub text: String,
    /// How it came about; empty when nothing changed.
    pub splices: Vec<Splice>,
    /// Which values changed.
    pub changes: Vec<Change>,
}

/// Applies operations in order.
///
/// # Errors
/// When the text is no JSON, an operation does not apply, or the result does not read as intended.
pub fn edit_json(bytes: &[u8], steps: &[Step]) -> Result<Edited, EditError> {
    let (text, original) = read_json(bytes)?;
    let mut edited = Edited { text: text.to_owned(), splices: Vec::new(), changes: Vec::new() };
    let mut value = original.clone();
    for step in steps {
        let Some((splice, change)) = apply(&edited.text, &value, step)? else { continue };
        apply_to_value(&mut value, &change);
        splice_text(&mut edited.text, &splice)
            .ok_or_else(|| EditError::Unproven { what: "an edit lies outside the text".to_owned() })?;
        edited.splices.push(splice);
        edited.changes.push(change);
    }
    prove(&original, &value, &edited)?;
    Ok(edited)
}

/// The result must read as the operations say, and nothing else may differ.
fn prove(original: &Value, intended: &Value, edited: &Edited) -> Result<(), EditError> {
    let (_, found) = read_json(edited.text.as_bytes())?;
    let unproven = |what: String| Err(EditError::Unproven { what });
    if found != *intended {
        return unproven(format!("{:?} differ", differing(intended, &found)));
    }
    let meant = |pointer: &str| {
        edited.changes.iter().any(|change| {
            let list = change.pointer.rsplit_once('/').map_or("", |(list, _)| list);
            pointer == change.pointer
                || pointer.starts_with(&format!("{}/", change.pointer))
                // Items behind a removed or added one move up or down.
                || (parent_is_list(original, list) && pointer.starts_with(&format!("{list}/")))
        })
    };
    match differing(original, &found).into_iter().find(|pointer| !meant(pointer)) {
        Some(pointer) => unproven(format!("`{pointer}` differs")),
        None => Ok(()),
    }
}

fn parent_is_list(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).is_some_and(Value::is_array)
}

/// Pointers of all values that differ.
pub(super) fn differing(left: &Value, right: &Value) -> Vec<String> {
    fn walk(left: &Value, right: &Value, at: &str, found: &mut Vec<String>) {
        match (left, right) {
            (Value::Object(left), Value::Object(right)) => {
                for (key, value) in left {
                    let here = format!("{at}/{}", escape(key));
                    match right.get(key) {
                        Some(other) => walk(value, other, &here, found),
                        None => found.push(here),
                    }
                }
                found.extend(
                    right
                        .keys()
                        .filter(|key| !left.contains_key(*key))
                        .map(|key| format!("{at}/{}", escape(key))),
                );
            }
            (Value::Array(left), Value::Array(right)) => {
                for index in 0..left.len().max(right.len()) {
                    let here = format!("{at}/{index}");
                    match (left.get(index), right.get(index)) {
                        (Some(value), Some(other)) => walk(value, other, &here, found),
                        _ => found.push(here),
                    }
                }
            }
            (left, right) if left == right => {}
            _ => found.push(at.to_owned()),
        }
    }
    let mut found = Vec::new();
    walk(left, right, "", &mut found);
    found
}

/// One step: what changes in the text, and which value. `None` when nothing has to change.
fn apply(text: &str, value: &Value, step: &Step) -> Result<Option<(Splice, Change)>, EditError> {
    let pointer = &step.pointer;
    let parts = parts_of(pointer)?;
    let root =
        places(text).ok_or_else(|| EditError::Unproven { what: "the text has no places".to_owned() })?;
    let missing = || EditError::Missing { pointer: pointer.clone() };
    let Some((last, way)) = parts.split_last() else {
        return match &step.operation {
            Operation::Test(expected) => test(pointer, value, expected).map(|()| None),
            _ => Err(missing()),
        };
    };
    let parent = walk(&root, way, pointer)?.filter(|parent| parent.kind != NodeKind::Scalar);
    let Some(parent) = parent else {
        return if step.if_present { Ok(None) } else { Err(missing()) };
    };
    let present = child(parent, last, pointer)?;
    let before = present.as_ref().and_then(|_| value.pointer(pointer)).cloned();
    let (splice, after) = match (&step.operation, present) {
        (Operation::Test(_) | Operation::Remove | Operation::Replace(_), None) => {
            return if step.if_present { Ok(None) } else { Err(missing()) };
        }
        (Operation::Test(expected), Some(_)) => {
            return test(pointer, before.as_ref().unwrap_or(&Value::Null), expected).map(|()| None);
        }
        (Operation::Add(after), present) if present.is_none() || is_list(parent) => {
            let at = present.map(|place| place.index);
            let splice = add(text, parent, last, at, after).ok_or_else(missing)?;
            let pointer = added_pointer(pointer, parent, last);
            return Ok(Some((splice, Change { pointer, before: None, after: Some(after.clone()) })));
        }
        (Operation::Replace(after) | Operation::Add(after), Some(place)) => {
            if before.as_ref() == Some(after) {
                return Ok(None);
            }
            (replace(text, place.node, after), Some(after.clone()))
        }
        (Operation::Add(_), None) => return Err(missing()),
        (Operation::Remove, Some(place)) => (remove(text, parent, place.index), None),
    };
    Ok(Some((splice, Change { pointer: pointer.clone(), before, after })))
}

fn test(pointer: &str, found: &Value, expected: &Value) -> Result<(), EditError> {
    if found == expected {
        return Ok(());
    }
    Err(EditError::Differs {
        pointer: pointer.to_owned(),
        found: shortened(&found.to_string()),
        expected: shortened(&expected.to_string()),
    })
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(120).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Parts of a JSON Pointer without escapes.
fn parts_of(pointer: &str) -> Result<Vec<String>, EditError> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let rest =
        pointer.strip_prefix('/').ok_or_else(|| EditError::BadPointer { pointer: pointer.to_owned() })?;
    Ok(rest.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect())
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

struct Place<'a> {
    index: usize,
    node: &'a Node,
}

fn is_list(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Array(_))
}

fn walk<'a>(root: &'a Node, way: &[String], pointer: &str) -> Result<Option<&'a Node>, EditError> {
    let mut node = root;
    for part in way {
        match child(node, part, pointer)? {
            Some(place) => node = place.node,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

fn child<'a>(node: &'a Node, part: &str, pointer: &str) -> Result<Option<Place<'a>>, EditError> {
    match &node.kind {
        NodeKind::Object(members) => {
            let mut hits = members.iter().enumerate().filter(|(_, member)| member.key == part);
            let first = hits.next();
            if hits.next().is_some() {
                return Err(EditError::Duplicate { pointer: pointer.to_owned(), key: part.to_owned() });
            }
            Ok(first.map(|(index, member)| Place { index, node: &member.value }))
        }
        NodeKind::Array(items) => {
            let index = list_index(part);
            Ok(index.and_then(|index| Some(Place { index, node: items.get(index)? })))
        }
        NodeKind::Scalar => Ok(None),
    }
}

/// An index without a leading zero (RFC 6901).
fn list_index(part: &str) -> Option<usize> {
    let digits = part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    digits.then(|| part.parse().ok()).flatten()
}

fn replace(text: &str, node: &Node, after: &Value) -> Splice {
    Splice {
        at: node.span.start,
        before: text.get(node.span.clone()).unwrap_or_default().to_owned(),
        after: after.to_string(),
    }
}

/// Ranges of the entries of an object or a list.
fn entries(node: &Node) -> Vec<std::ops::Range<usize>> {
    match &node.kind {
        NodeKind::Object(members) => {
            members.iter().map(|Member { start, value, .. }| *start..value.span.end).collect()
        }
        NodeKind::Array(items) => items.iter().map(|item| item.span.clone()).collect(),
        NodeKind::Scalar => Vec::new(),
    }
}

/// Takes an entry out with the comma and the blanks that belong to it.
fn remove(text: &str, parent: &Node, index: usize) -> Splice {
    let all = entries(parent);
    let this = all.get(index).cloned().unwrap_or_default();
    let previous = index.checked_sub(1).and_then(|before| all.get(before));
    let range = match (all.get(index + 1), previous) {
        (Some(next), _) => this.start..next.start,
        (None, Some(previous)) => previous.end..this.end,
        (None, None) => this,
    };
    Splice { at: range.start, before: text.get(range).unwrap_or_default().to_owned(), after: String::new() }
}

/// Adds an entry in the layout of its neighbours.
fn add(text: &str, parent: &Node, part: &str, at: Option<usize>, value: &Value) -> Option<Splice> {
    let entry = match &parent.kind {
        NodeKind::Object(_) => format!("{}: {value}", Value::from(part)),
        NodeKind::Array(_) => value.to_string(),
        NodeKind::Scalar => return None,
    };
    let all = entries(parent);
    let insert = |at: usize, after: String| Some(Splice { at, before: String::new(), after });
    // Before an item that is there.
    if let (true, Some(index)) = (is_list(parent), at) {
        let here = all.get(index)?;
        let gap = index
            .checked_sub(1)
            .and_then(|before| text.get(all.get(before)?.end..here.start))
            .map_or_else(|| ", ".to_owned(), str::to_owned);
        return insert(here.start, format!("{entry}{gap}"));
    }
    if is_list(parent) && part != "-" && list_index(part) != Some(all.len()) {
        return None;
    }
    let Some(last) = all.last() else { return insert(parent.span.start + 1, entry) };
    // Blanks before the last entry: behind a comma, or behind the bracket.
    let begin = all.len().checked_sub(2).and_then(|index| all.get(index)).map(|entry| entry.end);
    let gap = text.get(begin.unwrap_or(parent.span.start + 1)..last.start).unwrap_or_default();
    let blanks = gap.trim_start_matches(|c: char| c.is_whitespace()).strip_prefix(',').unwrap_or(gap);
    insert(last.end, format!(",{blanks}{entry}"))
}

/// `/list/-` as the index that the item got.
fn added_pointer(pointer: &str, parent: &Node, part: &str) -> String {
    match &parent.kind {
        NodeKind::Array(items) if part == "-" => {
            format!("{}{}", pointer.strip_suffix('-').unwrap_or(pointer), items.len())
        }
        _ => pointer.to_owned(),
    }
}

/// The same change on a value tree: what the text must read as.
fn apply_to_value(value: &mut Value, change: &Change) {
    let (way, last) = change.pointer.rsplit_once('/').unwrap_or_default();
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(way) {
        Some(Value::Object(object)) => match &change.after {
            Some(after) => {
                object.insert(last, after.clone());
            }
            None => {
                object.shift_remove(&last);
            }
        },
        Some(Value::Array(items)) => {
            let Some(index) = list_index(&last) else { return };
            match (&change.before, &change.after) {
                (None, Some(after)) if index <= items.len() => items.insert(index, after.clone()),
                (Some(_), Some(after)) => {
                    if let Some(item) = items.get_mut(index) {
                        item.clone_from(after);
                    }
                }
                (Some(_), None) if index < items.len() => {
                    items.remove(index);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

fn splice_text(text: &mut String, splice: &Splice) -> Option<()> {
    let range = splice.at..splice.at.checked_add(splice.before.len())?;
    if text.get(range.clone())? != splice.before {
        return None;
    }
    text.replace_range(range, &splice.after);
    Some(())
}

/// Applies recorded splices; `None` when the text is not the one they were made for.
#[must_use]
pub fn apply_splices(text: &str, splices: &[Splice]) -> Option<String> {
    let mut text = text.to_owned();
    splices.iter().try_for_each(|splice| splice_text(&mut text, splice))?;
    Some(text)
}

/// Takes recorded splices back; `None` when the text is not the one they made.
#[must_use]
pub fn revert_splices(text: &str, splices: &[Splice]) -> Option<String> {
    let inverse = |splice: &Splice| Splice {
        at: splice.at,
        before: splice.after.clone(),
        after: splice.before.clone(),
    };
    let mut text = text.to_owned();
    splices.iter().rev().try_for_each(|splice| splice_text(&mut text, &inverse(splice)))?;
    Some(text)
}

#[cfg(test)]
mod tests;
