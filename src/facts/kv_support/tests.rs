//! The table against its own second form (`mla_by_hardware`) and the combinations that matter.

use serde_json::Value;

use super::{AttentionKind, GPU, KvDevice, KvQuestion, KvSupport, kv_support, runs_on};
use crate::facts::{ComputeCapability, EngineVersion, MlaRanks};

fn ask(version: &str, cc: &str, kind: AttentionKind, dtype: &str) -> KvSupport {
    let version: EngineVersion = version.parse().expect(version);
    kv_support(KvQuestion {
        version: &version,
        device: KvDevice::Gpu(cc.parse().expect(cc)),
        kind,
        mla: None,
        dtype,
        context_parallel: 1,
    })
}

fn works(support: &KvSupport) -> bool {
    matches!(support, KvSupport::Works { .. })
}

/// The second form names, for MLA, the backend chosen for each hardware and version.
#[test]
fn both_forms_of_the_table_agree() {
    let text: Value = serde_json::from_str(include_str!("gpu.json")).expect("JSON");
    let mut compared = 0;
    for (cc, rows) in text["mla_by_hardware"].as_object().expect("an object") {
        for row in rows.as_array().expect("a list") {
            let version = row["vllm"].as_str().expect("a version");
            let plain = row.get("fp16").filter(|cell| !cell.is_null()).or(row.get("bf16"));
            let cells = [("auto", plain), ("fp8", row.get("fp8"))];
            for (dtype, expected) in cells {
                let Some(expected) = expected else { continue };
                let found = ask(version, cc, AttentionKind::Mla, dtype);
                match expected.as_str() {
                    Some(backend) => {
                        let KvSupport::Works { backends, .. } = &found else {
                            panic!("{version} {cc} {dtype}: {found:?}, expected {backend}")
                        };
                        assert!(
                            backends.iter().any(|known| known == backend),
                            "{version} {cc} {dtype}: {backends:?}"
                        );
                    }
                    None => assert!(
                        matches!(found, KvSupport::Unsupported { .. }),
                        "{version} {cc} {dtype}: {found:?}"
                    ),
                }
                compared += 1;
            }
            if let Some(said) = row.get("explicit_bfloat16").and_then(Value::as_str) {
                let found = ask(version, cc, AttentionKind::Mla, "bfloat16");
                assert_eq!(works(&found), said == "works", "{version} {cc}: {said}");
                compared += 1;
            }
            if let Some(sparse) = row.get("sparse_mla") {
                let found = ask(version, cc, AttentionKind::SparseMla, "auto");
                assert_eq!(works(&found), !sparse.is_null(), "{version} {cc} sparse");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

#[test]
fn the_storys_gpu_says_why_and_from_when() {
    let found = ask("0.15.1", "12.0", AttentionKind::Mla, "fp8");
    let KvSupport::Unsupported { reasons, sources, works_from, note } = found else { panic!("{found:?}") };
    assert!(
        reasons.iter().any(|reason| reason.starts_with("TRITON_MLA: stores auto, bfloat16 only")),
        "{reasons:?}"
    );
    assert!(sources.iter().any(|source| source.contains("34597")), "{sources:?}");
    assert_eq!((works_from.as_deref(), note), (Some("0.18.0"), None));
    // Standard attention on the same GPU has no trouble, whatever the version.
    for version in &GPU.versions_read {
        assert!(works(&ask(version, "12.0", AttentionKind::Standard, "fp8")), "{version}");
    }
}

#[test]
fn a_kernel_that_is_accepted_and_said_to_fail_is_doubtful() {
    let version: EngineVersion = "0.18.0".parse().expect("good");
    let question = KvQuestion {
        version: &version,
        device: KvDevice::Gpu(ComputeCapability { major: 12, minor: 0 }),
        kind: AttentionKind::Mla,
        mla: Some(MlaRanks { kv_lora_rank: 512, qk_rope_head_dim: 64 }),
        dtype: "fp8_e4m3",
        context_parallel: 1,
    };
    assert!(matches!(kv_support(question), KvSupport::Doubtful { .. }));
    assert!(works(&kv_support(KvQuestion { dtype: "auto", ..question })));
    let hopper = KvDevice::Gpu(ComputeCapability { major: 9, minor: 0 });
    assert!(works(&kv_support(KvQuestion { device: hopper, ..question })));
    assert!(matches!(
        kv_support(KvQuestion { device: hopper, context_parallel: 8, ..question }),
        KvSupport::Doubtful { .. }
    ));
}

#[test]
fn hardware_without_fp8_or_bf16_is_told() {
    for (cc, dtype, expected) in [
        ("8.6", "fp8", true),
        ("8.6", "fp8_per_token_head", false),
        ("8.9", "fp8_per_token_head", true),
        ("7.5", "bfloat16", false),
        ("7.5", "float16", true),
        ("9.0", "nvfp4", true),
    ] {
        assert_eq!(works(&ask("0.32.0", cc, AttentionKind::Standard, dtype)), expected, "{cc} {dtype}");
    }
    // FlashInfer left 7.5 between 0.22 and 0.24.
    assert!(works(&ask("0.22.0", "7.5", AttentionKind::Standard, "fp8")));
    assert!(!works(&ask("0.24.0", "7.5", AttentionKind::Standard, "fp8")));
}

#[test]
fn what_was_not_read_is_unknown_or_named() {
    for (version, cc, dtype, why) in [
        ("0.10.2", "12.0", "fp8", "older than 0.11.2"),
        ("0.32.0", "11.0", "fp8", "SM110 is not in the table"),
        ("0.32.0", "7.0", "auto", "SM70 is not in the table"),
        ("0.32.0", "12.0", "turbo3", "`turbo3` is not in the table"),
    ] {
        let found = ask(version, cc, AttentionKind::Mla, dtype);
        assert!(matches!(&found, KvSupport::Unknown { why: said } if said.contains(why)), "{found:?}");
    }
    let KvSupport::Unsupported { note, .. } = ask("0.17.2", "12.0", AttentionKind::Mla, "fp8") else {
        panic!("known through its neighbour")
    };
    assert_eq!(note.as_deref(), Some("vLLM 0.17.2 was not read; it is taken as 0.17.1"));
}

#[test]
fn the_cpu_build_stores_fp8_for_heads_only() {
    let version: EngineVersion = "0.32.0+cpu".parse().expect("good");
    let flags = ["avx2".to_owned(), "avx512f".to_owned()];
    let question = |kind, dtype, flags| {
        kv_support(KvQuestion {
            version: &version,
            device: KvDevice::Cpu(flags),
            kind,
            mla: None,
            dtype,
            context_parallel: 1,
        })
    };
    assert!(works(&question(AttentionKind::Standard, "fp8", &flags)));
    assert!(!works(&question(AttentionKind::Standard, "fp8", &flags[..1])));
    assert!(matches!(question(AttentionKind::Mla, "fp8", &flags), KvSupport::Unsupported { .. }));
    assert!(works(&question(AttentionKind::Mla, "bfloat16", &flags)));
    // With AMX the engine takes another backend, which knows `auto` alone.
    let amx = ["avx512f".to_owned(), "amx_tile".to_owned()];
    assert!(works(&question(AttentionKind::Mla, "auto", &amx)));
    assert!(matches!(question(AttentionKind::Mla, "bfloat16", &amx), KvSupport::Unsupported { .. }));
    assert!(works(&question(AttentionKind::Standard, "fp8", &amx)));
    assert!(matches!(question(AttentionKind::SparseMla, "auto", &flags), KvSupport::Unknown { .. }));
}

#[test]
fn patterns_of_capabilities() {
    for (pattern, inside, outside) in [
        ("9.x,10.x", "10.3", "12.0"),
        (">=7.5,<=12.1", "12.1", "13.0"),
        ("12.0,12.1", "12.1", "12.2"),
        (">=8.0", "8.0", "7.5"),
    ] {
        assert!(
            runs_on(pattern, inside.parse().expect(inside))
                && !runs_on(pattern, outside.parse().expect(outside)),
            "{pattern}"
        );
    }
    assert!(runs_on("any", ComputeCapability { major: 3, minor: 5 }));
}
