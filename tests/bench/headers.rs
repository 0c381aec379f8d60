//! How long it takes to read the headers of a very large checkpoint: 120 files, 200,000 tensors, as of
//! a mixture-of-experts model of a trillion parameters. Prints figures, asserts none.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use camino::Utf8Path;
use kdeploy::probe::{ModelPlaces, read_model};

const FILES: usize = 120;
const TENSORS: usize = 200_000;

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let written = write_checkpoint(dir.path());
    println!("{FILES} files, {TENSORS} tensors, {:.1} MB of headers", written as f64 / 1e6);
    let root = Utf8Path::from_path(dir.path()).expect("UTF-8");
    let env = BTreeMap::new();
    let places = ModelPlaces { managed: root, env: &env, working_dir: root, weights_optional: false };
    for pass in ["cold allocator", "warm", "warm"] {
        let began = Instant::now();
        let facts = read_model("./", None, places).expect("a model");
        let tensors = facts.inventory.map_or(0, |inventory| inventory.tensors);
        println!("{pass:15} {:6.1} ms   {tensors} tensors", began.elapsed().as_secs_f64() * 1e3);
    }
    println!("peak memory     {:6.1} MB", peak_memory_kib() as f64 / 1024.0);
}

/// Sparse files with whole headers; returns the bytes of the headers.
fn write_checkpoint(dir: &Path) -> usize {
    let config = r#"{"architectures":["DeepseekV3ForCausalLM"],"num_hidden_layers":61}"#;
    fs::write(dir.join("config.json"), config).expect("config.json");
    let per_file = TENSORS.div_ceil(FILES);
    let (mut written, mut index) = (0, String::from("{\"weight_map\":{"));
    for file in 0..FILES {
        let name = format!("model-{:05}-of-{FILES:05}.safetensors", file + 1);
        let mut header = String::from("{");
        let count = per_file.min(TENSORS - file * per_file);
        for number in 0..count {
            let tensor = file * per_file + number;
            let (layer, expert) = (tensor % 61, tensor / 61);
            let key =
                format!("language_model.model.layers.{layer}.mlp.experts.{expert}.down_proj.weight_scale");
            let (from, to) = (number * 16, number * 16 + 16);
            let comma = if number == 0 { "" } else { "," };
            header += &format!(
                "{comma}\"{key}\":{{\"dtype\":\"U8\",\"shape\":[4,4],\"data_offsets\":[{from},{to}]}}"
            );
            let comma = if tensor == 0 { "" } else { "," };
            index += &format!("{comma}\"{key}\":\"{name}\"");
        }
        header.push('}');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + count * 16, 0);
        written += header.len();
        fs::write(dir.join(name), bytes).expect("a shard");
    }
    index += "}}";
    fs::write(dir.join("model.safetensors.index.json"), index).expect("the index");
    written
}

fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
