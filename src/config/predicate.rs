//! Conditions over facts, the one small language of profiles, patches and lints.
//!
//! A text is a comparison: `model.attention == mla`, `engine.vllm >= 0.18`, `gpu.name contains "PRO 6000"`,
//! `engine.device in [cpu, cuda]`; a name alone asks for yes. A list, and `{ all = […] }`, hold when all
//! hold; `{ any = […] }` when one does; `{ not = … }` when it does not. A fact that is not known makes a
//! condition neither true nor false.

use std::cmp::Ordering;
use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use super::error::{ConfigError, nearest};
use super::toml_section::Source;
use crate::facts::{ComputeCapability, EngineVersion, FACT_NAMES, FactKind, FactSet, FactValue, fact_kind};
use crate::units::Bytes;

/// Conditions nest no deeper.
const MAX_DEPTH: usize = 16;

/// A condition over facts.
#[derive(Debug, Clone, PartialEq)]
pub enum Predicate {
    /// One fact against a value.
    Compare {
        /// Name of the fact.
        fact: &'static str,
        /// How.
        operator: Operator,
        /// Against what; several only with `in`.
        values: Vec<FactValue>,
    },
    /// All hold.
    All(Vec<Predicate>),
    /// One holds.
    Any(Vec<Predicate>),
    /// It does not hold.
    Not(Box<Predicate>),
}

/// How a fact is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Below,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// A text has this part, a list this word.
    Contains,
    /// One of several.
    In,
}

/// The longer signs first: `>` is a prefix of `>=`.
const OPERATORS: &[(&str, Operator)] = &[
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    (">", Operator::Above),
    ("<", Operator::Below),
    ("contains ", Operator::Contains),
    ("in ", Operator::In),
];

impl Operator {
    fn sign(self) -> &'static str {
        OPERATORS.iter().find(|(_, known)| *known == self).map_or("", |(sign, _)| sign.trim_end())
    }

    const fn orders(self) -> bool {
        matches!(self, Self::Below | Self::AtMost | Self::Above | Self::AtLeast)
    }
}

/// What a condition comes to, with the facts that decide it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not, because.
    False(String),
    /// It cannot be told, because.
    Unknown(String),
}

impl Truth {
    /// Does it hold for sure?
    #[must_use]
    pub const fn is_true(&self) -> bool {
        matches!(self, Self::True)
    }

    /// Why it does not hold or cannot be told; empty when it holds.
    #[must_use]
    pub fn because(&self) -> &str {
        match self {
            Self::True => "",
            Self::False(why) | Self::Unknown(why) => why,
        }
    }
}

impl Predicate {
    /// Reads a condition from a TOML value.
    pub(crate) fn read(
        source: Source<'_>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Self, ConfigError> {
        Self::read_at(source, key, value, 0)
    }

    fn read_at(
        source: Source<'_>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        depth: usize,
    ) -> Result<Self, ConfigError> {
        let bad = |message: String| ConfigError::BadValue {
            place: source.place(value.span().start),
            key: key.to_owned(),
            message,
        };
        if depth > MAX_DEPTH {
            return Err(bad(format!("nests deeper than {MAX_DEPTH}")));
        }
        let list = |items: &Spanned<DeValue<'_>>| {
            let items =
                items.get_ref().as_array().ok_or_else(|| bad("must be a list of conditions".to_owned()))?;
            if items.is_empty() {
                return Err(bad("has no conditions".to_owned()));
            }
            items
                .iter()
                .map(|item| Self::read_at(source, key, item, depth + 1))
                .collect::<Result<Vec<_>, _>>()
        };
        match value.get_ref() {
            DeValue::String(text) => Self::parse(text).map_err(bad),
            DeValue::Array(_) => Ok(Self::All(list(value)?)),
            DeValue::Table(table) if table.len() == 1 => {
                let Some((name, inner)) = table.iter().next() else { return Err(bad("is empty".to_owned())) };
                match name.get_ref().as_ref() {
                    "all" => Ok(Self::All(list(inner)?)),
                    "any" => Ok(Self::Any(list(inner)?)),
                    "not" => Ok(Self::Not(Box::new(Self::read_at(source, key, inner, depth + 1)?))),
                    other => Err(bad(format!("has `{other}` where `all`, `any` or `not` is expected"))),
                }
            }
            _ => Err(bad(
                "must be a condition such as \"engine.vllm >= 0.18\", or a table with one of `all`, `any`, `not`"
                    .to_owned(),
            )),
        }
    }

    /// Parses one comparison.
    ///
    /// # Errors
    /// What is wrong and what would be right, as the end of a sentence about the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end =
            text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let Some((fact, kind, _)) = FACT_NAMES.iter().find(|(known, ..)| *known == name) else {
            let near = nearest(name, FACT_NAMES.iter().map(|(known, ..)| *known));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            return Err(format!("names no fact: `{}`{hint}", shortened(name)));
        };
        let rest = rest.trim_start();
        if rest.is_empty() {
            return match kind {
                FactKind::Flag => {
                    Ok(Self::Compare { fact, operator: Operator::Equal, values: vec![FactValue::Flag(true)] })
                }
                _ => Err(format!("compares `{fact}` with nothing; write `{fact} == …`")),
            };
        }
        let found = OPERATORS.iter().find_map(|(sign, operator)| Some((*operator, rest.strip_prefix(sign)?)));
        let Some((operator, literal)) = found else {
            return Err(format!(
                "has `{}` where one of ==, !=, <, <=, >, >=, contains, in is expected",
                shortened(rest)
            ));
        };
        let literal = literal.trim();
        let literals: Vec<&str> = match operator {
            Operator::In => literal
                .strip_prefix('[')
                .and_then(|inner| inner.strip_suffix(']'))
                .ok_or_else(|| format!("must give a list after `in`: `{fact} in [a, b]`"))?
                .split(',')
                .map(str::trim)
                .collect(),
            _ => vec![literal],
        };
        if matches!(kind, FactKind::Text | FactKind::List | FactKind::Flag) && operator.orders() {
            return Err(format!("cannot put `{fact}` into an order; use == or !="));
        }
        if operator == Operator::Contains && !matches!(kind, FactKind::Text | FactKind::List) {
            return Err(format!("`{fact}` has no parts; use =="));
        }
        if *kind == FactKind::List && operator != Operator::Contains {
            return Err(format!("`{fact}` is a list; use `contains`"));
        }
        let values = literals
            .into_iter()
            .map(|literal| parse_literal(fact, *kind, literal))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Compare { fact, operator, values })
    }

    /// Holds the condition against facts.
    #[must_use]
    pub fn judge(&self, facts: &FactSet) -> Truth {
        match self {
            Self::Compare { fact, operator, values } => compare(facts, fact, *operator, values),
            Self::All(conditions) => {
                let mut unknown = None;
                for truth in conditions.iter().map(|condition| condition.judge(facts)) {
                    match truth {
                        Truth::True => {}
                        Truth::False(_) => return truth,
                        Truth::Unknown(why) => unknown = unknown.or(Some(why)),
                    }
                }
                unknown.map_or(Truth::True, Truth::Unknown)
            }
            Self::Any(conditions) => {
                let (mut unknown, mut no) = (None, Vec::new());
                for truth in conditions.iter().map(|condition| condition.judge(facts)) {
                    match truth {
                        Truth::True => return Truth::True,
                        Truth::False(why) => no.push(why),
                        Truth::Unknown(why) => unknown = unknown.or(Some(why)),
                    }
                }
                unknown.map_or_else(|| Truth::False(no.join("; ")), Truth::Unknown)
            }
            Self::Not(condition) => match condition.judge(facts) {
                Truth::True => Truth::False(format!("{condition} holds")),
                Truth::False(_) => Truth::True,
                unknown @ Truth::Unknown(_) => unknown,
            },
        }
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |conditions: &[Self], word: &str| {
            let texts: Vec<String> = conditions.iter().map(ToString::to_string).collect();
            texts.join(word)
        };
        match self {
            Self::Compare { fact, operator: Operator::Equal, values }
                if values.first() == Some(&FactValue::Flag(true)) =>
            {
                f.write_str(fact)
            }
            Self::Compare { fact, operator: Operator::In, values } => {
                let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "{fact} in [{}]", texts.join(", "))
            }
            Self::Compare { fact, operator, values } => {
                write!(f, "{fact} {}", operator.sign())?;
                values.first().map_or(Ok(()), |value| write!(f, " {value}"))
            }
            Self::All(conditions) => f.write_str(&joined(conditions, " and ")),
            Self::Any(conditions) => write!(f, "({})", joined(conditions, " or ")),
            Self::Not(condition) => write!(f, "not ({condition})"),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

fn parse_literal(fact: &str, kind: FactKind, literal: &str) -> Result<FactValue, String> {
    let quoted = literal.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    let text = quoted.unwrap_or(literal);
    let bad = |what: &str| format!("compares `{fact}` with `{}`, which is no {what}", shortened(text));
    if text.is_empty() {
        return Err(format!("compares `{fact}` with nothing"));
    }
    if text == "none" && quoted.is_none() {
        return Ok(FactValue::Nothing);
    }
    Ok(match kind {
        FactKind::Text | FactKind::List => FactValue::Text(text.to_owned()),
        FactKind::Number => FactValue::Number(text.parse().map_err(|_| bad("whole number"))?),
        FactKind::Size => FactValue::Size(text.parse::<Bytes>().map_err(|_| bad("size such as `90GiB`"))?),
        FactKind::Version => {
            FactValue::Version(text.parse::<EngineVersion>().map_err(|_| bad("version such as `0.18.0`"))?)
        }
        FactKind::Capability => FactValue::Capability(
            text.parse::<ComputeCapability>().map_err(|_| bad("compute capability such as `12.0`"))?,
        ),
        FactKind::Flag => match text {
            "true" => FactValue::Flag(true),
            "false" => FactValue::Flag(false),
            _ => return Err(bad("`true` or `false`")),
        },
    })
}

fn compare(facts: &FactSet, fact: &'static str, operator: Operator, values: &[FactValue]) -> Truth {
    let Some(found) = facts.get(fact) else { return Truth::Unknown(format!("{fact} is not known")) };
    let same = |value: &FactValue| match (found, value) {
        (FactValue::Text(found), FactValue::Text(value)) => found.eq_ignore_ascii_case(value),
        (found, value) => found == value,
    };
    let order = |value: &FactValue| match (found, value) {
        (FactValue::Number(found), FactValue::Number(value)) => Some(found.cmp(value)),
        (FactValue::Size(found), FactValue::Size(value)) => Some(found.cmp(value)),
        (FactValue::Version(found), FactValue::Version(value)) => Some(found.cmp(value)),
        (FactValue::Capability(found), FactValue::Capability(value)) => Some(found.cmp(value)),
        _ => None,
    };
    let has = |value: &FactValue| match (found, value) {
        (FactValue::Text(found), FactValue::Text(part)) => {
            found.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
        }
        (FactValue::List(items), FactValue::Text(word)) => items.contains(word),
        _ => false,
    };
    let holds = values.iter().any(|value| match operator {
        Operator::Equal | Operator::In => same(value),
        Operator::NotEqual => !same(value),
        Operator::Below => order(value) == Some(Ordering::Less),
        Operator::AtMost => matches!(order(value), Some(Ordering::Less | Ordering::Equal)),
        Operator::Above => order(value) == Some(Ordering::Greater),
        Operator::AtLeast => matches!(order(value), Some(Ordering::Greater | Ordering::Equal)),
        Operator::Contains => has(value),
    });
    if holds {
        return Truth::True;
    }
    let wanted: Vec<String> = values.iter().map(ToString::to_string).collect();
    let wanted = wanted.join(", ");
    Truth::False(match fact_kind(fact) {
        Some(FactKind::Flag) => format!("{fact} is {found}"),
        _ => format!("{fact} is {found}, not {} {wanted}", operator.sign()),
    })
}

#[cfg(test)]
mod tests;
