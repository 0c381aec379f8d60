//! A model directory, a managed model or an id in the model cache → [`ModelFacts`].

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::files::read_small;
use super::model_places::{absolute, find_snapshot, is_path, list_checkpoint};
use super::weights::{WeightFileError, read_weight_file};
use crate::facts::{
    MAX_CONFIG_BYTES, MAX_INDEX_BYTES, ModelConfigError, ModelFacts, QuantMarks, WeightInventory,
    assemble_config, parse_generation_config, parse_weight_index,
};
use crate::units::Bytes;

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The path does not exist.
    #[error("there is no directory `{path}`")]
    NoDirectory {
        /// As given, made absolute.
        path: Utf8PathBuf,
    },
    /// The path is not a model directory.
    #[error("`{path}` is not a model directory: it has no config.json")]
    NoConfig {
        /// The directory.
        path: Utf8PathBuf,
        /// Something that looks like a model but is not one vLLM takes from a directory.
        hint: Option<String>,
    },
    /// The id is neither managed nor in the model cache.
    #[error("`{id}` is not on this machine")]
    NotCached {
        /// The id.
        id: String,
        /// Directories that were looked in.
        looked_in: Vec<Utf8PathBuf>,
    },
    /// A link of the model leads nowhere.
    #[error("`{link}` leads to `{target}`, which does not exist")]
    DanglingLink {
        /// The link.
        link: Utf8PathBuf,
        /// Where it leads.
        target: String,
    },
    /// A file that the index names is missing.
    #[error("`{index}` names `{file}`, which does not exist")]
    MissingWeights {
        /// The index.
        index: Utf8PathBuf,
        /// The missing file.
        file: String,
        /// How many are missing in all.
        count: usize,
    },
    /// A weight file is torn or makes no sense.
    #[error("`{path}` cannot be used")]
    BrokenWeights {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: WeightFileError,
    },
    /// There are no weights at all.
    #[error("`{path}` holds no weights (*.safetensors or *.bin)")]
    NoWeights {
        /// The directory.
        path: Utf8PathBuf,
    },
    /// A file of the model makes no sense.
    #[error("`{path}` cannot be used")]
    Broken {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: ModelConfigError,
    },
    /// A file of the model cannot be read.
    #[error("`{path}` cannot be read")]
    Io {
        /// The file or directory.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Where to look for models.
#[derive(Debug, Clone, Copy)]
pub struct ModelPlaces<'a> {
    /// Managed models.
    pub managed: &'a Utf8Path,
    /// The environment: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HOME`.
    pub env: &'a BTreeMap<String, String>,
    /// What relative paths are relative to.
    pub working_dir: &'a Utf8Path,
    /// May the weights be missing? Then they stay unknown, with a note.
    pub weights_optional: bool,
}

/// Reads what is known of a model without loading it.
///
/// # Errors
/// When there is no such model on this machine, or it is incomplete or broken.
pub fn read_model(
    model: &str,
    revision: Option<&str>,
    places: ModelPlaces<'_>,
) -> Result<ModelFacts, ModelError> {
    let (path, commit) = find_model(model, revision, places)?;
    read_directory(model, &path, commit, places)
}

/// The directory of a model, and its commit where it is a snapshot of the model cache.
///
/// # Errors
/// When there is no such model on this machine.
pub fn find_model(
    model: &str,
    revision: Option<&str>,
    places: ModelPlaces<'_>,
) -> Result<(Utf8PathBuf, Option<String>), ModelError> {
    let home = places.env.get("HOME").map(Utf8PathBuf::from);
    let path = match (model.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => places.working_dir.join(model),
    };
    if path.is_dir() {
        return Ok((absolute(&path)?, None));
    }
    if is_path(model) {
        return match path.exists() {
            true => Err(ModelError::NoConfig {
                path,
                hint: Some("it is a file; vLLM takes a directory".to_owned()),
            }),
            false => Err(ModelError::NoDirectory { path }),
        };
    }
    let managed = places.managed.join(model);
    if !model.contains('/') && managed.is_dir() {
        return Ok((absolute(&managed)?, None));
    }
    match find_snapshot(model, revision, places.env)? {
        (Some((snapshot, commit)), _) => Ok((absolute(&snapshot)?, Some(commit))),
        (None, looked) => {
            let looked_in = [places.managed.to_owned()].into_iter().chain(looked).collect();
            Err(ModelError::NotCached { id: model.to_owned(), looked_in })
        }
    }
}

/// Files that are kept as they are, for patches.
const TEXTS: &[&str] = &[
    "config.json",
    "hf_quant_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

fn read_directory(
    id: &str,
    path: &Utf8Path,
    revision: Option<String>,
    places: ModelPlaces<'_>,
) -> Result<ModelFacts, ModelError> {
    let path = path.to_owned();
    let entries = list_checkpoint(&path)?;
    let files: Vec<(String, Bytes)> = entries
        .iter()
        .filter(|entry| !entry.is_dir)
        .map(|entry| (entry.name.clone(), Bytes::new(entry.size)))
        .collect();
    let mut texts = BTreeMap::new();
    for name in TEXTS {
        if let Some(bytes) = read_file(&path.join(name), MAX_CONFIG_BYTES)? {
            texts.insert((*name).to_owned(), bytes);
        }
    }
    if !texts.contains_key("config.json") {
        let hint = files
            .iter()
            .find(|(name, _)| name.ends_with(".gguf"))
            .map(|(name, _)| format!("it holds `{name}`; convert it to a checkpoint of safetensors first"));
        return Err(ModelError::NoConfig { path, hint });
    }
    let (config, tokenizer) = assemble_config(&texts)
        .map_err(|broken| ModelError::Broken { path: path.join(broken.file), source: broken.source })?;
    let generation_path = path.join("generation_config.json");
    let sampling_defaults = match read_file(&generation_path, MAX_CONFIG_BYTES)? {
        Some(bytes) => parse_generation_config(&bytes)
            .map_err(|source| ModelError::Broken { path: generation_path, source })?,
        None => BTreeMap::new(),
    };
    let mut notes = Vec::new();
    let mut marks = QuantMarks::default();
    let (weights, inventory) = match weigh(&path, &files) {
        Ok((weights, names)) => (Some(weights), read_inventory(&path, &names, config.layers, &mut marks)?),
        Err(ModelError::NoWeights { .. } | ModelError::MissingWeights { .. }) if places.weights_optional => {
            notes.push("its weights are not all here: they are computed from the architecture".to_owned());
            marks = marks_of_index(&path, config.layers)?;
            (None, None)
        }
        Err(error) => return Err(error),
    };
    let template_file = texts.contains_key("chat_template.jinja") || texts.contains_key("chat_template.json");
    Ok(ModelFacts {
        id: id.to_owned(),
        revision,
        config: Some(config),
        weights,
        inventory,
        sampling_defaults,
        has_chat_template: Some(
            template_file || tokenizer.is_some_and(|tokenizer| tokenizer.has_chat_template),
        ),
        notes,
        path: Some(path),
        texts,
        entries,
        marks,
    })
}

/// What the index alone says of the tensors, where the weights are not here.
fn marks_of_index(path: &Utf8Path, layers: Option<u64>) -> Result<QuantMarks, ModelError> {
    let mut marks = QuantMarks::default();
    let index_path = path.join("model.safetensors.index.json");
    if let Some(bytes) = read_file(&index_path, MAX_INDEX_BYTES)? {
        let mut inventory = WeightInventory::default();
        parse_weight_index(&bytes, |tensor| marks.add(tensor, true, inventory.add(tensor, 0, layers)))
            .map_err(|source| ModelError::Broken { path: index_path, source })?;
    }
    Ok(marks)
}

/// Sum and names of the weight files: those that the index names, otherwise all of the best kind there
/// is.
fn weigh(path: &Utf8Path, files: &[(String, Bytes)]) -> Result<(Bytes, Vec<String>), ModelError> {
    for index_name in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
        let index_path = path.join(index_name);
        let Some(bytes) = read_file(&index_path, MAX_INDEX_BYTES)? else { continue };
        let index = parse_weight_index(&bytes, |_| ())
            .map_err(|source| ModelError::Broken { path: index_path.clone(), source })?;
        let missing: Vec<&String> =
            index.files.iter().filter(|name| !files.iter().any(|(known, _)| known == *name)).collect();
        if let Some(first) = missing.first() {
            return Err(ModelError::MissingWeights {
                index: index_path,
                file: (*first).clone(),
                count: missing.len(),
            });
        }
        if !index.files.is_empty() {
            let sum =
                files.iter().filter(|(name, _)| index.files.contains(name)).map(|(_, size)| *size).sum();
            return Ok((sum, index.files));
        }
    }
    for kind in [".safetensors", ".bin", ".pt"] {
        let found: Vec<&(String, Bytes)> = files
            .iter()
            .filter(|(name, _)| name.ends_with(kind) && !name.starts_with("training_args"))
            .collect();
        let sum: Bytes = found.iter().map(|(_, size)| *size).sum();
        if sum > Bytes::ZERO {
            return Ok((sum, found.iter().map(|(name, _)| name.clone()).collect()));
        }
    }
    Err(ModelError::NoWeights { path: path.to_owned() })
}

/// What the tensors weigh, when all files are safetensors.
fn read_inventory(
    path: &Utf8Path,
    names: &[String],
    layers: Option<u64>,
    marks: &mut QuantMarks,
) -> Result<Option<WeightInventory>, ModelError> {
    if !names.iter().all(|name| name.ends_with(".safetensors")) {
        return Ok(None);
    }
    let mut inventory = WeightInventory::default();
    let mut buffer = Vec::new();
    for name in names {
        let file = path.join(name);
        read_weight_file(&file, layers, &mut inventory, marks, &mut buffer)
            .map_err(|source| ModelError::BrokenWeights { path: file, source })?;
    }
    Ok(Some(inventory))
}

fn read_file(path: &Utf8Path, limit: u64) -> Result<Option<Vec<u8>>, ModelError> {
    read_small(path, limit).map_err(|source| ModelError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::{ModelError, ModelPlaces, WeightFileError, read_model};
    use crate::facts::DeclaredKvCache;
    use crate::units::Bytes;
    use camino::{Utf8Path, Utf8PathBuf};
    use std::collections::BTreeMap;

    /// A file with one tensor of so many bytes.
    fn safetensors(name: &str, bytes: usize) -> Vec<u8> {
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + bytes, 0);
        file
    }

    struct Machine {
        dir: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().expect("a directory") }
        }

        fn root(&self) -> &Utf8Path {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8")
        }

        fn write(&self, path: &str, bytes: &[u8]) -> Utf8PathBuf {
            let path = self.root().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("parents");
            std::fs::write(&path, bytes).expect("a file");
            path
        }

        fn model(&self, directory: &str) {
            self.write(&format!("{directory}/config.json"), br#"{"architectures":["LlamaForCausalLM"]}"#);
            self.write(
                &format!("{directory}/model.safetensors"),
                &safetensors("model.embed_tokens.weight", 64),
            );
        }

        fn read(&self, model: &str, revision: Option<&str>) -> Result<crate::facts::ModelFacts, ModelError> {
            let env = BTreeMap::from([("HOME".to_owned(), self.root().to_string())]);
            let managed = self.root().join("managed");
            read_model(
                model,
                revision,
                ModelPlaces {
                    managed: &managed,
                    env: &env,
                    working_dir: self.root(),
                    weights_optional: false,
                },
            )
        }
    }

    #[test]
    fn directories_managed_models_and_cached_ids_are_found() {
        let machine = Machine::new();
        let hub = ".cache/huggingface/hub/models--org--name";
        machine.model("here");
        machine.model("managed/Small-1");
        machine.model(&format!("{hub}/snapshots/abc"));
        machine.write(&format!("{hub}/refs/main"), b"abc\n");
        machine.write("here/tokenizer_config.json", br#"{"chat_template":"x"}"#);
        let here = machine.read("./here", None).expect("a directory");
        assert_eq!(here.path.as_deref(), Some(machine.root().join("here").as_path()));
        let file = Bytes::new(safetensors("model.embed_tokens.weight", 64).len() as u64);
        assert_eq!((here.weights, here.has_chat_template), (Some(file), Some(true)));
        assert_eq!(here.inventory.map(|weights| weights.embedding), Some(Bytes::new(64)));
        assert_eq!(machine.read("~/here", None).expect("home").weights, Some(file));
        assert_eq!(machine.read("Small-1", None).expect("managed").has_chat_template, Some(false));
        let cached = machine.read("org/name", None).expect("cached");
        assert_eq!(cached.revision.as_deref(), Some("abc"));
        assert_eq!(
            machine.read("org/name", Some("abc")).expect("by commit").revision.as_deref(),
            Some("abc")
        );
        for missing in [machine.read("org/other", None), machine.read("org/name", Some("../../x"))] {
            assert!(matches!(missing, Err(ModelError::NotCached { .. })), "{missing:?}");
        }
        assert!(matches!(machine.read("./nowhere", None), Err(ModelError::NoDirectory { .. })));
        assert!(matches!(machine.read("./here/config.json", None), Err(ModelError::NoConfig { .. })));
    }

    #[test]
    fn the_quantization_file_counts_only_where_the_config_is_silent() {
        let machine = Machine::new();
        machine.model("m");
        machine.write("m/hf_quant_config.json", br#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}}"#);
        let quantization =
            machine.read("./m", None).expect("good").config.and_then(|config| config.quantization);
        let quantization = quantization.expect("from the file");
        assert_eq!(quantization.kv_cache, Some(DeclaredKvCache::Fp8));
        assert_eq!(
            quantization.kv_cache_source.as_deref(),
            Some("hf_quant_config.json.quantization.kv_cache_quant_algo")
        );
        machine.write("m/config.json", br#"{"quantization_config":{"quant_method":"fp8"}}"#);
        let quantization =
            machine.read("./m", None).expect("good").config.and_then(|config| config.quantization);
        assert_eq!(quantization.map(|q| (q.method, q.kv_cache)), Some(("fp8".to_owned(), None)));
        machine.write("m/config.json", b"{}");
        machine.write("m/hf_quant_config.json", b"[");
        assert!(
            matches!(machine.read("./m", None), Err(ModelError::Broken { path, .. }) if path.ends_with("hf_quant_config.json"))
        );
    }

    #[test]
    fn incomplete_and_broken_models_name_the_file() {
        let machine = Machine::new();
        machine.model("m");
        machine.write("m/model.safetensors.index.json", br#"{"weight_map":{"a":"gone-1.safetensors"}}"#);
        let error = machine.read("./m", None).expect_err("missing shard");
        assert!(
            matches!(&error, ModelError::MissingWeights { file, count: 1, .. } if file == "gone-1.safetensors")
        );
        machine.model("torn");
        machine.write("torn/config.json", b"{\"archi");
        assert!(
            matches!(machine.read("./torn", None), Err(ModelError::Broken { path, .. }) if path.ends_with("torn/config.json"))
        );
        machine.write("empty/config.json", b"{}");
        assert!(matches!(machine.read("./empty", None), Err(ModelError::NoWeights { .. })));
        machine.write("empty/model.safetensors", b"version https://git-lfs.github.com/spec/v1\n");
        let error = machine.read("./empty", None).expect_err("a pointer");
        assert!(
            matches!(&error, ModelError::BrokenWeights { source: WeightFileError::Pointer, .. }),
            "{error:?}"
        );
        machine.write("empty/model.safetensors", &safetensors("a", 64)[..60]);
        assert!(matches!(machine.read("./empty", None), Err(ModelError::BrokenWeights { .. })));
        machine.write("gguf/x.gguf", b"");
        assert!(matches!(machine.read("./gguf", None), Err(ModelError::NoConfig { hint: Some(_), .. })));
        machine.model("linked");
        std::os::unix::fs::symlink("../blobs/none", machine.root().join("linked/a.safetensors"))
            .expect("a link");
        assert!(
            matches!(machine.read("./linked", None), Err(ModelError::DanglingLink { target, .. }) if target == "../blobs/none")
        );
    }
}
