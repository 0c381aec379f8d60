//! `patches/*.toml`: what is edited, when, why, and what must be seen afterwards.

use serde_json::Value;
use toml::de::DeTable;

use crate::config::{ConfigError, Predicate, Section, Setting, Source, nearest};
use crate::facts::{FactKind, fact_kind};

/// Version of the patch format.
const SCHEMA: u64 = 1;

/// Patches that come with kdeploy: path as shown, text.
pub const EMBEDDED_PATCHES: &[(&str, &str)] = &[
    ("patches/drop-fp8-kv-cache.toml", include_str!("../../patches/drop-fp8-kv-cache.toml")),
    ("patches/sync-quant-configs.toml", include_str!("../../patches/sync-quant-configs.toml")),
    ("patches/materialise-remote-code.toml", include_str!("../../patches/materialise-remote-code.toml")),
    ("patches/exclude-mtp-layers.toml", include_str!("../../patches/exclude-mtp-layers.toml")),
    ("patches/exclude-quantised-lm-head.toml", include_str!("../../patches/exclude-quantised-lm-head.toml")),
    ("patches/fix-chat-template.toml", include_str!("../../patches/fix-chat-template.toml")),
];

/// A patch as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// Kebab-case name: the file's stem.
    pub name: String,
    /// The file as messages name it.
    pub file: String,
    /// One paragraph that a user understands.
    pub why: String,
    /// Where that is from.
    pub links: Vec<String>,
    /// When it is needed; `None` means only on request.
    pub when: Option<Predicate>,
    /// When the need ends.
    pub until: Option<Predicate>,
    /// What has to be given with it, as `NAME=FILE`.
    pub argument: Option<String>,
    /// An option of the engine that does the same, tried first.
    pub flag: Option<FlagRemedy>,
    /// Edited files.
    pub files: Vec<FileEdit>,
    /// Files that become real ones where they are links: `*.py`.
    pub copy: Vec<String>,
    /// What the engine's log must show afterwards, and must not.
    pub evidence: LogEvidence,
}

/// An option that does what a patch does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagRemedy {
    /// vLLM's name of it, with underscores.
    pub option: String,
    /// The fact whose value it gets.
    pub from: String,
}

/// What is done to one file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileEdit {
    /// Its name in the checkpoint.
    pub path: String,
    /// Is it passed over when the checkpoint has none?
    pub optional: bool,
    /// Is the whole file replaced by the argument?
    pub replaced: bool,
    /// JSON operations, in order.
    pub ops: Vec<Op>,
}

/// An operation before its value is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// What is done.
    pub kind: OpKind,
    /// JSON Pointer.
    pub pointer: String,
    /// Is it passed over when nothing is there?
    pub if_present: bool,
    /// The value.
    pub value: Operand,
    /// Only then.
    pub when: Option<Predicate>,
}

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// The value must be this one.
    Test,
    /// Takes a value out.
    Remove,
    /// Puts another value in its place.
    Replace,
    /// Adds a member or an item.
    Add,
    /// Adds every item of a list to the list there.
    AddEach,
    /// Takes every item of a list out of the list there.
    RemoveItems,
}

const OP_KINDS: &[(&str, OpKind)] = &[
    ("test", OpKind::Test),
    ("remove", OpKind::Remove),
    ("replace", OpKind::Replace),
    ("add", OpKind::Add),
    ("add_each", OpKind::AddEach),
    ("remove_items", OpKind::RemoveItems),
];

/// Where an operation's value comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Nothing is needed.
    None,
    /// As written.
    Value(Value),
    /// A fact; nothing becomes `null`.
    Fact(String),
    /// The patch's argument.
    Argument,
}

/// Lines of the engine's log, as regular expressions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogEvidence {
    /// One line must match each.
    pub log: Vec<String>,
    /// No line may match any.
    pub never: Vec<String>,
}

/// Parses a patch. `file` is how messages name it.
///
/// # Errors
/// With `file:line` when it is not TOML, has an unknown key, an unknown fact or a value that cannot be
/// used, or was written for a newer kdeploy.
pub fn parse_patch(file: &str, text: &str) -> Result<Patch, ConfigError> {
    let source = Source { file, text };
    let parsed = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: source.place(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let top = Section::new(source, "", parsed.get_ref());
    let missing = |key: &str, hint: &str| ConfigError::BadValue {
        place: source.place(0),
        key: key.to_owned(),
        message: format!("is missing{hint}"),
    };
    let schema = top.whole("schema")?.ok_or_else(|| missing("schema", "; write `schema = 1` at the top"))?;
    if schema.value > SCHEMA {
        let place = schema.origin.detail;
        return Err(ConfigError::NewerSchema { place, found: schema.value, known: SCHEMA });
    }
    let name = top.text("name")?.ok_or_else(|| missing("name", ""))?;
    let usable = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if !usable(&name.value) || matches!(name.value.as_str(), "auto" | "none") {
        return Err(bad(&name, "name", "must be small letters, digits and `-`, and not `auto` or `none`"));
    }
    let argument = top.text("argument")?.map(|argument| argument.value);
    let flag = match top.section("flag")? {
        Some(section) => Some(read_flag(section)?),
        None => None,
    };
    let mut files = Vec::new();
    for section in top.sections("file")? {
        files.push(read_file(section, argument.is_some())?);
    }
    let copy = top.texts("copy")?;
    if let Some(copy) = copy.as_ref().filter(|copy| copy.value.iter().any(|pattern| pattern != "*.py")) {
        return Err(bad(copy, "copy", "can only be [\"*.py\"]"));
    }
    let copy = copy.map(|copy| copy.value).unwrap_or_default();
    if files.is_empty() && copy.is_empty() {
        return Err(missing("file", "; a patch edits a file or copies some"));
    }
    let evidence = match top.section("evidence")? {
        Some(section) => read_evidence(section)?,
        None => LogEvidence::default(),
    };
    let patch = Patch {
        file: file.to_owned(),
        why: top.text("why")?.ok_or_else(|| missing("why", "; say it in a sentence or two"))?.value,
        links: top.texts("links")?.map(|links| links.value).unwrap_or_default(),
        when: top.predicate("when")?.map(|when| when.value),
        until: top.predicate("until")?.map(|until| until.value),
        name: name.value,
        argument,
        flag,
        files,
        copy,
        evidence,
    };
    top.finish()?;
    Ok(patch)
}

fn bad<T>(setting: &Setting<T>, key: &str, message: &str) -> ConfigError {
    ConfigError::BadValue {
        place: setting.origin.detail.clone(),
        key: key.to_owned(),
        message: message.to_owned(),
    }
}

fn missing_in(section: &Section<'_>, key: &str) -> ConfigError {
    ConfigError::BadValue {
        place: section.place(),
        key: format!("{}.{key}", section.name),
        message: "is missing".to_owned(),
    }
}

fn read_flag(section: Section<'_>) -> Result<FlagRemedy, ConfigError> {
    let option = section.text("option")?.ok_or_else(|| missing_in(&section, "option"))?;
    let from = known_fact(section.text("from")?.ok_or_else(|| missing_in(&section, "from"))?, "flag.from")?;
    section.finish()?;
    Ok(FlagRemedy { option: option.value, from })
}

fn known_fact(name: Setting<String>, key: &str) -> Result<String, ConfigError> {
    if fact_kind(&name.value).is_some() {
        return Ok(name.value);
    }
    let near = nearest(&name.value, crate::facts::FACT_NAMES.iter().map(|(known, ..)| *known));
    let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Err(bad(&name, key, &format!("names no fact: `{}`{hint}", name.value)))
}

fn read_file(section: Section<'_>, has_argument: bool) -> Result<FileEdit, ConfigError> {
    let path = section.text("path")?.ok_or_else(|| missing_in(&section, "path"))?;
    // A patch never reaches out of the checkpoint.
    if path.value.is_empty() || path.value.contains(['/', '\0']) || path.value.starts_with('.') {
        return Err(bad(&path, "file.path", "must be the name of a file of the checkpoint"));
    }
    let content = section.text("content")?;
    if let Some(content) = &content
        && (content.value != "argument" || !has_argument)
    {
        return Err(bad(content, "file.content", "can only be \"argument\", in a patch with an `argument`"));
    }
    let mut ops = Vec::new();
    for op in section.sections("ops")? {
        ops.push(read_op(op, has_argument)?);
    }
    if ops.is_empty() == content.is_none() {
        return Err(bad(&path, "file.path", "needs either `ops` or `content`"));
    }
    let edit = FileEdit {
        optional: section.boolean("optional")?.is_some_and(|flag| flag.value),
        replaced: content.is_some(),
        path: path.value,
        ops,
    };
    section.finish()?;
    Ok(edit)
}

fn read_op(section: Section<'_>, has_argument: bool) -> Result<Op, ConfigError> {
    let word = section.text("op")?.ok_or_else(|| missing_in(&section, "op"))?;
    let Some((_, kind)) = OP_KINDS.iter().find(|(known, _)| *known == word.value) else {
        let near = nearest(&word.value, OP_KINDS.iter().map(|(known, _)| *known));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(bad(&word, "op", &format!("is `{}`, which is no operation{hint}", word.value)));
    };
    let pointer = section.text("path")?.ok_or_else(|| missing_in(&section, "path"))?;
    if !pointer.value.starts_with('/') {
        return Err(bad(&pointer, "path", "must be a JSON Pointer: it starts with `/`"));
    }
    let (value, json, from) = (section.json("value")?, section.text("json")?, section.text("from")?);
    let operand = match (value, json, from) {
        (None, None, None) => Operand::None,
        (Some(value), None, None) => Operand::Value(value.value),
        (None, Some(json), None) => Operand::Value(
            serde_json::from_str(&json.value)
                .map_err(|error| bad(&json, "json", &format!("is no JSON: {error}")))?,
        ),
        (None, None, Some(from)) if from.value == "argument" && has_argument => Operand::Argument,
        (None, None, Some(from)) => Operand::Fact(known_fact(from, "from")?),
        _ => return Err(bad(&word, "op", "has more than one of `value`, `json`, `from`")),
    };
    let is_list = |operand: &Operand| match operand {
        Operand::Value(value) => value.is_array(),
        Operand::Fact(name) => fact_kind(name) == Some(FactKind::List),
        Operand::None | Operand::Argument => false,
    };
    match kind {
        OpKind::Remove if operand != Operand::None => {
            return Err(bad(&word, "op", "needs no value: it removes what is there"));
        }
        OpKind::AddEach | OpKind::RemoveItems if !is_list(&operand) => {
            return Err(bad(&word, "op", "needs a list, as `value`, `json` or `from`"));
        }
        OpKind::Test | OpKind::Replace | OpKind::Add if operand == Operand::None => {
            return Err(bad(&word, "op", "needs one of `value`, `json`, `from`"));
        }
        _ => {}
    }
    let op = Op {
        kind: *kind,
        pointer: pointer.value,
        if_present: section.boolean("if_present")?.is_some_and(|flag| flag.value),
        value: operand,
        when: section.predicate("when")?.map(|when| when.value),
    };
    section.finish()?;
    Ok(op)
}

fn read_evidence(section: Section<'_>) -> Result<LogEvidence, ConfigError> {
    let patterns = |key: &'static str| {
        let Some(patterns) = section.texts(key)? else { return Ok(Vec::new()) };
        for pattern in &patterns.value {
            regex::Regex::new(pattern).map_err(|error| {
                let reason = error.to_string();
                let last = reason.lines().last().unwrap_or_default().to_owned();
                bad(
                    &patterns,
                    &format!("evidence.{key}"),
                    &format!("has `{pattern}`, which is no regular expression: {last}"),
                )
            })?;
        }
        Ok(patterns.value)
    };
    let evidence = LogEvidence { log: patterns("log")?, never: patterns("never")? };
    section.finish()?;
    Ok(evidence)
}

#[cfg(test)]
mod tests {
    use super::{EMBEDDED_PATCHES, parse_patch};

    #[test]
    fn every_embedded_patch_is_whole_and_named_after_its_file() {
        for (file, text) in EMBEDDED_PATCHES {
            let patch = parse_patch(file, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(*file, format!("patches/{}.toml", patch.name));
            assert!(patch.why.len() > 40 && patch.why.ends_with('.'), "{file}: say why");
            assert!(!patch.links.is_empty(), "{file}: say where that is from");
            assert!(patch.when.is_some() || patch.argument.is_some(), "{file}: nobody would use it");
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        let head = "schema = 1\nname = \"x\"\nwhy = \"w\"\n";
        let file = "[[file]]\npath = \"config.json\"\n";
        for (text, expected) in [
            ("schema = 2".to_owned(), "p.toml:1: schema 2 is newer"),
            ("name = \"x\"".to_owned(), "p.toml:1: `schema` is missing"),
            ("schema = 1\nname = \"auto\"".to_owned(), "p.toml:2: `name` must be"),
            (head.to_owned(), "`file` is missing"),
            (
                format!("{head}whne = \"kv.supported\"\n{file}ops = [{{ op = \"remove\", path = \"/a\" }}]"),
                "p.toml:4: unknown key `whne`; did you mean `when`?",
            ),
            (
                format!("{head}when = \"kv.suported\"\n{file}ops = [{{ op = \"remove\", path = \"/a\" }}]"),
                "p.toml:4: `when` names no fact: `kv.suported`; did you mean `kv.supported`?",
            ),
            (
                format!("{head}{file}ops = [\n{{ op = \"remov\", path = \"/a\" }}]"),
                "p.toml:7: `op` is `remov`, which is no operation; did you mean `remove`?",
            ),
            (format!("{head}{file}ops = [{{ op = \"remove\", path = \"a\" }}]"), "must be a JSON Pointer"),
            (format!("{head}{file}ops = [{{ op = \"replace\", path = \"/a\" }}]"), "needs one of"),
            (
                format!("{head}{file}ops = [{{ op = \"replace\", path = \"/a\", json = \"nul\" }}]"),
                "`json` is no JSON",
            ),
            (
                format!("{head}{file}ops = [{{ op = \"add_each\", path = \"/a\", value = 1 }}]"),
                "needs a list",
            ),
            (
                format!("{head}{file}ops = [{{ op = \"add\", path = \"/a\", from = \"model.typ\" }}]"),
                "did you mean `model.type`?",
            ),
            (
                format!("{head}[[file]]\npath = \"../x\"\nops = [{{ op = \"remove\", path = \"/a\" }}]"),
                "p.toml:5: `file.path` must be the name",
            ),
            (format!("{head}{file}content = \"argument\""), "can only be \"argument\""),
            (format!("{head}copy = [\"*.so\"]"), "can only be [\"*.py\"]"),
            (
                format!(
                    "{head}{file}ops = [{{ op = \"remove\", path = \"/a\" }}]\n[evidence]\nlog = [\"(\"]"
                ),
                "no regular expression",
            ),
        ] {
            let message = parse_patch("p.toml", &text).expect_err(&text).to_string();
            assert!(message.contains(expected), "{text}\n{message}");
        }
    }
}
