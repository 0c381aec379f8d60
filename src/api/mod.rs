//! HTTP client of the served model.
//!
//! Effects. A stopwatch first: one warmed client, no retries, no redirects, no proxies to loopback,
//! time stamps taken when bytes arrive and before they are parsed. Whatever a server does ends in a
//! record, never in a hang.

mod client;
mod stream;
#[cfg(test)]
mod tests;

pub use client::{ApiError, Client};
pub use stream::{Deadlines, PromptRequest};
