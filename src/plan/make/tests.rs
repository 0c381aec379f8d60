use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::make_plan;
use crate::config::{LaunchFlags, NamedProfile, parse_profile, resolve};
use crate::facts::{
    AttentionLayout, ComputeCapability, EngineFacts, EngineSchema, Facts, Gpu, GpuFacts, HostFacts,
    ModelConfig, ModelFacts,
};
use crate::patch::PatchLibrary;
use crate::plan::{Endpoint, EngineDevice, Plan, PlanError};
use crate::units::{Bytes, Tokens};

/// SmolLM2-135M on the CPU build, 20 GiB free.
fn facts() -> Facts {
    let config = ModelConfig {
        architecture: Some("LlamaForCausalLM".to_owned()),
        dtype: Some("bfloat16".to_owned()),
        layers: Some(30),
        attention: AttentionLayout { full: 30, ..AttentionLayout::default() },
        heads: Some(9),
        kv_heads: Some(3),
        head_dim: Some(64),
        max_len: Some(Tokens::new(8192)),
        ..ModelConfig::default()
    };
    Facts {
        host: HostFacts {
            cpus: Some(2),
            memory_total: Some(Bytes::from_gib(24)),
            memory_available: Some(Bytes::from_gib(20)),
            ..HostFacts::default()
        },
        gpus: GpuFacts {
            absent_because: Some("no NVIDIA driver on this host".to_owned()),
            ..GpuFacts::default()
        },
        model: ModelFacts {
            id: "/m/SmolLM2".to_owned(),
            path: Some(Utf8PathBuf::from("/m/SmolLM2")),
            config: Some(config),
            weights: Some(Bytes::from_mib(257)),
            has_chat_template: Some(true),
            ..ModelFacts::default()
        },
        engine: engine("0.32.0+cpu"),
        learned: BTreeMap::new(),
    }
}

fn engine(version: &str) -> EngineFacts {
    EngineFacts {
        executable: "/v/bin/vllm".into(),
        python: None,
        version: version.parse().expect(version),
        is_cpu_build: version.ends_with("+cpu"),
        has_vllm_metadata: true,
        found: "PATH".to_owned(),
        looked_in: Vec::new(),
        schema: EngineSchema::default(),
    }
}

/// Eight cards of the story's kind.
fn gpus(count: u32) -> GpuFacts {
    let gpu = |index| Gpu {
        index,
        name: Some("NVIDIA RTX PRO 6000 Blackwell".to_owned()),
        memory_total: Some(Bytes::from_gib(95)),
        memory_free: Some(Bytes::from_gib(95)),
        memory_reserved: None,
        nvlink: Some(false),
        compute_capability: Some(ComputeCapability { major: 12, minor: 0 }),
    };
    GpuFacts { gpus: (0..count).map(gpu).collect(), ..GpuFacts::default() }
}

fn plan_with(profile: &str, flags: LaunchFlags, facts: &Facts) -> Result<Plan, PlanError> {
    let profile = parse_profile("p.toml", &format!("schema = 1\n{profile}")).expect(profile);
    let flags = LaunchFlags { model: flags.model.or_else(|| Some("/m/SmolLM2".to_owned())), ..flags };
    let named = NamedProfile { name: "p".to_owned(), profile };
    let settings = resolve(Some(named), &BTreeMap::new(), &flags).expect("settings");
    let library = PatchLibrary::embedded().expect("embedded");
    make_plan(&settings, facts, &library, Utf8Path::new("/cache"))
}

fn plan(profile: &str) -> Plan {
    plan_with(profile, LaunchFlags::default(), &facts()).expect(profile)
}

/// A small model's plan, for tests of what comes after.
pub(in crate::plan) fn plan_for_tests(profile: &str) -> Plan {
    plan(profile)
}

fn flag<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    let at = plan.argv.iter().position(|word| word == name)?;
    plan.argv.get(at + 1).map(String::as_str)
}

#[test]
fn a_small_model_gets_its_own_length_and_all_it_needs() {
    let plan = plan("");
    assert!(plan.fits && plan.warnings.is_empty(), "{plan:#?}");
    assert_eq!((plan.context, plan.kv_cache_tokens), (Some(Tokens::new(8192)), Some(Tokens::new(46_592))));
    assert_eq!(plan.argv[..3], ["/v/bin/vllm", "serve", "/m/SmolLM2"]);
    for (name, value) in [
        ("--max-model-len", "8192"),
        ("--served-model-name", "SmolLM2"),
        ("--host", "127.0.0.1"),
        ("--port", "8000"),
        ("--shutdown-timeout", "30"),
        ("--disable-access-log-for-endpoints", "/health,/metrics,/ping"),
    ] {
        assert_eq!(flag(&plan, name), Some(value), "{name}");
    }
    for (name, value) in [
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_ENGINE_READY_TIMEOUT_S", "3720"),
        ("TORCHINDUCTOR_CACHE_DIR", "/cache/torchinductor"),
    ] {
        assert_eq!(plan.env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(plan.unset_env.contains(&"PYTHONDONTWRITEBYTECODE".to_owned()));
    assert_eq!((plan.hardware.as_str(), plan.engine.device), ("CPU, 2 cores, 24.0 GiB", EngineDevice::Cpu));
    assert!(plan.settings.iter().all(|setting| !setting.origin.detail.is_empty()
        || setting.origin.kind == crate::config::OriginKind::Default));
}

#[test]
fn a_context_that_is_asked_for_must_fit() {
    let long =
        ModelConfig { max_len: Some(Tokens::new(1_000_000)), ..facts().model.config.expect("a config") };
    let long = Facts { model: ModelFacts { config: Some(long), ..facts().model }, ..facts() };
    let auto = plan_with("", LaunchFlags::default(), &long).expect("auto");
    assert!(auto.fits && auto.context < Some(Tokens::new(1_000_000)), "{}", auto.verdict);
    assert_eq!(auto.context, Some(Tokens::new(8 * (1 << 30) / 23_040 / 128 * 128 - 128)), "{}", auto.verdict);
    let exact = plan_with("[context]\nwant = 900000", LaunchFlags::default(), &long).expect("exact");
    assert!(!exact.fits && exact.verdict.contains("900,000-token context needs"), "{}", exact.verdict);
    let min = plan_with("[context]\nmin = 500000", LaunchFlags::default(), &long).expect("min");
    assert!(!min.fits && min.verdict.contains("p.toml:3 asks for 500,000"), "{}", min.verdict);
    let capped = plan_with("[context]\nmax = 4096", LaunchFlags::default(), &long).expect("max");
    assert_eq!((capped.fits, capped.context), (true, Some(Tokens::new(4096))));
}

#[test]
fn memory_that_is_not_there_is_said() {
    let little = HostFacts { memory_available: Some(Bytes::from_gib(2)), ..facts().host };
    let little = plan_with("", LaunchFlags::default(), &Facts { host: little, ..facts() }).expect("a plan");
    assert!(!little.fits && little.verdict.contains("2.00 GiB are available"), "{}", little.verdict);
}

#[test]
fn what_is_passed_on_wins_with_a_warning() {
    let flags = LaunchFlags {
        vllm_flags: ["--max-num-seqs", "4", "--port=9000"].map(str::to_owned).to_vec(),
        set: vec![("max_num_seqs".to_owned(), "8".to_owned())],
        ..LaunchFlags::default()
    };
    let plan = plan_with("", flags, &facts()).expect("a plan");
    assert_eq!(
        (plan.port, flag(&plan, "--port"), flag(&plan, "--max-num-seqs")),
        (9000, Some("9000"), Some("4"))
    );
    assert_eq!(plan.argv.iter().filter(|word| *word == "--max-num-seqs").count(), 1);
    assert_eq!(plan.warnings[0].code, "planned-value-overridden");
}

#[test]
fn an_open_address_remote_code_and_an_old_engine_are_warned_about() {
    let codes = |plan: Plan| plan.warnings.into_iter().map(|warning| warning.code).collect::<Vec<_>>();
    assert_eq!(codes(plan("[launch]\nhost = \"0.0.0.0\"")), ["open-address"]);
    let config = ModelConfig { needs_remote_code: true, ..facts().model.config.expect("a config") };
    let remote = Facts { model: ModelFacts { config: Some(config), ..facts().model }, ..facts() };
    assert_eq!(
        codes(plan_with("", LaunchFlags::default(), &remote).expect("a plan")),
        ["remote-code-not-trusted"]
    );
    let trusted = plan_with("[model]\nid = \"x\"\ntrust_remote_code = true", LaunchFlags::default(), &remote);
    assert!(trusted.expect("a plan").argv.contains(&"--trust-remote-code".to_owned()));
    let old = plan_with("", LaunchFlags::default(), &Facts { engine: engine("0.15.1+cpu"), ..facts() })
        .expect("old");
    assert!(flag(&old, "--shutdown-timeout").is_none());
    assert_eq!(codes(old), ["old-engine"]);
}

#[test]
fn a_model_without_chat_template_is_asked_to_continue() {
    let bare = Facts { model: ModelFacts { has_chat_template: Some(false), ..facts().model }, ..facts() };
    let plan = plan_with("", LaunchFlags::default(), &bare).expect("a plan");
    assert_eq!(plan.endpoint, Endpoint::Completions);
    assert!(plan.smoke[0].expect.may_be_cut && !plan.smoke[0].prompt.ends_with('?'));
}

#[test]
fn gpus_are_counted_and_weighed() {
    let on = |count: u32, weights: u64, profile: &str, flags: LaunchFlags| {
        let model = ModelFacts { weights: Some(Bytes::from_gib(weights)), ..facts().model };
        plan_with(profile, flags, &Facts { engine: engine("0.32.0"), gpus: gpus(count), model, ..facts() })
    };
    let heads = |n: &str| LaunchFlags {
        set: vec![("tensor_parallel_size".to_owned(), n.to_owned())],
        ..LaunchFlags::default()
    };
    let one = on(1, 10, "", LaunchFlags::default()).expect("one");
    assert!(one.fits && flag(&one, "--tensor-parallel-size").is_none(), "{one:#?}");
    assert_eq!(one.hardware, "1 x NVIDIA RTX PRO 6000 Blackwell (SM120, 95.0 GiB each)");
    assert_eq!(flag(&one, "--max-model-len"), Some("auto"), "left to the engine, and said so");
    assert_eq!(one.warnings[0].code, "kv-cache-not-planned");
    let three = on(3, 200, "", LaunchFlags::default()).expect("three");
    assert_eq!((three.fits, flag(&three, "--tensor-parallel-size")), (true, Some("3")));
    let large = on(3, 600, "", LaunchFlags::default()).expect("too large");
    assert!(!large.fits && large.verdict.contains("200 GiB on each GPU"), "{}", large.verdict);
    assert!(matches!(on(1, 1, "", heads("3")), Err(PlanError::BadOption { .. })), "three of one");
    assert!(matches!(on(3, 1, "", heads("2")), Err(PlanError::BadOption { .. })), "9 heads over 2");
    assert!(matches!(
        on(2, 1, "[launch]\ngpus = \"5\"", LaunchFlags::default()),
        Err(PlanError::NoSuchGpu { index: 5, .. })
    ));
    let chosen = on(2, 1, "[launch]\ngpus = \"1\"", LaunchFlags::default()).expect("chosen");
    assert_eq!(chosen.env.get("CUDA_VISIBLE_DEVICES").map(String::as_str), Some("1"));
    let none = plan_with("", LaunchFlags::default(), &Facts { engine: engine("0.32.0"), ..facts() });
    assert!(matches!(none, Err(PlanError::NoGpu { reason }) if reason.contains("no NVIDIA driver")));
}

#[test]
fn the_quickstart_profile_is_planned_as_it_says() {
    let (_, _, text) = crate::config::EMBEDDED_PROFILES[0];
    let plan =
        plan_with(text.replace("schema = 1", "").as_str(), LaunchFlags::default(), &facts()).expect("a plan");
    assert!(plan.fits && plan.argv.contains(&"--enforce-eager".to_owned()));
    assert_eq!((plan.smoke.len(), plan.warmup.max_tokens, plan.eta_ms), (2, Tokens::new(512), Some(60_000)));
    assert!(plan.smoke[0].expect.contains == ["Paris"] && plan.warmup.prompt == "Count from 1 to 50.");
}

#[test]
fn a_plan_survives_its_file() {
    let plan = plan("");
    let text = serde_json::to_string(&plan).expect("JSON");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("a plan"), plan);
}

#[test]
fn options_and_variables_are_held_against_the_engine() {
    let mut schema = EngineSchema::default();
    schema.read_options(
        "\"--max-num-seqs\" \"--enforce-eager\" '--old-flag is deprecated and does nothing' \"--old-flag\"",
    );
    schema.read_options("\"--tool-call-parser\"");
    schema.read_names("tool_call_parser", "    \"kimi_k2\": (\n");
    schema.read_variables("    \"VLLM_CPU_KVCACHE_SPACE\": x,\n");
    let facts = Facts { engine: EngineFacts { schema, ..facts().engine }, ..facts() };
    let plan = |profile: &str, passed: &[&str]| {
        let vllm_flags = passed.iter().map(|word| (*word).to_owned()).collect();
        plan_with(profile, LaunchFlags { vllm_flags, ..LaunchFlags::default() }, &facts)
    };
    let known =
        plan("[vllm]\nmax_num_seqs = 4\nenforce_eager = true", &["--no-enforce-eager"]).expect("known");
    assert!(known.warnings.iter().all(|warning| warning.code != "deprecated-option"), "{:?}", known.warnings);
    let error = plan("[vllm]\nmax_num_seq = 4", &[]).expect_err("a typo").to_string();
    assert_eq!(
        error,
        "p.toml:3: `max_num_seq` is no option of vLLM 0.32.0+cpu; did you mean `max_num_seqs`?"
    );
    assert!(plan("", &["--enforce-eagr"]).expect_err("a typo").to_string().contains("`--enforce-eager`"));
    let parser = plan("[vllm]\ntool_call_parser = \"kimi_k3\"", &[]).expect_err("a parser").to_string();
    assert!(
        parser.contains("`tool_call_parser` is `kimi_k3`") && parser.contains("did you mean `kimi_k2`?"),
        "{parser}"
    );
    let warned = plan("[vllm]\nold_flag = 1\n[env]\nVLLM_CPU_KVCACHE_SPCE = 1", &[]).expect("warned");
    let codes: Vec<&str> = warned.warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert_eq!(codes, ["deprecated-option", "unknown-variable"]);
    assert!(
        warned.warnings[1].text.contains("did you mean `VLLM_CPU_KVCACHE_SPACE`?"),
        "{:?}",
        warned.warnings
    );
}
