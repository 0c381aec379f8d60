//! One event of an OpenAI stream, read leniently: servers add fields, leave some out, send nulls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Token counts as the server reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens of the answer, reasoning included.
    pub completion_tokens: u64,
    /// How many of them were reasoning, when the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// How many of the prompt came from the prefix cache, when the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
}

/// An error as OpenAI servers report it, in a body or in the middle of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// Its message.
    pub message: String,
    /// Its code, when it is a number.
    pub code: Option<u64>,
}

/// What one event carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The stream's own end mark, `[DONE]`.
    pub done: bool,
    /// Text of the answer; an empty one carries no token.
    pub content: String,
    /// Text of the reasoning (`reasoning`, formerly `reasoning_content`).
    pub reasoning: String,
    /// It carries part of a tool call.
    pub tool_call: bool,
    /// Why generation ended.
    pub finish_reason: Option<String>,
    /// Token counts.
    pub usage: Option<Usage>,
    /// A failure after HTTP 200.
    pub error: Option<ServerError>,
}

impl Chunk {
    /// Does it carry a token of any kind?
    #[must_use]
    pub const fn has_token(&self) -> bool {
        !self.content.is_empty() || !self.reasoning.is_empty() || self.tool_call
    }
}

/// An event that is not what an OpenAI server sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is not JSON of the OpenAI form: `{excerpt}`")]
pub struct ChunkError {
    /// Its beginning.
    pub excerpt: String,
}

/// Reads the data of one event, from a chat or a completions stream.
///
/// # Errors
/// When it is not JSON, or not an object with `choices`, `usage` or `error`.
pub fn parse_chunk(data: &str) -> Result<Chunk, ChunkError> {
    if data.trim() == "[DONE]" {
        return Ok(Chunk { done: true, ..Chunk::default() });
    }
    let fail = || ChunkError { excerpt: data.chars().take(120).collect() };
    let value: Value = serde_json::from_str(data).map_err(|_| fail())?;
    let object = value.as_object().ok_or_else(fail)?;
    if let Some(error) = object.get("error").filter(|error| !error.is_null()) {
        return Ok(Chunk { error: Some(read_error(error)), ..Chunk::default() });
    }
    if !object.contains_key("choices") && !object.contains_key("usage") {
        return Err(fail());
    }
    let mut chunk = Chunk { usage: object.get("usage").and_then(read_usage), ..Chunk::default() };
    let choice = object.get("choices").and_then(|choices| choices.get(0));
    if let Some(choice) = choice {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        // A non-streaming answer has `message` where a stream has `delta`; completions have `text`.
        let delta = choice.get("delta").or_else(|| choice.get("message"));
        if let Some(delta) = delta {
            chunk.content = text(delta.get("content"));
            chunk.reasoning = text(
                delta.get("reasoning").filter(|r| r.is_string()).or_else(|| delta.get("reasoning_content")),
            );
            chunk.tool_call =
                delta.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        } else {
            chunk.content = text(choice.get("text"));
        }
        chunk.finish_reason = choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned);
    }
    Ok(chunk)
}

/// The message of an error body of any of the usual forms: `{"error": {"message": …}}`,
/// `{"error": "…"}`, `{"detail": …}`, `{"message": …}`; `None` when it is none of them.
#[must_use]
pub fn parse_server_error(body: &[u8]) -> Option<ServerError> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let object = value.as_object()?;
    object.get("error").or_else(|| object.get("detail")).map(read_error).or_else(|| {
        let message = object.get("message")?.as_str()?.to_owned();
        Some(ServerError { message, code: object.get("code").and_then(Value::as_u64) })
    })
}

fn read_error(error: &Value) -> ServerError {
    let message = match error.get("message").and_then(Value::as_str).or_else(|| error.as_str()) {
        Some(text) => text.to_owned(),
        None => error.to_string(),
    };
    ServerError {
        message: message.chars().take(2_000).collect(),
        code: error.get("code").and_then(Value::as_u64),
    }
}

fn read_usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64);
    let detail = |object: &str, key: &str| usage.get(object).and_then(|details| count(details, key));
    Some(Usage {
        prompt_tokens: count(usage, "prompt_tokens")?,
        completion_tokens: count(usage, "completion_tokens").unwrap_or(0),
        reasoning_tokens: detail("completion_tokens_details", "reasoning_tokens"),
        cached_tokens: detail("prompt_tokens_details", "cached_tokens"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vllm_streams() {
        let role = r#"{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;
        let chunk = parse_chunk(role).unwrap();
        assert!(!chunk.has_token() && chunk.finish_reason.is_none());
        let chunk =
            parse_chunk(r#"{"choices":[{"delta":{"content":" Paris"},"finish_reason":"stop"}]}"#).unwrap();
        assert_eq!((chunk.content.as_str(), chunk.finish_reason.as_deref()), (" Paris", Some("stop")));
        for key in ["reasoning", "reasoning_content"] {
            let chunk =
                parse_chunk(&format!(r#"{{"choices":[{{"delta":{{"{key}":"hm","content":null}}}}]}}"#))
                    .unwrap();
            assert_eq!((chunk.reasoning.as_str(), chunk.has_token()), ("hm", true));
        }
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":42,"total_tokens":50,"completion_tokens":8,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":3}}}"#;
        let expected =
            Usage { prompt_tokens: 42, completion_tokens: 8, reasoning_tokens: Some(3), cached_tokens: None };
        assert_eq!(parse_chunk(usage).unwrap().usage, Some(expected));
        assert!(parse_chunk("[DONE]").unwrap().done);
        assert_eq!(parse_chunk(r#"{"choices":[{"text":"a"}]}"#).unwrap().content, "a");
        assert!(parse_chunk(r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#).unwrap().has_token());
    }

    #[test]
    fn a_failure_after_200_is_a_failure() {
        let chunk = parse_chunk(r#"{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":500}}"#).unwrap();
        assert_eq!(
            chunk.error,
            Some(ServerError { message: "EngineCore encountered an issue".into(), code: Some(500) })
        );
    }

    #[test]
    fn what_is_not_the_protocol_is_refused() {
        for bad in ["", "<html>", "[1]", "{\"x\":1}", "{\"choices\":", "null"] {
            assert!(parse_chunk(bad).is_err(), "{bad}");
        }
        for odd in [
            r#"{"choices":null}"#,
            r#"{"choices":[null]}"#,
            r#"{"choices":[{"delta":null}]}"#,
            r#"{"choices":[{"delta":{"content":7}}]}"#,
        ] {
            assert!(!parse_chunk(odd).unwrap().has_token(), "{odd}");
        }
    }

    #[test]
    fn error_bodies_of_all_servers() {
        for (body, message) in [
            (r#"{"error":{"message":"m","code":400}}"#, "m"),
            (r#"{"error":"m"}"#, "m"),
            (r#"{"detail":"m"}"#, "m"),
            (r#"{"object":"error","message":"m","code":404}"#, "m"),
        ] {
            assert_eq!(parse_server_error(body.as_bytes()).unwrap().message, message, "{body}");
        }
        assert_eq!(parse_server_error(b"<html>502"), None);
    }
}
