//! `--patches`: which edits of a checkpoint are wanted.

use std::fmt;
use std::str::FromStr;

/// Which patches are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchesWanted {
    /// Those that the facts call for.
    pub auto: bool,
    /// Those that are named, in order.
    pub named: Vec<NamedPatch>,
}

/// A patch by name, with the file that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPatch {
    /// Its name.
    pub name: String,
    /// `NAME=FILE`.
    pub argument: Option<String>,
}

/// Why `--patches` cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatchesError {
    /// Nothing between commas.
    #[error("has an empty name; write `auto`, `none`, or names separated by commas")]
    Empty,
    /// `none` with others.
    #[error("says `none` and more")]
    NoneAndMore,
}

impl Default for PatchesWanted {
    fn default() -> Self {
        Self { auto: true, named: Vec::new() }
    }
}

impl FromStr for PatchesWanted {
    type Err = ParsePatchesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        if words.contains(&"none") {
            return match words.len() {
                1 => Ok(Self { auto: false, named: Vec::new() }),
                _ => Err(ParsePatchesError::NoneAndMore),
            };
        }
        let mut wanted = Self { auto: false, named: Vec::new() };
        for word in words {
            let (name, argument) = match word.split_once('=') {
                Some((name, argument)) => (name.trim(), Some(argument.to_owned())),
                None => (word, None),
            };
            if name.is_empty() || argument.as_deref() == Some("") {
                return Err(ParsePatchesError::Empty);
            }
            if name == "auto" && argument.is_none() {
                wanted.auto = true;
            } else if wanted.named.iter().all(|known| known.name != name) {
                wanted.named.push(NamedPatch { name: name.to_owned(), argument });
            }
        }
        Ok(wanted)
    }
}

impl fmt::Display for PatchesWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|patch| match &patch.argument {
            Some(argument) => format!("{}={argument}", patch.name),
            None => patch.name.clone(),
        });
        let words: Vec<String> = self.auto.then(|| "auto".to_owned()).into_iter().chain(named).collect();
        f.pad(&if words.is_empty() { "none".to_owned() } else { words.join(",") })
    }
}

#[cfg(test)]
mod tests {
    use super::PatchesWanted;

    #[test]
    fn words_are_read_and_printed_the_same() {
        for text in ["auto", "none", "a", "a,b", "auto,fix-chat-template=./x y.jinja"] {
            assert_eq!(text.parse::<PatchesWanted>().expect(text).to_string(), text);
        }
        assert_eq!("a, a ,b".parse::<PatchesWanted>().expect("good").to_string(), "a,b");
        for bad in ["", ",", "a,", "none,a", "=x", "a="] {
            assert!(bad.parse::<PatchesWanted>().is_err(), "{bad:?}");
        }
    }
}
