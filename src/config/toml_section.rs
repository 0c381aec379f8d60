//! Tables of a TOML file, read key by key; what was not read is an unknown key.

use std::cell::RefCell;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, nearest};
use super::origin::{Origin, Setting};
use super::predicate::Predicate;

/// A file: its shown name and its text, so that offsets become lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Source<'_> {
    /// `file:line` of a byte offset.
    pub fn place(&self, offset: usize) -> String {
        let line = self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        format!("{}:{line}", self.file)
    }
}

/// One table that is being read.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    pub source: Source<'a>,
    /// Dotted name; empty at the top.
    pub name: String,
    table: &'a DeTable<'a>,
    asked: RefCell<Vec<&'static str>>,
}

type Found<T> = Result<Option<Setting<T>>, ConfigError>;

impl<'a> Section<'a> {
    pub fn new(source: Source<'a>, name: &str, table: &'a DeTable<'a>) -> Self {
        Self { source, name: name.to_owned(), table, asked: RefCell::default() }
    }

    /// `file:line` of the section's first entry.
    pub fn place(&self) -> String {
        let first = self.table.iter().map(|(name, _)| name.span().start).min();
        self.source.place(first.unwrap_or(0))
    }

    fn find(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// An error at a value.
    pub fn bad(&self, value: &Spanned<DeValue<'_>>, key: &str, message: &str) -> ConfigError {
        ConfigError::BadValue {
            place: self.source.place(value.span().start),
            key: self.full_name(key),
            message: message.to_owned(),
        }
    }

    fn read<T>(
        &self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&DeValue<'a>) -> Option<T>,
    ) -> Found<T> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let converted = convert(value.get_ref()).ok_or_else(|| self.bad(value, key, expected))?;
        Ok(Some(Setting::new(converted, Origin::profile(self.source.place(value.span().start)))))
    }

    pub fn text(&self, key: &'static str) -> Found<String> {
        self.read(key, "must be a text", |value| value.as_str().map(str::to_owned))
    }

    pub fn boolean(&self, key: &'static str) -> Found<bool> {
        self.read(key, "must be `true` or `false`", DeValue::as_bool)
    }

    pub fn whole(&self, key: &'static str) -> Found<u64> {
        self.read(key, "must be a whole number", |value| match to_json(value) {
            Value::Number(number) => number.as_u64(),
            _ => None,
        })
    }

    pub fn number(&self, key: &'static str) -> Found<f64> {
        self.read(key, "must be a number", |value| to_json(value).as_f64().filter(|n| n.is_finite()))
    }

    /// A text or a whole number, as text.
    pub fn text_or_whole(&self, key: &'static str) -> Found<String> {
        self.read(key, "must be a text or a whole number", |value| match to_json(value) {
            Value::String(text) => Some(text),
            Value::Number(number) => number.as_u64().map(|n| n.to_string()),
            _ => None,
        })
    }

    /// A list of texts.
    pub fn texts(&self, key: &'static str) -> Found<Vec<String>> {
        self.read(key, "must be a list of texts", |value| {
            value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
        })
    }

    /// A condition over facts.
    pub fn predicate(&self, key: &'static str) -> Found<Predicate> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let predicate = Predicate::read(self.source, &self.full_name(key), value)?;
        Ok(Some(Setting::new(predicate, Origin::profile(self.source.place(value.span().start)))))
    }

    /// Any value, as JSON.
    pub fn json(&self, key: &'static str) -> Found<Value> {
        self.read(key, "must be a value", |value| Some(to_json(value)))
    }

    /// A table inside this one.
    pub fn section(&self, key: &'static str) -> Result<Option<Section<'a>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let table = value.get_ref().as_table().ok_or_else(|| self.bad(value, key, "must be a table"))?;
        Ok(Some(Section::new(self.source, &self.full_name(key), table)))
    }

    /// A list of tables inside this one.
    pub fn sections(&self, key: &'static str) -> Result<Vec<Section<'a>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(Vec::new()) };
        let fail = || self.bad(value, key, "must be a list of tables (`[[…]]`)");
        let items = value.get_ref().as_array().ok_or_else(fail)?;
        let section = |item: &'a Spanned<DeValue<'a>>| {
            let table = item.get_ref().as_table().ok_or_else(fail)?;
            Ok(Section::new(self.source, &self.full_name(key), table))
        };
        items.iter().map(section).collect()
    }

    /// Marks a key as known; its place when it is there.
    pub fn is_there(&self, key: &'static str) -> Option<String> {
        self.find(key).map(|value| self.source.place(value.span().start))
    }

    /// Every entry as JSON: for tables whose keys are somebody else's.
    pub fn entries(&self) -> impl Iterator<Item = (String, Setting<Value>)> + use<'_, 'a> {
        self.table.iter().map(|(name, value)| {
            let origin = Origin::profile(self.source.place(name.span().start));
            (name.get_ref().to_string(), Setting::new(to_json(value.get_ref()), origin))
        })
    }

    /// Ends the reading: a key that nobody asked for is an error.
    pub fn finish(self) -> Result<(), ConfigError> {
        let asked = self.asked.borrow();
        for (name, _) in self.table {
            let key = name.get_ref().as_ref();
            if !asked.contains(&key) {
                return Err(ConfigError::UnknownKey {
                    place: self.source.place(name.span().start),
                    key: self.full_name(key),
                    nearest: nearest(key, asked.iter().copied()).map(|near| self.full_name(&near)),
                    known: asked.iter().map(|known| self.full_name(known)).collect(),
                });
            }
        }
        Ok(())
    }
}

/// A TOML value as JSON; dates become texts.
pub(crate) fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).map_or(Value::Null, Value::from)
        }
        DeValue::Float(float) => float.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(items) => items.iter().map(|item| to_json(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, value)| (key.get_ref().to_string(), to_json(value.get_ref())))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}
