//! Bytes outside an edit stay; what is taken back is the same text.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{EditError, Operation, Step, apply_splices, edit_json, revert_splices};

fn step(pointer: &str, operation: Operation) -> Step {
    Step { pointer: pointer.to_owned(), operation, if_present: false }
}

fn edited(text: &str, pointer: &str, operation: Operation) -> String {
    let edited = edit_json(text.as_bytes(), &[step(pointer, operation)]).expect(text);
    assert_eq!(revert_splices(&edited.text, &edited.splices).as_deref(), Some(text), "{pointer}");
    assert_eq!(apply_splices(text, &edited.splices).as_ref(), Some(&edited.text), "{pointer}");
    edited.text
}

#[test]
fn only_the_bytes_of_the_value_change() {
    let text = "{\n  \"a\": 1e-05,\n  \"b\": {\"c\": [1, 2.50, -0.0], \"\\u00e4/~\": 123456789012345678901234567890},\n  \"d\": \"\\u2028\"\r\n}\n";
    for (pointer, operation, expected) in [
        ("/a", Operation::Remove, text.replace("\"a\": 1e-05,\n  ", "")),
        ("/d", Operation::Remove, text.replace(",\n  \"d\": \"\\u2028\"", "")),
        ("/b/c/1", Operation::Remove, text.replace("2.50, ", "")),
        ("/b/c/2", Operation::Remove, text.replace(", -0.0", "")),
        ("/b/c", Operation::Replace(Value::Null), text.replace("[1, 2.50, -0.0]", "null")),
        ("/b/ä~1~0", Operation::Replace(json!(1)), text.replace("123456789012345678901234567890", "1")),
        ("/b/c/-", Operation::Add(json!("x")), text.replace("-0.0]", "-0.0, \"x\"]")),
        ("/b/c/1", Operation::Add(json!(7)), text.replace("2.50", "7, 2.50")),
        ("/b/c/0", Operation::Add(json!(7)), text.replace("[1", "[7, 1")),
        (
            "/e",
            Operation::Add(json!({"f": []})),
            text.replace("\\u2028\"", "\\u2028\",\n  \"e\": {\"f\":[]}"),
        ),
        ("/d", Operation::Add(json!("new")), text.replace("\"\\u2028\"", "\"new\"")),
        ("/a", Operation::Test(json!(0.00001)), text.to_owned()),
    ] {
        assert_eq!(edited(text, pointer, operation), expected, "{pointer}");
    }
    assert_eq!(edited("{\"a\":1}", "/a", Operation::Remove), "{}");
    assert_eq!(edited("{ }", "/a", Operation::Add(json!(1))), "{\"a\": 1 }");
    assert_eq!(edited("[[],{}]", "/0/-", Operation::Add(json!(1))), "[[1],{}]");
}

#[test]
fn what_does_not_apply_says_why() {
    let text = br#"{"a": {"b": [1]}, "twice": 1, "twice": 2, "t": {"k": 1}}"#;
    for (pointer, operation, expected) in [
        ("/x", Operation::Remove, "there is no `/x`"),
        ("/a/b/1", Operation::Replace(json!(1)), "there is no `/a/b/1`"),
        ("/a/b/01", Operation::Remove, "there is no `/a/b/01`"),
        ("/a/b/5", Operation::Add(json!(1)), "there is no `/a/b/5`"),
        ("/a/b/0/c", Operation::Add(json!(1)), "there is no `/a/b/0/c`"),
        ("/twice", Operation::Remove, "`twice` stands twice"),
        ("/t/k", Operation::Test(json!(2)), "`/t/k` is 1, expected 2"),
        ("a", Operation::Remove, "no JSON Pointer"),
        ("", Operation::Remove, "there is no ``"),
    ] {
        let error = edit_json(text, &[step(pointer, operation)]).expect_err(pointer).to_string();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    let quiet = Step { pointer: "/a/x/y".to_owned(), operation: Operation::Remove, if_present: true };
    assert!(edit_json(text, &[quiet]).expect("passed over").splices.is_empty());
}

#[test]
fn hostile_texts_are_refused_in_words() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let large = vec![b' '; super::super::json_text::MAX_TEXT_BYTES + 1];
    for (bytes, expected) in [
        (&b"\xef\xbb\xbf{}"[..], "byte order mark"),
        (b"{\"a\": \"\xff\"}", "not UTF-8 text: the first wrong byte is at 7"),
        (b"{\"a\": 1", "not JSON: EOF"),
        (deep.as_bytes(), "recursion limit"),
        (&large, "more than the"),
    ] {
        let error = edit_json(bytes, &[]).expect_err(expected);
        assert!(matches!(error, EditError::Text(_)) && error.to_string().contains(expected), "{error}");
    }
}

/// A JSON text with spellings that a value tree would not keep.
fn spelled() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1e-05".to_owned()),
        Just("-0.0".to_owned()),
        Just("0.10".to_owned()),
        Just("1E+2".to_owned()),
        "[1-9][0-9]{20,40}",
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        Just("\"\\u00e9\\ud83d\\ude00\\/\"".to_owned()),
    ];
    let value = scalar.prop_recursive(8, 64, 5, |inner| {
        let blank = prop_oneof![Just(""), Just(" "), Just("\n  "), Just("\r\n\t")];
        prop_oneof![
            (blank.clone(), prop::collection::vec(inner.clone(), 0..5))
                .prop_map(|(blank, items)| format!("[{blank}{}{blank}]", items.join(&format!(",{blank}")))),
            (blank, prop::collection::btree_map("[a-zé/~\"\\\\]{0,4}", inner, 0..5)).prop_map(
                |(blank, members)| {
                    let members: Vec<String> = members
                        .into_iter()
                        .map(|(key, value)| format!("{}{blank}:{blank}{value}", Value::from(key)))
                        .collect();
                    format!("{{{blank}{}{blank}}}", members.join(&format!("{blank},{blank}")))
                }
            ),
        ]
    });
    value.prop_map(|value| format!("{{\"root\": {value}}}"))
}

/// Every pointer of a value but the root's.
fn pointers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, found: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(object) => object.iter().map(|(key, value)| (super::escape(key), value)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
            }
            _ => Vec::new(),
        };
        for (part, child) in children {
            let here = format!("{at}/{part}");
            found.push(here.clone());
            walk(child, &here, found);
        }
    }
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

proptest! {
    #[test]
    fn what_is_applied_can_be_taken_back(text in spelled(), picks in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8), 1..5)) {
        let value: Value = serde_json::from_str(&text).expect("made as JSON");
        let known = pointers(&value);
        let steps: Vec<Step> = picks.iter().map(|(index, kind)| Step {
            pointer: match kind {
                3 => {
                    let pointer = index.get(&known);
                    let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
                    let list = value.pointer(parent).is_some_and(Value::is_array);
                    if list { format!("{parent}/-") } else { format!("{parent}/new") }
                }
                _ => index.get(&known).clone(),
            },
            operation: match kind {
                0 => Operation::Remove,
                1 => Operation::Replace(Value::Null),
                2 => Operation::Replace(json!({"deep": [1.5, "ü"]})),
                _ => Operation::Add(json!("added")),
            },
            if_present: true,
        }).collect();
        let edited = edit_json(text.as_bytes(), &steps).expect("applies");
        let back = revert_splices(&edited.text, &edited.splices);
        prop_assert_eq!(back.as_deref(), Some(text.as_str()));
        let again = apply_splices(&text, &edited.splices);
        prop_assert_eq!(again.as_ref(), Some(&edited.text));
    }

    #[test]
    fn removing_and_setting_twice_is_once(text in spelled(), pick in any::<prop::sample::Index>(), remove in any::<bool>()) {
        let value: Value = serde_json::from_str(&text).expect("made as JSON");
        // A removed item of a list makes room for the next one: only members can be idempotent.
        let members: Vec<String> = pointers(&value).into_iter().filter(|pointer| {
            let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            value.pointer(parent).is_some_and(Value::is_object)
        }).collect();
        let operation = if remove { Operation::Remove } else { Operation::Replace(Value::Null) };
        let steps = [Step { pointer: pick.get(&members).clone(), operation, if_present: true }];
        let once = edit_json(text.as_bytes(), &steps).expect("applies");
        let twice = edit_json(once.text.as_bytes(), &steps).expect("applies again");
        prop_assert!(twice.splices.is_empty());
        prop_assert_eq!(twice.text, once.text);
    }
}
