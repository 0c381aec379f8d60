//! A checkpoint that asks for an FP8 KV cache which no MLA backend on a CPU stores: refused on paper,
//! explained when it is launched all the same, and served after each remedy.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::support::{Machine, Said, free_port};
use super::{has_cpu_flag, machine, provision, tiny_models, turn};

const EAGER: [&str; 2] = ["--set", "enforce_eager=true"];

/// `up -d` of a directory under its own name, with a short context.
fn up(machine: &Machine, model: &Path, extra: &[&str]) -> Said {
    let port = free_port();
    let name = model.file_name().and_then(|name| name.to_str()).expect("a name");
    let base = ["up", "-d", model.to_str().expect("UTF-8"), "--name", name, "--port", &port];
    let short = ["--context", "4096", "--set", "max_num_seqs=4"];
    machine.run(&[&base[..], &short, &EAGER, extra].concat())
}

/// Bytes, mode and time of every file of a checkpoint.
fn state_of(model: &Path) -> Vec<(String, Vec<u8>, u32, i64, i64, u64)> {
    let mut found: Vec<_> = std::fs::read_dir(model)
        .expect("the checkpoint")
        .flatten()
        .map(|entry| {
            let meta = entry.metadata().expect("its facts");
            let bytes = Sha256::digest(std::fs::read(entry.path()).expect("its bytes")).to_vec();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, bytes, meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.ino())
        })
        .collect();
    found.sort();
    found
}

fn overlays(machine: &Machine) -> usize {
    let root = Path::new(machine.variable("KDEPLOY_CACHE_DIR")).join("overlays");
    std::fs::read_dir(root).map_or(0, Iterator::count)
}

/// The line of the log that shows which KV cache type is in effect.
#[track_caller]
fn assert_evidence(machine: &Machine, name: &str, said: &Said, dtype: &str) {
    assert!(said.stdout.contains("Ready"), "{said:?}");
    assert!(said.stdout.contains(&format!("kv_cache_dtype={dtype}")), "the evidence is shown: {said:?}");
    let record = machine.record(name);
    let evidence = record["evidence"].to_string();
    assert!(evidence.contains(&format!("kv_cache_dtype={dtype}")), "{record:#}");
    let line =
        said.stdout.split("engine.log:").nth(1).and_then(|rest| rest.split(' ').next()).expect("a line");
    let log = std::fs::read_to_string(newest_attempt(machine, name).join("engine.log")).expect("a log");
    let line = log.lines().nth(line.parse::<usize>().expect("its number") - 1).expect("the line");
    assert!(line.contains(&format!("kv_cache_dtype={dtype}")), "{line}");
}

fn newest_attempt(machine: &Machine, name: &str) -> PathBuf {
    let attempts = machine.path("state").join(name).join("attempts");
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
    let entries = std::fs::read_dir(attempts).expect("attempts").flatten();
    entries.map(|entry| entry.path()).max_by_key(number).expect("an attempt")
}

#[test]
fn an_fp8_kv_cache_that_mla_cannot_store() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let models = tiny_models(&machine);
    let model = models.join("mla-fp8");
    let before = state_of(&model);
    let overlays_before = overlays(&machine);

    // On paper.
    let said = up(&machine, &model, &["--patches", "none", "--no-smoke"]).expect(78);
    assert!(said.stderr.contains("error[kv-dtype-unsupported]"), "{said:?}");
    assert!(said.stderr.contains("config.json") && said.stderr.contains("kv_cache_scheme"), "{said:?}");
    assert!(!machine.path("state/mla-fp8").join("attempts").exists(), "nothing was started");

    // Launched all the same: healthy, and dead at the first answer.
    let force = ["--patches", "none", "--no-smoke", "--force-preflight", "kv-dtype-unsupported", "--json"];
    let said = up(&machine, &model, &force).expect(78);
    let error = said.json();
    assert_eq!(error["error"]["code"], "kv-dtype-unsupported", "{error:#}");
    let evidence = error["error"]["evidence"].to_string();
    assert!(evidence.contains("engine.log:"), "{evidence}");
    // CPU_MLA and AMX_MLA say it differently.
    let root = ["but found Float8_e4m3fn", "only supports an unquantized (bf16) KV cache"];
    assert!(root.iter().any(|text| evidence.contains(text)), "{evidence}");
    assert!(evidence.contains("kv_cache_scheme") && evidence.contains("config.json"), "{evidence}");
    assert!(!said.stderr.contains("Ready"), "{said:?}");
    assert!(!machine.path("state/mla-fp8/attempts/2").exists(), "no other attempt would end differently");
    machine.assert_no_processes();

    // The cheapest remedy: an option, except where the processor's backend refuses that too.
    let said = up(&machine, &model, &["--no-smoke"]).expect(0);
    let kinds = machine.record("mla-fp8")["plan"]["patches"][0].clone();
    let amx = has_cpu_flag("amx_tile");
    assert_eq!(kinds["kind"], if amx { "overlay" } else { "flag" }, "{kinds:#}");
    assert_evidence(&machine, "mla-fp8", &said, if amx { "auto" } else { "bfloat16" });
    assert_eq!(overlays(&machine), overlays_before + usize::from(amx));
    machine.run(&["down", "mla-fp8"]).expect(0);
    assert_eq!(overlays(&machine), overlays_before);

    // Both layouts of the declaration in an overlay.
    let legacy = models.join("mla-fp8-legacy");
    let legacy_before = state_of(&legacy);
    for (model, files) in
        [(&model, &["config.json", "hf_quant_config.json"][..]), (&legacy, &["hf_quant_config.json"])]
    {
        let name = model.file_name().and_then(|name| name.to_str()).expect("a name");
        let said = up(&machine, model, &["--no-smoke", "--patches", "drop-fp8-kv-cache"]).expect(0);
        assert_evidence(&machine, name, &said, "auto");
        let record = machine.record(name);
        let edited = record["plan"]["overlay"]["files"].as_array().expect("files").clone();
        let names: Vec<&str> = edited.iter().filter_map(|file| file["path"].as_str()).collect();
        assert_eq!(names, files, "{record:#}");
        let overlay = record["plan"]["overlay"]["path"].as_str().expect("its path").to_owned();
        for file in &edited {
            let name = file["path"].as_str().expect("a path");
            let sum = |path: &Path| hex(&Sha256::digest(std::fs::read(path).expect("its bytes")));
            assert_eq!(file["sha256_before"].as_str(), Some(sum(&model.join(name)).as_str()), "{file:#}");
            assert_eq!(
                file["sha256_after"].as_str(),
                Some(sum(&Path::new(&overlay).join(name)).as_str()),
                "{file:#}"
            );
        }
        // The edit that an engine refuses is never made: the key stays, with null.
        let text =
            std::fs::read_to_string(Path::new(&overlay).join("hf_quant_config.json")).expect("the file");
        assert!(text.contains("\"kv_cache_quant_algo\": null"), "{text}");
        machine.run(&["down", name]).expect(0);
        assert!(!Path::new(&overlay).exists(), "the overlay goes with the launch");
    }
    assert_eq!((state_of(&model), state_of(&legacy)), (before, legacy_before), "checkpoints are untouched");
    assert_eq!(overlays(&machine), overlays_before);
    machine.assert_no_processes();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What people try by hand.
#[test]
fn the_deleted_key_is_what_a_real_engine_refuses() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let model = tiny_models(&machine).join("mla-fp8-legacy");
    let file = model.join("hf_quant_config.json");
    let mut quant: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the file")).expect("JSON");
    quant["quantization"].as_object_mut().expect("an object").remove("kv_cache_quant_algo").expect("the key");
    std::fs::write(&file, quant.to_string()).expect("written");
    let said = up(&machine, &model, &["--no-smoke", "--patches", "none"]);
    assert_ne!(said.code, 0, "{said:?}");
    let words = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("requires the following fields in hf_quant_config.json"), "{said:?}");
    assert!(words.contains("kv_cache_quant_algo"), "{said:?}");
    machine.assert_no_processes();
}

/// With standard attention FP8 works where the processor has the instructions, and nothing is said.
#[test]
fn grouped_queries_with_fp8_get_no_complaint_and_patched_models_answer() {
    let _turn = turn();
    let machine = machine();
    provision(&machine);
    let models = tiny_models(&machine);
    let said = up(&machine, &models.join("gqa-fp8"), &["--no-smoke"]).expect(0);
    if has_cpu_flag("avx512f") || has_cpu_flag("amx_tile") {
        assert_evidence(&machine, "gqa-fp8", &said, "fp8_e4m3");
        // The stage line names the data type; nothing warns of it.
        for complaint in ["warning", "kv-dtype-unsupported", "patch"] {
            assert!(!said.stderr.contains(complaint), "no complaint: {said:?}");
        }
        let patches = machine.record("gqa-fp8")["plan"]["patches"].clone();
        assert!(patches.as_array().is_none_or(Vec::is_empty), "{patches:#}");
    } else {
        assert_evidence(&machine, "gqa-fp8", &said, "bfloat16");
    }
    machine.run(&["down", "gqa-fp8"]).expect(0);

    // What is served from an overlay is asked questions with known answers before it is called ready.
    let model = models.join("answering-fp8");
    let said = up(&machine, &model, &["--patches", "drop-fp8-kv-cache"]).expect(0);
    assert!(said.stdout.contains("1 of 1 answers correct"), "{said:?}");
    assert_evidence(&machine, "answering-fp8", &said, "auto");
    machine.run(&["down", "answering-fp8"]).expect(0);
    machine.assert_no_processes();
}
