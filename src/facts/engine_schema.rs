//! Options and variables that an installed vLLM knows, read from its own sources without running it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

/// What an engine knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineSchema {
    /// Options, with underscores, without `no_`.
    pub options: BTreeSet<String>,
    /// Options that it calls deprecated, with its own sentence.
    pub deprecated: BTreeMap<String, String>,
    /// `VLLM_*` variables.
    pub variables: BTreeSet<String>,
    /// Names that an option takes, where the engine keeps a register of them: parsers.
    pub names: BTreeMap<&'static str, BTreeSet<String>>,
}

impl EngineSchema {
    /// Adds the options that a source declares: `"--name"` literals, and the fields of the classes
    /// that become options by themselves.
    pub fn read_options(&mut self, source: &str) {
        static LITERAL: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r#"["']--([a-z][a-z0-9-]*)["']"#).expect("valid"));
        static DEPRECATED: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r#"["']--([a-z][a-z0-9-]*) is deprecated([^"']*)"#).expect("valid"));
        for found in LITERAL.captures_iter(source) {
            if let Some(name) = found.get(1) {
                self.options.insert(name.as_str().replace('-', "_"));
            }
        }
        for found in DEPRECATED.captures_iter(source) {
            if let (Some(name), Some(rest)) = (found.get(1), found.get(2)) {
                // A sentence that goes on in the next literal is cut short here.
                let rest = rest.as_str().trim_end();
                let rest = if rest.ends_with('.') { rest.trim_end_matches('.') } else { "" };
                let sentence = format!("is deprecated{rest}");
                self.deprecated.insert(name.as_str().replace('-', "_"), sentence);
            }
        }
        self.options.extend(frontend_fields(source));
    }

    /// Adds the variables that `envs.py` declares.
    pub fn read_variables(&mut self, source: &str) {
        static VARIABLE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r#"(?m)^\s*["'](VLLM_[A-Z0-9_]+)["']\s*:"#).expect("valid"));
        let names =
            VARIABLE.captures_iter(source).filter_map(|found| Some(found.get(1)?.as_str().to_owned()));
        self.variables.extend(names);
    }

    /// Adds the names of a register (`"name": (…` lines): the values that `option` takes.
    pub fn read_names(&mut self, option: &'static str, source: &str) {
        static ENTRY: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r#"(?m)^\s{4}["']([a-z0-9][a-z0-9_.-]*)["']\s*:\s*\("#).expect("valid")
        });
        let names: BTreeSet<String> =
            ENTRY.captures_iter(source).filter_map(|found| Some(found.get(1)?.as_str().to_owned())).collect();
        if !names.is_empty() {
            self.names.insert(option, names);
        }
    }

    /// Is an option known? Fields of structured options (`compilation_config.mode`) count by their
    /// first part, `no_` in front is the switch turned off. When nothing was read everything is known.
    #[must_use]
    pub fn knows_option(&self, name: &str) -> bool {
        let base = name.split('.').next().unwrap_or(name);
        let known = |name: &str| self.options.contains(name);
        self.options.is_empty() || known(base) || base.strip_prefix("no_").is_some_and(known)
    }
}

/// Fields of `class …FrontendArgs`: each becomes an option.
fn frontend_fields(source: &str) -> Vec<String> {
    static FIELD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^    ([a-z][a-z0-9_]*)\s*:\s*\S").expect("valid"));
    let mut fields = Vec::new();
    let mut inside = false;
    let mut in_text = false;
    for line in source.lines() {
        if !line.starts_with([' ', '\t', '#', ')']) && !line.trim().is_empty() {
            inside = line.starts_with("class ") && line.contains("FrontendArgs");
            in_text = false;
            continue;
        }
        // Texts between triple quotes may look like fields.
        let quotes = line.matches("\"\"\"").count();
        if inside && !in_text && quotes == 0 {
            if line.trim_start().starts_with("def ") {
                inside = false;
            } else if let Some(name) = FIELD.captures(line).and_then(|found| found.get(1)) {
                fields.push(name.as_str().to_owned());
            }
        }
        if quotes % 2 == 1 {
            in_text = !in_text;
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::EngineSchema;

    #[test]
    fn options_and_variables_are_read_from_sources() {
        let mut schema = EngineSchema::default();
        schema.read_options(
            r#"
class FrontendArgs(BaseFrontendArgs):
    """Arguments: all of them."""

    host: str | None = None
    """Host name.
    note: not a field"""
    ssl_keyfile: str = ""

    @staticmethod
    def add(parser):
        local: int = 0

class Other:
    hidden: int = 0

        group.add_argument("--max-model-len", **kwargs)
        group.add_argument(
            "--data-parallel-size", "-dp",
        warn("--disable-cascade-attn is deprecated and has no effect since "
        warn("--log-config-file is deprecated and will be removed in v0.33.0. ")
"#,
        );
        let names: Vec<&str> = schema.options.iter().map(String::as_str).collect();
        assert_eq!(names, ["data_parallel_size", "host", "max_model_len", "ssl_keyfile"]);
        assert_eq!(schema.deprecated["disable_cascade_attn"], "is deprecated");
        assert_eq!(schema.deprecated["log_config_file"], "is deprecated and will be removed in v0.33.0");
        for (name, known) in [
            ("max_model_len", true),
            ("no_host", true),
            ("host.x", true),
            ("hidden", false),
            ("local", false),
        ] {
            assert_eq!(schema.knows_option(name), known, "{name}");
        }
        assert!(EngineSchema::default().knows_option("anything"), "unknown sources forbid nothing");
        schema.read_names(
            "tool_call_parser",
            "X = {\n    \"kimi_k2\": (  # name\n        \"file\",\n    \"hermes\": (\n",
        );
        let names: Vec<&str> = schema.names["tool_call_parser"].iter().map(String::as_str).collect();
        assert_eq!(names, ["hermes", "kimi_k2"]);
        schema.read_variables("    \"VLLM_PORT\": lambda: 1,\n# \"VLLM_OLD\"\n    'VLLM_HOST_IP': x,\n");
        assert_eq!(
            schema.variables.iter().map(String::as_str).collect::<Vec<_>>(),
            ["VLLM_HOST_IP", "VLLM_PORT"]
        );
    }
}
