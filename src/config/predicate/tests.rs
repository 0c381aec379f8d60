//! Reading, judging and the sentences in between.

use toml::de::DeTable;

use super::{Predicate, Truth};
use crate::config::toml_section::{Section, Source};
use crate::facts::{FactSet, FactValue};

fn facts() -> FactSet {
    let mut facts = FactSet::default();
    facts.set("engine.vllm", Some(FactValue::Version("0.15.1+cu129".parse().expect("good"))));
    facts.set("gpu.compute_capability", Some(FactValue::Capability("12.0".parse().expect("good"))));
    facts.set("gpu.count", Some(FactValue::Number(8)));
    facts.set("gpu.name", Some(FactValue::Text("NVIDIA RTX PRO 6000 Blackwell".to_owned())));
    facts.set("gpu.memory", Some(FactValue::Size(crate::units::Bytes::from_gib(95))));
    facts.set("model.attention", Some(FactValue::Text("mla".to_owned())));
    facts.set("model.kv_cache_dtype", Some(FactValue::Nothing));
    facts.set("kv.supported", Some(FactValue::Flag(false)));
    facts.set("model.files", Some(FactValue::List(vec!["config.json".to_owned()])));
    facts
}

fn judged(text: &str) -> Truth {
    Predicate::parse(text).expect(text).judge(&facts())
}

#[test]
fn comparisons_follow_the_kind_of_the_fact() {
    for text in [
        "engine.vllm >= 0.15",
        "engine.vllm < 0.18.0",
        "engine.vllm != 0.9",
        "engine.vllm in [0.14.1, 0.15.1]",
        "gpu.compute_capability >= 9.0",
        "gpu.compute_capability == 12.0",
        "gpu.count > 4",
        "gpu.memory >= 90GiB",
        "gpu.name contains \"pro 6000\"",
        "model.attention == MLA",
        "model.attention in [mla, mla-sparse]",
        "model.kv_cache_dtype == none",
        "model.kv_cache_dtype != fp8",
        "kv.supported == false",
        "model.files contains config.json",
    ] {
        assert_eq!(judged(text), Truth::True, "{text}");
    }
    for (text, why) in [
        ("engine.vllm >= 0.18", "engine.vllm is 0.15.1+cu129, not >= 0.18"),
        ("kv.supported", "kv.supported is false"),
        ("model.kv_cache_dtype == fp8", "model.kv_cache_dtype is none, not == fp8"),
        ("model.attention == standard", "model.attention is mla, not == standard"),
    ] {
        assert_eq!(judged(text), Truth::False(why.to_owned()), "{text}");
    }
    assert_eq!(judged("model.type == kimi"), Truth::Unknown("model.type is not known".to_owned()));
}

#[test]
fn an_unknown_fact_decides_nothing_that_others_decide() {
    let read = |text: &str| {
        let parsed = DeTable::parse(text).expect(text);
        let source = Source { file: "p.toml", text };
        Section::new(source, "", parsed.get_ref()).predicate("when").expect(text).expect("there").value
    };
    let unknown = "\"model.type == x\"";
    let (yes, no) = ("\"gpu.count == 8\"", "\"gpu.count == 1\"");
    for (text, expected) in [
        (format!("[{yes}, {unknown}]"), None),
        (format!("[{no}, {unknown}]"), Some(false)),
        (format!("{{ any = [{yes}, {unknown}] }}"), Some(true)),
        (format!("{{ any = [{no}, {unknown}] }}"), None),
        (format!("{{ not = {unknown} }}"), None),
        (format!("{{ not = {no} }}"), Some(true)),
        (format!("{{ all = [{yes}, {{ not = {{ any = [{no}] }} }}] }}"), Some(true)),
    ] {
        let truth = read(&format!("when = {text}")).judge(&facts());
        let found = match truth {
            Truth::True => Some(true),
            Truth::False(_) => Some(false),
            Truth::Unknown(_) => None,
        };
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn mistakes_point_at_their_line() {
    for (text, expected) in [
        (
            "when = \"engine.vlm >= 1\"",
            "p.toml:1: `when` names no fact: `engine.vlm`; did you mean `engine.vllm`?",
        ),
        ("\nwhen = [\n \"gpu.count == 8\",\n \"gpu.count ~ 8\"]", "p.toml:4: `when` has `~ 8` where one of"),
        ("when = \"gpu.count == many\"", "compares `gpu.count` with `many`, which is no whole number"),
        ("when = \"gpu.count\"", "compares `gpu.count` with nothing"),
        ("when = \"engine.vllm >= new\"", "no version"),
        ("when = \"gpu.compute_capability == 12\"", "no compute capability such as `12.0`"),
        ("when = \"model.attention > mla\"", "cannot put `model.attention` into an order"),
        ("when = \"engine.vllm contains 1\"", "has no parts"),
        ("when = \"model.files == x\"", "is a list; use `contains`"),
        ("when = \"engine.vllm in 0.1\"", "must give a list"),
        ("when = { al = [] }", "has `al` where `all`, `any` or `not`"),
        ("when = []", "has no conditions"),
        ("when = 1", "must be a condition"),
        ("when = \"kv.supported == maybe\"", "no `true` or `false`"),
    ] {
        let parsed = DeTable::parse(text).expect(text);
        let source = Source { file: "p.toml", text };
        let section = Section::new(source, "", parsed.get_ref());
        let message = section.predicate("when").expect_err(text).to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
    let deep = format!("when = {}\"gpu.count == 1\"{}", "{ not = ".repeat(30), " }".repeat(30));
    let parsed = DeTable::parse(&deep).expect("TOML");
    let section = Section::new(Source { file: "p.toml", text: &deep }, "", parsed.get_ref());
    assert!(section.predicate("when").expect_err("deep").to_string().contains("nests deeper"));
}

#[test]
fn what_is_printed_reads_back_the_same() {
    for text in [
        "engine.vllm >= 0.18.0",
        "kv.supported",
        "model.attention in [mla, standard]",
        "gpu.memory >= 90.0 GiB",
    ] {
        let first = Predicate::parse(text).expect(text);
        assert_eq!(Predicate::parse(&first.to_string()).expect("again"), first, "{text}");
    }
}
