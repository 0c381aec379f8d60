//! The answer of `/v1/models`.

use serde::Deserialize;

use crate::units::Tokens;

/// A model that a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// Name to ask for.
    pub id: String,
    /// Context window, when the server says.
    pub max_model_len: Option<Tokens>,
}

/// Why an answer is no list of models.
#[derive(Debug, thiserror::Error)]
#[error("the answer of `/v1/models` is not a list of models: {0}")]
pub struct ModelsError(#[from] serde_json::Error);

/// Reads the answer of `/v1/models`.
///
/// # Errors
/// When it is not `{"data": [{"id": …}, …]}`.
pub fn parse_models(body: &[u8]) -> Result<Vec<ServedModel>, ModelsError> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        #[serde(default)]
        max_model_len: Option<u64>,
    }
    let list: List = serde_json::from_slice(body)?;
    let model =
        |entry: Entry| ServedModel { id: entry.id, max_model_len: entry.max_model_len.map(Tokens::new) };
    Ok(list.data.into_iter().map(model).collect())
}

#[cfg(test)]
mod tests {
    use super::parse_models;
    use crate::units::Tokens;

    #[test]
    fn vllm_and_other_servers() {
        let vllm = br#"{"object":"list","data":[{"id":"kimi","object":"model","root":"/m","max_model_len":131072,"permission":[]}]}"#;
        let models = parse_models(vllm).unwrap();
        assert_eq!((models[0].id.as_str(), models[0].max_model_len), ("kimi", Some(Tokens::new(131_072))));
        assert_eq!(
            parse_models(br#"{"data":[{"id":"x","max_model_len":null}]}"#).unwrap()[0].max_model_len,
            None
        );
        for bad in [&b"<html>"[..], b"{}", b"{\"data\":[{}]}", b"[]"] {
            assert!(parse_models(bad).is_err());
        }
    }
}
