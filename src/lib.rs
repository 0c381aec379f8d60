//! kdeploy gets a large language model served by vLLM *right the first time*.
//!
//! Data flows one way: **facts → plan → act → observe → report**. A launch (`kdeploy up`) walks
//! the rooms in this order:
//!
//! ```text
//! profile + flags + environment ─► Settings (value, origin)          config/
//! /proc, NVML, checkpoint, installed vLLM ─► facts                   probe/ → facts/
//! Settings + facts ─► Plan { argv, env, context, memory, reasons }   plan/       (pure)
//! Plan ─► engine tree in its own session, own TMPDIR                 engine/
//! log bytes, exits, probes, clock ─► step(State, Event) → Actions    lifecycle/  (pure)
//! ready = an answered warm-up ─► smoke                               api/, measure/
//! steady state ─► measure ─► records, launch state                   measure/, store/
//! everything a person or a program reads                             report/
//! one file per command, the only place where rooms meet              app/, cli/
//! ```
//!
//! | room | owns | kind |
//! | --- | --- | --- |
//! | [`units`] | bytes, tokens, durations: typed, printed and parsed | pure leaf |
//! | [`facts`] | what is known of host, GPUs, checkpoint, engine | pure |
//! | [`config`] | profiles, environment and flags merged, origin of every value kept | pure |
//! | [`patch`] | edits of checkpoint files: matched, applied, proven, shown | pure |
//! | [`plan`] | facts and settings to argv, environment, context, memory, reasons | pure |
//! | [`export`] | plans as files for other tools: systemd units | pure |
//! | [`lifecycle`] | supervisor state machine, log stages, first error of a failed start | pure |
//! | [`measure`] | SSE decoding, request records, percentiles, smoke verdicts | pure |
//! | [`probe`] | /proc, NVML, checkpoint files, installed engines → facts | effects |
//! | [`engine`] | spawn, tree, signals, shared memory, managed installations | effects |
//! | [`api`] | HTTP client of the served model | effects |
//! | [`store`] | directories, launch records, locks, atomic files, log capture | effects |
//! | [`report`] | exit codes, diagnostics, JSON shapes, the door to the terminal | formats |
//! | [`app`] | commands | composition |
//! | [`cli`] | flags and help | declarations |
//!
//! `tests/architecture.rs` fails when a room names another one that it must not know.
//!
//! # Example
//!
//! The pure core can be used by itself; here, how many tokens of KV cache one GiB holds for the
//! quickstart model (30 layers, 3 KV heads of 64, bf16):
//!
//! ```
//! use kdeploy::units::Bytes;
//! let per_token = Bytes::new(30 * 2 * 3 * 64 * 2);
//! assert_eq!(per_token, Bytes::new(23_040));
//! assert_eq!(Bytes::from_gib(1).as_u64() / per_token.as_u64() / 128 * 128, 46_592);
//! ```

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod engine;
pub mod export;
pub mod facts;
pub mod lifecycle;
pub mod measure;
pub mod patch;
pub mod plan;
pub mod probe;
pub mod report;
pub mod store;
pub mod units;
