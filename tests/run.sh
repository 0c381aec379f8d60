#!/usr/bin/env bash
# The test command: formatting, lints, unit, scenario and real-engine tests. It installs what it
# needs: Rust's own components, and through `kdeploy quickstart` a real vLLM into kdeploy's cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

command -v cargo >/dev/null || { echo "Rust is needed: https://rustup.rs" >&2; exit 69; }
command -v python3 >/dev/null || { echo "Python 3.11 or newer is needed" >&2; exit 69; }
if command -v rustup >/dev/null; then
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
fi

# The units are read by systemd's own checker.
if ! command -v systemd-analyze >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd >/dev/null
fi
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is needed: install systemd" >&2; exit 69; }

say "formatting"
cargo fmt --all --check
say "lints"
cargo clippy --locked --all-targets -- -D warnings
say "tests without an engine, and with the fake one"
cargo test --locked --no-fail-fast --lib --bins --test architecture --test documentation --test scenarios
cargo test --locked --doc
say "a real vLLM, installed once into kdeploy's cache"
cargo run --locked --quiet -- quickstart --install-only
say "tests with a real vLLM"
cargo test --locked --test real_vllm
say "done"
