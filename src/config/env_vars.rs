//! Every environment variable of kdeploy's own, once, with what it means.

macro_rules! env_vars {
    ($( $constant:ident = $name:literal, $meaning:literal; )*) => {
        $( #[doc = $meaning] pub const $constant: &str = $name; )*

        /// Name and meaning of each variable, sorted by name.
        pub const ENV_VARS: &[(&str, &str)] = &[ $( ($name, $meaning), )* ];
    };
}

env_vars! {
    API_KEY = "KDEPLOY_API_KEY", "Key of the served API: what kdeploy's own requests carry. Never shown.";
    CACHE_DIR = "KDEPLOY_CACHE_DIR", "Where managed engines and models lie.";
    CONTEXT = "KDEPLOY_CONTEXT", "As `--context`: context window in tokens, or `auto`.";
    ENGINE = "KDEPLOY_ENGINE", "As `--engine`: path of `vllm`, of a virtual environment, or the name of a managed engine.";
    GPUS = "KDEPLOY_GPUS", "As `--gpus`: GPUs to use, as `0,1`.";
    HOST = "KDEPLOY_HOST", "As `--host`: address to listen on.";
    KV_CACHE_DTYPE = "KDEPLOY_KV_CACHE_DTYPE", "As `--kv-cache-dtype`: data type of the KV cache.";
    LOG = "KDEPLOY_LOG", "Filter for kdeploy's own tracing on stderr, such as `kdeploy=debug`.";
    MAX_ATTEMPTS = "KDEPLOY_MAX_ATTEMPTS", "As `--max-attempts`: starts allowed in one launch.";
    NAME = "KDEPLOY_NAME", "Name of the deployment when the command line gives none.";
    NO_PROGRESS = "KDEPLOY_NO_PROGRESS", "As `--no-progress`: draw no progress bars.";
    NVML_LIBRARY = "KDEPLOY_NVML_LIBRARY", "Path of the NVML library, when it is not the system's `libnvidia-ml.so.1`.";
    OFFLINE = "KDEPLOY_OFFLINE", "As `--offline`: use no network.";
    PATCHES = "KDEPLOY_PATCHES", "As `--patches`: edits of the checkpoint, `auto`, `none`, or names.";
    PORT = "KDEPLOY_PORT", "As `--port`: port to listen on.";
    PP = "KDEPLOY_PP", "As `--pp`: pipeline parallel size.";
    PROFILE = "KDEPLOY_PROFILE", "As `--profile`: profile by name or path.";
    PYTHON = "KDEPLOY_PYTHON", "Python that `quickstart` installs vLLM with.";
    SET = "KDEPLOY_SET", "As `--set`: `KEY=VALUE` pairs, separated by spaces, quoted as in a shell.";
    STATE_DIR = "KDEPLOY_STATE_DIR", "Where launch records and logs lie.";
    TP = "KDEPLOY_TP", "As `--tp`: tensor parallel size.";
}

#[cfg(test)]
mod tests {
    use super::ENV_VARS;

    #[test]
    fn the_table_is_sorted_and_complete_sentences() {
        assert!(ENV_VARS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (name, meaning) in ENV_VARS {
            assert!(name.starts_with("KDEPLOY_"), "{name}");
            assert!(meaning.ends_with('.'), "{name}");
        }
    }
}
