//! Words of unit files (systemd.syntax(7), systemd.service(5) "Command lines", systemd.unit(5)
//! "Specifiers"): quoting is the work.

/// A text that no unit file can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a unit file cannot hold `{shown}`: {reason}")]
pub struct UnwritableWord {
    shown: String,
    reason: &'static str,
}

/// One word, quoted where it must be, with `%` doubled so that it is no specifier.
///
/// # Errors
/// For a NUL character, which no argument and no variable can hold.
pub fn quoted(word: &str) -> Result<String, UnwritableWord> {
    if word.contains('\0') {
        let shown = word.replace('\0', "\\0");
        return Err(UnwritableWord { shown, reason: "it holds a NUL character" });
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%$".contains(c);
    let needs_quotes = word.is_empty() || !word.chars().all(plain);
    let mut text = String::with_capacity(word.len() + 2);
    for c in word.chars() {
        match c {
            '%' => text.push_str("%%"),
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if c.is_control() => {
                // As bytes: `\u` escapes are read as code points, but not by old versions.
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    text.push_str(&format!("\\x{byte:02x}"));
                }
            }
            c => text.push(c),
        }
    }
    Ok(if needs_quotes { format!("\"{text}\"") } else { text })
}

/// A command line. In arguments `$` is doubled so that it is no variable; the program's own path knows
/// no variables, and characters before it would be read as prefixes.
///
/// # Errors
/// When a word cannot be written, or the program is not an absolute path.
pub fn exec_line(words: &[String]) -> Result<String, UnwritableWord> {
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    if !program.starts_with('/') {
        return Err(UnwritableWord {
            shown: program.clone(),
            reason: "the program must be an absolute path",
        });
    }
    let mut line = quoted(program)?;
    for argument in arguments {
        line.push(' ');
        // A lone semicolon would end the command.
        match argument.as_str() {
            ";" => line.push_str("\\;"),
            argument => line.push_str(&quoted(&argument.replace('$', "$$"))?),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::{exec_line, quoted};
    use proptest::prelude::*;

    /// Reads a command line back as systemd does: split and unquote (extract-word.c with
    /// EXTRACT_UNQUOTE | EXTRACT_CUNESCAPE), specifiers, then variables.
    fn read_back(line: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut bytes: Option<Vec<u8>> = None;
        let mut quote: Option<char> = None;
        let mut chars = line.chars().peekable();
        let push = |bytes: &mut Option<Vec<u8>>, c: char| {
            bytes.get_or_insert_default().extend(c.to_string().bytes());
        };
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let byte = match chars.next().unwrap() {
                        'n' => b'\n',
                        't' => b'\t',
                        'r' => b'\r',
                        'x' => {
                            let hex: String = chars.by_ref().take(2).collect();
                            u8::from_str_radix(&hex, 16).unwrap()
                        }
                        c @ ('\\' | '"' | ';') => c as u8,
                        other => panic!("\\{other}"),
                    };
                    bytes.get_or_insert_default().push(byte);
                }
                ('"', None) => {
                    quote = Some('"');
                    bytes.get_or_insert_default();
                }
                ('"', Some('"')) => quote = None,
                ('\'', None) => panic!("a single quote outside of quotes"),
                (c, None) if c.is_ascii_whitespace() => {
                    words.extend(bytes.take().map(|bytes| String::from_utf8(bytes).unwrap()));
                }
                (c, _) => push(&mut bytes, c),
            }
        }
        assert_eq!(quote, None, "{line}");
        words.extend(bytes.take().map(|bytes| String::from_utf8(bytes).unwrap()));
        let unspecify = |word: &str| {
            assert!(!word.replace("%%", "").contains('%'), "a specifier in {word}");
            word.replace("%%", "%")
        };
        let unvary = |word: String| {
            assert!(!word.replace("$$", "").contains('$'), "a variable in {word}");
            word.replace("$$", "$")
        };
        let mut words = words.iter().map(|word| unspecify(word));
        let first = words.next().unwrap();
        std::iter::once(first).chain(words.map(unvary)).collect()
    }

    #[test]
    fn ordinary_words_stay_as_they_are_and_odd_ones_are_quoted() {
        let line = ["/usr/bin/kdeploy", "up", "a b", "100%", "$HOME", "it's", "", ";", "é", "x\ny\u{7f}"];
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let text = exec_line(&line).unwrap();
        assert_eq!(text, "/usr/bin/kdeploy up \"a b\" 100%% $$HOME \"it's\" \"\" \\; \"é\" \"x\\ny\\x7f\"");
        assert_eq!(read_back(&text), line);
        assert!(quoted("a\0b").is_err());
        assert!(exec_line(&["kdeploy".to_owned()]).is_err());
    }

    proptest! {
        #[test]
        fn every_command_line_is_read_back_as_it_was(
            words in proptest::collection::vec("[^\\x00]{0,12}", 0..6),
            odd in proptest::collection::vec(r#"[%$"'\\; \n\t\x01-\x1f\x7f-\x9fé]{0,6}"#, 0..4),
        ) {
            let mut line = vec!["/usr/bin/kdeploy".to_owned()];
            line.extend(words);
            line.extend(odd);
            let text = exec_line(&line).unwrap();
            prop_assert!(!text.contains('\n'), "a unit file has one line for it");
            prop_assert_eq!(read_back(&text), line);
        }
    }
}
