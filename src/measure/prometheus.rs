//! The text format of `/metrics`, and what kdeploy reads from it.

use std::collections::BTreeMap;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the series.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

/// Reads the Prometheus text format; lines that are not samples are skipped.
#[must_use]
pub fn parse_samples(text: &str) -> Vec<Sample> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => parse_labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Reads labels up to the closing brace; values may hold escaped quotes, braces and commas.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(tail) = rest.strip_prefix('}') {
            return Some((labels, tail));
        }
        let (key, tail) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut escaped = false;
        let mut end = None;
        for (at, c) in tail.char_indices() {
            match (escaped, c) {
                (true, 'n') => value.push('\n'),
                (true, other) => value.push(other),
                (false, '\\') => {
                    escaped = true;
                    continue;
                }
                (false, '"') => {
                    end = Some(at + 1);
                    break;
                }
                (false, other) => value.push(other),
            }
            escaped = false;
        }
        labels.insert(key.trim().to_owned(), value);
        rest = tail.get(end?..)?;
    }
}

/// Sum of all series of the first of these names that exists (`engine` labels are summed over).
/// `None` when none exists: absent is not zero.
#[must_use]
pub fn sum_of(samples: &[Sample], names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| {
        let mut values = samples.iter().filter(|sample| sample.name == *name).map(|sample| sample.value);
        let first = values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    })
}

/// What a vLLM server says of itself now; names of 0.32 first, older ones after.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerLoad {
    /// Requests running.
    pub running: Option<f64>,
    /// Requests waiting.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: Option<f64>,
    /// Tokens generated since the start.
    pub generation_tokens: Option<f64>,
    /// Requests finished since the start.
    pub finished: Option<f64>,
}

impl ServerLoad {
    /// Reads the text of `/metrics`.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let samples = parse_samples(text);
        let sum = |names: &[&str]| sum_of(&samples, names);
        Self {
            running: sum(&["vllm:num_requests_running"]),
            waiting: sum(&["vllm:num_requests_waiting"]),
            kv_cache_usage: sum(&["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
            generation_tokens: sum(&["vllm:generation_tokens_total"]),
            finished: sum(&["vllm:request_success_total"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_and_summed() {
        let text = "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b,}c\"} 2.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"x\"} 1 1700000000\n\
            vllm:gpu_cache_usage_perc 0.25\n\
            vllm:request_success_total{finished_reason=\"stop\"} 1e+02\n\
            broken{ 1\nNaN\n";
        let load = ServerLoad::from_text(text);
        assert_eq!((load.running, load.waiting), (Some(3.0), None));
        assert_eq!((load.kv_cache_usage, load.finished), (Some(0.25), Some(100.0)));
        assert_eq!(parse_samples(text)[0].labels["model_name"], "a\"b,}c");
    }
}
