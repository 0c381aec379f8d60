//! The story's first failure on paper, engine by engine.

use std::collections::BTreeMap;

use camino::Utf8Path;

use crate::config::{LaunchFlags, Settings, resolve};
use crate::facts::{
    BUILTIN_HARDWARE, EngineFacts, EngineSchema, Facts, HostFacts, ModelFacts, assemble_config,
    parse_hardware,
};
use crate::patch::PatchLibrary;
use crate::plan::{PatchKind, Plan, PlanError, make_plan};

const KIMI: &str = include_str!("../../../tests/data/kimi-k2.5-nvfp4/config.json");
const KIMI_QUANT: &str = include_str!("../../../tests/data/kimi-k2.5-nvfp4/hf_quant_config.json");
const EIGHT: &str = "8x-rtx-pro-6000-server-asus-esc8000a";

fn facts(config: &str, hardware: &str, version: &str) -> Facts {
    let quant = config.contains("modelopt").then_some(("hf_quant_config.json", KIMI_QUANT));
    let files = [Some(("config.json", config)), quant].into_iter().flatten();
    let texts: BTreeMap<String, Vec<u8>> =
        files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).collect();
    let (config, _) = assemble_config(&texts).expect("good");
    let (_, hardware) = BUILTIN_HARDWARE.iter().find(|(name, _)| *name == hardware).expect("built in");
    let version: crate::facts::EngineVersion = version.parse().expect(version);
    Facts {
        host: HostFacts { cpu_flags: vec!["avx512f".to_owned()], ..HostFacts::default() },
        gpus: parse_hardware(hardware.as_bytes()).expect("good"),
        model: ModelFacts {
            id: "nvidia/Kimi-K2.5-NVFP4".to_owned(),
            path: Some("/models/kimi".into()),
            config: Some(config),
            texts,
            ..ModelFacts::default()
        },
        engine: EngineFacts {
            executable: "/v/bin/vllm".into(),
            python: None,
            is_cpu_build: version.is_cpu_build(),
            version,
            has_vllm_metadata: true,
            found: "PATH".to_owned(),
            looked_in: Vec::new(),
            schema: EngineSchema::default(),
        },
        learned: BTreeMap::new(),
    }
}

fn settings(patches: &str, dtype: Option<&str>, forced: &[&str]) -> Settings {
    let flags = LaunchFlags {
        model: Some("nvidia/Kimi-K2.5-NVFP4".to_owned()),
        patches: Some(patches.to_owned()),
        kv_cache_dtype: dtype.map(str::to_owned),
        force_preflight: forced.iter().map(|code| (*code).to_owned()).collect(),
        ..LaunchFlags::default()
    };
    resolve(None, &BTreeMap::new(), &flags).expect("good")
}

fn plan(facts: &Facts, settings: &Settings) -> Result<Plan, PlanError> {
    make_plan(settings, facts, &PatchLibrary::embedded().expect("embedded"), Utf8Path::new("/cache"))
}

fn flag(plan: &Plan, name: &str) -> Option<String> {
    let at = plan.argv.iter().position(|word| word == name)?;
    plan.argv.get(at + 1).cloned()
}

fn codes(plan: &Plan) -> Vec<&str> {
    plan.warnings.iter().map(|warning| warning.code.as_str()).collect()
}

/// Before 0.14 the engine does not follow the checkpoint; until 0.14.1 it has no `bfloat16` to ask for;
/// then the option does it; from 0.18 on fp8 is accepted and in doubt.
#[test]
fn the_flagship_gets_the_cheapest_remedy_that_each_engine_honours() {
    for (version, patches, dtype, overlay) in [
        ("0.13.0", 0, None, false),
        ("0.14.1", 1, None, true),
        ("0.15.1", 1, Some("bfloat16"), false),
        ("0.17.1", 1, Some("bfloat16"), false),
        ("0.18.0", 1, Some("bfloat16"), false),
        ("0.32.0", 1, Some("bfloat16"), false),
    ] {
        let plan = plan(&facts(KIMI, EIGHT, version), &settings("auto", None, &[])).expect(version);
        assert_eq!(plan.patches.len(), patches, "{version}: {:?}", plan.patches);
        assert_eq!(flag(&plan, "--kv-cache-dtype").as_deref(), dtype, "{version}");
        assert_eq!(plan.overlay.is_some(), overlay, "{version}");
        let kv = plan.kv_type.as_ref().expect("known");
        assert_eq!(kv.dtype, "bfloat16", "{version}");
        // 61 layers x 1,152 B, whatever the way there.
        let row = plan.memory.iter().find(|row| row.item.starts_with("KV cache")).expect("a row");
        assert!(row.source.contains("70272 B a token"), "{version}: {}", row.source);
        assert_eq!(kv.confirmed, patches > 0, "{version}: what was changed has to be confirmed");
    }
}

#[test]
fn the_overlay_is_what_the_engine_is_pointed_at() {
    let facts = facts(KIMI, EIGHT, "0.15.1");
    let plan = plan(&facts, &settings("drop-fp8-kv-cache", None, &[])).expect("a plan");
    let overlay = plan.overlay.as_ref().expect("an overlay");
    assert!(overlay.path.starts_with("/cache/overlays") && plan.argv[2] == overlay.path, "{:?}", plan.argv);
    assert_eq!(flag(&plan, "--kv-cache-dtype"), None);
    assert_eq!(plan.model.path.as_deref(), Some(Utf8Path::new("/models/kimi")));
    let values: Vec<&str> =
        overlay.files.iter().flat_map(|file| &file.changes).map(|change| change.pointer.as_str()).collect();
    assert_eq!(values, ["/quantization_config/kv_cache_scheme", "/quantization/kv_cache_quant_algo"]);
    assert_eq!(
        (plan.patches[0].kind, plan.kv_type.as_ref().expect("known").dtype.as_str()),
        (PatchKind::Overlay, "bfloat16")
    );
    let round: Plan = serde_json::from_str(&serde_json::to_string(&plan).expect("JSON")).expect("reads back");
    assert_eq!(round, plan);
}

#[test]
fn without_patches_the_plan_is_refused_with_file_and_key() {
    let facts = facts(KIMI, EIGHT, "0.15.1");
    let Err(PlanError::KvTypeUnsupported(refusal)) = plan(&facts, &settings("none", None, &[])) else {
        panic!("not refused")
    };
    assert_eq!(refusal.source.as_deref(), Some("config.json quantization_config.kv_cache_scheme"));
    assert_eq!(
        refusal.summary(),
        "the checkpoint asks for an fp8 KV cache; vLLM 0.15.1 has no attention backend for a KV cache of fp8 with MLA on SM120"
    );
    assert_eq!(
        (refusal.other_dtype.as_deref(), refusal.works_from.as_deref()),
        (Some("bfloat16"), Some("0.18.0"))
    );
    let forced = plan(&facts, &settings("none", None, &["kv-dtype-unsupported"])).expect("forced");
    assert!(codes(&forced).contains(&"kv-dtype-unsupported") && codes(&forced).contains(&"patch-left-out"));
    // In doubt is no refusal.
    let newer = plan(&self::facts(KIMI, EIGHT, "0.18.0"), &settings("none", None, &[])).expect("doubtful");
    assert!(codes(&newer).contains(&"kv-dtype-doubtful"), "{:?}", codes(&newer));
    assert_eq!(newer.kv_type.expect("known").dtype, "fp8");
}

#[test]
fn a_type_that_was_asked_for_is_never_changed() {
    let refused = plan(&facts(KIMI, EIGHT, "0.15.1"), &settings("auto", Some("fp8"), &[]));
    let Err(PlanError::KvTypeUnsupported(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.source.as_deref(), Some("--kv-cache-dtype"));
    let doubtful = plan(&facts(KIMI, EIGHT, "0.32.0"), &settings("auto", Some("fp8"), &[])).expect("allowed");
    assert_eq!(flag(&doubtful, "--kv-cache-dtype").as_deref(), Some("fp8"));
    assert!(codes(&doubtful).contains(&"kv-dtype-doubtful"));
    let older = plan(&facts(KIMI, EIGHT, "0.14.1"), &settings("auto", Some("bfloat16"), &[]));
    assert!(matches!(older, Err(PlanError::KvTypeUnsupported(_))), "0.14.1 knows only auto");
}

#[test]
fn other_hardware_and_other_attention_have_no_complaint() {
    for (hardware, version) in [("8x-h200", "0.15.1"), ("8x-b200", "0.15.1"), ("8x-h200", "0.32.0")] {
        let plan = plan(&facts(KIMI, hardware, version), &settings("auto", None, &[])).expect(hardware);
        assert!(
            plan.patches.is_empty() && plan.overlay.is_none(),
            "{hardware} {version}: {:?}",
            plan.patches
        );
        assert_eq!(plan.kv_type.expect("known").dtype, "fp8", "{hardware} {version}");
    }
    let gqa = r#"{"architectures":["Qwen3ForCausalLM"],"dtype":"bfloat16","num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":128,"hidden_size":1024,"vocab_size":1000,"max_position_embeddings":4096,"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","kv_cache_scheme":{"num_bits":8,"type":"float","dynamic":false},"ignore":[]}}"#;
    for version in ["0.14.1", "0.15.1", "0.18.0", "0.32.0"] {
        let plan = plan(&facts(gqa, EIGHT, version), &settings("auto", None, &[])).expect(version);
        assert!(plan.patches.is_empty(), "{version}: {:?}", plan.patches);
        let warned = codes(&plan).into_iter().any(|code| code.starts_with("kv-dtype"));
        assert!(!warned && plan.kv_type.expect("known").dtype == "fp8", "{version}");
    }
}

#[test]
fn the_cpu_build_gets_a_flag_for_mla_and_nothing_for_heads() {
    let mut facts = facts(KIMI, EIGHT, "0.32.0+cpu");
    let flagged = plan(&facts, &settings("auto", None, &[])).expect("a plan");
    assert_eq!(flag(&flagged, "--kv-cache-dtype").as_deref(), Some("bfloat16"));
    // Where the processor has AMX the engine's backend refuses `bfloat16` by name: the files are edited.
    facts.host.cpu_flags.push("amx_tile".to_owned());
    let edited = plan(&facts, &settings("auto", None, &[])).expect("a plan");
    assert_eq!(flag(&edited, "--kv-cache-dtype"), None);
    assert_eq!(edited.overlay.expect("an overlay").files.len(), 2);
}

#[test]
fn outside_the_table_is_said_to_be_unknown() {
    let mut facts = facts(KIMI, EIGHT, "0.32.0");
    for gpu in &mut facts.gpus.gpus {
        gpu.compute_capability = "13.0".parse().ok();
    }
    let plan = plan(&facts, &settings("auto", None, &[])).expect("a plan");
    assert!(codes(&plan).contains(&"kv-dtype-unknown") && plan.patches.is_empty());
    assert!(plan.kv_type.expect("known").support.contains("SM130 is not in the table"));
}

#[test]
fn names_and_arguments_are_checked() {
    let facts = facts(KIMI, EIGHT, "0.15.1");
    for (patches, expected) in [
        (
            "drop-fp8-kvcache",
            "--patches: there is no patch `drop-fp8-kvcache`; did you mean `drop-fp8-kv-cache`?",
        ),
        ("fix-chat-template", "takes a file, a Jinja chat template: `fix-chat-template=FILE`"),
        ("sync-quant-configs=x", "takes no file"),
        ("sync-quant-configs", "finds nothing to change"),
        ("exclude-mtp-layers", "finds nothing to change"),
    ] {
        let error = plan(&facts, &settings(patches, None, &[])).expect_err(patches).to_string();
        assert!(error.contains(expected), "{patches}: {error}");
    }
    let asked = plan(&self::facts(KIMI, "8x-h200", "0.32.0"), &settings("drop-fp8-kv-cache", None, &[]));
    assert!(codes(&asked.expect("on request")).contains(&"patch-not-needed"));
}
