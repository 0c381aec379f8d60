//! The JSON shapes of `--json`: one struct per command, apart from internal state.
