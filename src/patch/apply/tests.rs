//! Each shipped patch on the shape of a real checkpoint's files.

use serde_json::{Value, json};

use super::{PatchError, PatchedFile, Texts, apply_patches};
use crate::facts::{FactSet, FactValue, ModelFacts, QuantMarks, WeightInventory, assemble_config};
use crate::patch::{Patch, PatchLibrary, checkpoint_facts, parse_patch, revert_splices};

const KIMI: &str = include_str!("../../../tests/data/kimi-k2.5-nvfp4/config.json");
const KIMI_QUANT: &str = include_str!("../../../tests/data/kimi-k2.5-nvfp4/hf_quant_config.json");

fn texts(files: &[(&str, &str)]) -> Texts {
    files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
}

/// A checkpoint with these texts and tensors; a tensor that ends in `.weight` is a matrix.
fn model(files: &[(&str, &str)], tensors: &[&str], layers: u64) -> ModelFacts {
    let texts = texts(files);
    let (config, _) = assemble_config(&texts).expect("good files");
    let mut marks = QuantMarks::default();
    for tensor in tensors {
        let placed = WeightInventory::default().add(tensor, 1, Some(layers));
        marks.add(tensor, tensor.ends_with(".weight"), placed);
    }
    ModelFacts { config: Some(config), texts, marks, ..ModelFacts::default() }
}

fn facts(model: &ModelFacts, engine: &str) -> FactSet {
    let mut facts = checkpoint_facts(model);
    facts.set("engine.vllm", Some(FactValue::Version(engine.parse().expect(engine))));
    facts
}

fn shipped(name: &str) -> Patch {
    PatchLibrary::embedded().expect("embedded").get(name).expect(name).clone()
}

fn is_needed(patch: &Patch, facts: &FactSet) -> bool {
    patch.when.as_ref().is_some_and(|when| when.judge(facts).is_true())
}

/// Applies a patch; taking it back and applying it twice are checked on the way.
fn applied(
    name: &str,
    model: &ModelFacts,
    facts: &FactSet,
    argument: Option<&str>,
) -> (Texts, Vec<PatchedFile>) {
    let patch = shipped(name);
    let (after, files) = apply_patches(&[(&patch, argument)], facts, &model.texts).expect(name);
    for file in &files {
        let text = String::from_utf8(after[&file.path].clone()).expect("UTF-8");
        let back = revert_splices(&text, &file.splices).expect("reverts");
        let before = model.texts.get(&file.path).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert_eq!(back, before.unwrap_or_default(), "{name} {}", file.path);
        assert_eq!(
            file.make(model.texts.get(&file.path).map(Vec::as_slice)).expect("makes"),
            after[&file.path]
        );
    }
    match apply_patches(&[(&patch, argument)], facts, &after) {
        Err(PatchError::NothingToChange { .. }) => {}
        Ok((again, files)) => assert!(again == after && files.is_empty(), "{name}: twice is not once"),
        Err(error) => panic!("{name}: {error}"),
    }
    (after, files)
}

fn json_of(texts: &Texts, file: &str) -> Value {
    serde_json::from_slice(&texts[file]).expect("JSON")
}

#[test]
fn drop_fp8_kv_cache_edits_both_files_and_nothing_else() {
    let model = model(&[("config.json", KIMI), ("hf_quant_config.json", KIMI_QUANT)], &[], 61);
    let mut facts = facts(&model, "0.15.1");
    facts.set("kv.dtype", Some(FactValue::Text("fp8".to_owned())));
    facts.set("kv.supported", Some(FactValue::Flag(false)));
    let patch = shipped("drop-fp8-kv-cache");
    assert!(is_needed(&patch, &facts));
    let (after, files) = applied("drop-fp8-kv-cache", &model, &facts, None);
    let pointers: Vec<(&str, &str)> = files
        .iter()
        .flat_map(|file| file.changes.iter().map(|change| (file.path.as_str(), change.pointer.as_str())))
        .collect();
    assert_eq!(
        pointers,
        [
            ("config.json", "/quantization_config/kv_cache_scheme"),
            ("hf_quant_config.json", "/quantization/kv_cache_quant_algo")
        ]
    );
    let mut expected: Value = serde_json::from_str(KIMI).expect("JSON");
    expected["quantization_config"].as_object_mut().expect("an object").shift_remove("kv_cache_scheme");
    assert_eq!(json_of(&after, "config.json"), expected);
    let mut expected: Value = serde_json::from_str(KIMI_QUANT).expect("JSON");
    expected["quantization"]["kv_cache_quant_algo"] = Value::Null;
    assert_eq!(json_of(&after, "hf_quant_config.json"), expected, "null, and never deleted");
    let (config, _) = assemble_config(&after).expect("still good");
    assert_eq!(config.quantization.expect("still quantised").kv_cache, None);
    // Not where the backend stores it, and not where nothing is declared.
    facts.set("kv.supported", Some(FactValue::Flag(true)));
    assert!(!is_needed(&patch, &facts));
    facts.set("kv.supported", None);
    assert!(!is_needed(&patch, &facts), "unknown is no reason to change a file");
}

#[test]
fn every_place_of_the_declaration_is_found() {
    let legacy = r#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":[]}}"#;
    for (name, config, quant) in [
        ("legacy", r#"{"architectures":["DeepseekV3ForCausalLM"]}"#, Some(legacy)),
        (
            "flat",
            r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}}"#,
            None,
        ),
        (
            "nested",
            r#"{"quantization_config":{"quant_method":"modelopt","quantization":{"quant_algo":"FP8","kv_cache_quant_algo":"FP8"}}}"#,
            None,
        ),
        (
            "text model",
            r#"{"text_config":{"quantization_config":{"quant_method":"modelopt","kv_cache_scheme":{"num_bits":8,"type":"float","dynamic":false}}}}"#,
            None,
        ),
        (
            "flat in the file",
            r#"{"architectures":["x"]}"#,
            Some(
                r#"{"producer":{"name":"modelopt"},"kv_cache_quant_algo":"fp8","quantization":{"quant_algo":"FP8"}}"#,
            ),
        ),
    ] {
        let mut files = vec![("config.json", config)];
        files.extend(quant.map(|quant| ("hf_quant_config.json", quant)));
        let model = model(&files, &[], 61);
        assert!(
            model
                .config
                .as_ref()
                .and_then(|config| config.quantization.as_ref()?.kv_cache.as_ref())
                .is_some(),
            "{name}"
        );
        let facts = facts(&model, "0.32.0");
        let (after, _) = applied("drop-fp8-kv-cache", &model, &facts, None);
        let (config, _) = assemble_config(&after).expect(name);
        let quantization = config.quantization.expect(name);
        assert_eq!(quantization.kv_cache, None, "{name}");
        // The key that vLLM asks for is still there where it was.
        for (file, text) in &files {
            let (before, now) = (
                text.matches("kv_cache_quant_algo").count(),
                String::from_utf8_lossy(&after[*file]).matches("kv_cache_quant_algo").count(),
            );
            assert_eq!(before, now, "{name} {file}");
        }
    }
}

#[test]
fn sync_quant_configs_follows_config_json() {
    let without = KIMI.replace("\"kv_cache_scheme\"", "\"other_scheme\"");
    let silent = model(&[("config.json", &without), ("hf_quant_config.json", KIMI_QUANT)], &[], 61);
    let named = facts(&silent, "0.32.0");
    assert!(is_needed(&shipped("sync-quant-configs"), &named));
    let (after, _) = applied("sync-quant-configs", &silent, &named, None);
    assert_eq!(json_of(&after, "hf_quant_config.json")["quantization"]["kv_cache_quant_algo"], Value::Null);
    let other = KIMI_QUANT.replace("\"FP8\"", "null");
    let speaking = model(&[("config.json", KIMI), ("hf_quant_config.json", &other)], &[], 61);
    let named = facts(&speaking, "0.32.0");
    assert!(is_needed(&shipped("sync-quant-configs"), &named));
    let (after, _) = applied("sync-quant-configs", &speaking, &named, None);
    assert_eq!(json_of(&after, "hf_quant_config.json")["quantization"]["kv_cache_quant_algo"], json!("FP8"));
    let agreed = model(&[("config.json", KIMI), ("hf_quant_config.json", KIMI_QUANT)], &[], 61);
    assert!(!is_needed(&shipped("sync-quant-configs"), &facts(&agreed, "0.32.0")));
    let legacy = model(&[("config.json", "{}"), ("hf_quant_config.json", KIMI_QUANT)], &[], 61);
    assert!(!is_needed(&shipped("sync-quant-configs"), &facts(&legacy, "0.32.0")), "one file speaks");
}

/// GLM-4.7 and DeepSeek keep the layer behind the last one, Qwen3.5 keeps `mtp.*` (links of the patch).
#[test]
fn exclude_mtp_layers_adds_what_the_tensors_prove() {
    for (list, tensors, layers, expected) in [
        (
            "lm_head",
            &[
                "model.layers.0.mlp.up_proj.weight",
                "model.layers.0.mlp.up_proj.weight_scale",
                "model.layers.92.mlp.up_proj.weight",
                "model.layers.92.eh_proj.weight",
            ][..],
            92,
            Some("model.layers.92*"),
        ),
        ("lm_head", &["mtp.layers.0.mlp.up_proj.weight", "mtp.fc.weight"], 60, Some("mtp*")),
        ("model.layers.92*", &["model.layers.92.mlp.up_proj.weight"], 92, None),
        (
            "lm_head",
            &["model.layers.92.mlp.up_proj.weight", "model.layers.92.mlp.up_proj.weight_scale"],
            92,
            None,
        ),
    ] {
        let config = format!(
            "{{\n  \"num_hidden_layers\": {layers},\n  \"quantization_config\": {{\n    \"quant_method\": \"modelopt\",\n    \"quant_algo\": \"NVFP4\",\n    \"ignore\": [\n      \"{list}\"\n    ]\n  }}\n}}\n"
        );
        let quant = format!(
            r#"{{"producer":{{"name":"modelopt"}},"quantization":{{"quant_algo":"NVFP4","kv_cache_quant_algo":null,"exclude_modules":["{list}"]}}}}"#
        );
        let model = model(&[("config.json", &config), ("hf_quant_config.json", &quant)], tensors, layers);
        let facts = facts(&model, "0.32.0");
        assert_eq!(is_needed(&shipped("exclude-mtp-layers"), &facts), expected.is_some(), "{tensors:?}");
        let Some(expected) = expected else { continue };
        let (after, files) = applied("exclude-mtp-layers", &model, &facts, None);
        assert_eq!(files.len(), 2);
        assert_eq!(json_of(&after, "config.json")["quantization_config"]["ignore"], json!([list, expected]));
        assert_eq!(
            json_of(&after, "hf_quant_config.json")["quantization"]["exclude_modules"],
            json!([list, expected])
        );
        assert!(
            String::from_utf8_lossy(&after["config.json"])
                .contains(&format!("\"{list}\",\n      \"{expected}\"\n    ]")),
            "in the layout of the list"
        );
    }
}

/// Qwen3.6-35B-A3B-NVFP4: scales beside the output projection, and `lm_head*` in the list.
#[test]
fn exclude_quantised_lm_head_makes_the_list_true() {
    let config = |list: &str| {
        format!(
            r#"{{"quantization_config":{{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":[{list}]}}}}"#
        )
    };
    let quantised =
        ["lm_head.weight", "lm_head.weight_scale", "lm_head.weight_scale_2", "lm_head.input_scale"];
    for (list, tensors, engine, expected) in [
        (r#""lm_head*","mtp*""#, &quantised[..], "0.32.0", Some(json!(["mtp*"]))),
        (r#""model.embed","lm_head""#, &quantised, "0.20.0", Some(json!(["model.embed"]))),
        (r#""mtp*""#, &["lm_head.weight"], "0.32.0", Some(json!(["mtp*", "lm_head"]))),
        (r#""mtp*""#, &["lm_head.weight"], "0.22.0", None),
        (r#""lm_head""#, &["lm_head.weight"], "0.32.0", None),
        (r#""mtp*""#, &quantised, "0.32.0", None),
        (r#""mtp*""#, &[], "0.32.0", None),
    ] {
        let config = config(list);
        let model = model(&[("config.json", &config)], tensors, 60);
        let facts = facts(&model, engine);
        assert_eq!(
            is_needed(&shipped("exclude-quantised-lm-head"), &facts),
            expected.is_some(),
            "{list} {tensors:?} {engine}"
        );
        let Some(expected) = expected else { continue };
        let (after, _) = applied("exclude-quantised-lm-head", &model, &facts, None);
        assert_eq!(json_of(&after, "config.json")["quantization_config"]["ignore"], expected);
    }
}

#[test]
fn fix_chat_template_replaces_it_wherever_it_stands() {
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let tokenizer = r#"{"add_bos_token": false, "chat_template": "old", "model_max_length": 1000000000000000019884624838656}"#;
    let with = model(&[("config.json", "{}"), ("tokenizer_config.json", tokenizer)], &[], 1);
    let (after, files) = applied("fix-chat-template", &with, &FactSet::default(), Some(template));
    assert_eq!(after["chat_template.jinja"], template.as_bytes());
    assert_eq!(json_of(&after, "tokenizer_config.json")["chat_template"], json!(template));
    assert!(
        String::from_utf8_lossy(&after["tokenizer_config.json"]).contains("1000000000000000019884624838656")
    );
    assert_eq!(files[0].sha256_before, None, "a new file");
    let without = model(&[("config.json", "{}")], &[], 1);
    assert_eq!(applied("fix-chat-template", &without, &FactSet::default(), Some(template)).1.len(), 1);
}

#[test]
fn materialise_remote_code_is_for_linked_code_that_may_run() {
    let mut model =
        model(&[("config.json", r#"{"auto_map":{"AutoConfig":"configuration_kimi.K"}}"#)], &[], 1);
    let patch = shipped("materialise-remote-code");
    for (link, trusted, expected) in [(true, true, true), (true, false, false), (false, true, false)] {
        model.entries = vec![crate::facts::CheckpointEntry {
            name: "configuration_kimi.py".to_owned(),
            target: "/hub/blobs/abc".into(),
            is_dir: false,
            is_link: link,
            size: 1,
            modified_ns: 0,
        }];
        let mut facts = facts(&model, "0.32.0");
        facts.set("options.trust_remote_code", Some(FactValue::Flag(trusted)));
        assert_eq!(is_needed(&patch, &facts), expected, "{link} {trusted}");
    }
    let (after, files) =
        apply_patches(&[(&patch, None)], &FactSet::default(), &model.texts).expect("applies");
    assert!(after == model.texts && files.is_empty(), "it only copies");
}

#[test]
fn what_does_not_fit_stops_with_the_reason() {
    let patch = |ops: &str, optional: bool| {
        let text = format!(
            "schema = 1\nname = \"p\"\nwhy = \"w\"\n[[file]]\npath = \"config.json\"\noptional = {optional}\nops = [{ops}]\n"
        );
        parse_patch("p.toml", &text).expect("good")
    };
    let files = texts(&[("config.json", r#"{"a": 1, "b": {"c": 1}, "b": {"c": 2}}"#)]);
    for (ops, expected) in [
        (
            r#"{ op = "test", path = "/a", value = 2 }, { op = "remove", path = "/a" }"#,
            "patch `p` does not apply to `config.json`: `/a` is 1, expected 2",
        ),
        (r#"{ op = "remove", path = "/x" }"#, "there is no `/x`"),
        (r#"{ op = "remove", path = "/x", if_present = true }"#, "patch `p` finds nothing to change"),
        (r#"{ op = "replace", path = "/b/c", value = 3 }"#, "`b` stands twice"),
        (
            r#"{ op = "replace", path = "/a", from = "model.type" }"#,
            "patch `p` writes `model.type`, which is not known here",
        ),
    ] {
        let error = apply_patches(&[(&patch(ops, false), None)], &FactSet::default(), &files).expect_err(ops);
        assert!(error.to_string().contains(expected), "{ops}: {error}");
    }
    let remove = patch(r#"{ op = "remove", path = "/a" }"#, false);
    let error = apply_patches(&[(&remove, None)], &FactSet::default(), &Texts::new()).expect_err("no file");
    assert!(error.to_string().contains("the checkpoint has no `config.json`"));
    let (_, made) = apply_patches(&[(&remove, None)], &FactSet::default(), &files).expect("applies");
    assert!(matches!(made[0].make(Some(b"{\"a\": 1}")), Err(PatchError::Drift { .. })), "another file");
    assert!(matches!(made[0].make(None), Err(PatchError::Drift { .. })));
}
