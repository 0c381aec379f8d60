//! The client and its short requests: health, models, metrics, version.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use crate::measure::{ServedModel, parse_models};
use crate::units::Bytes;

/// Longest body of a short answer.
const MAX_BODY: Bytes = Bytes::from_mib(16);

/// Why a short request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address is not usable.
    #[error("`{url}` is not an address of a server: {reason}")]
    InvalidUrl {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The key cannot be sent in a header.
    #[error("the API key holds characters that cannot be sent")]
    InvalidKey,
    /// No connection, or it broke.
    #[error("`{url}` does not answer")]
    Unreachable {
        /// Address.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// No answer in time.
    #[error("`{url}` did not answer within {} ms", limit.as_millis())]
    TimedOut {
        /// Address.
        url: String,
        /// The limit.
        limit: Duration,
    },
    /// Another status than 200.
    #[error("`{url}` answered HTTP {status}")]
    Status {
        /// Address.
        url: String,
        /// The status.
        status: u16,
    },
    /// An answer that makes no sense.
    #[error("`{url}` answered something unexpected: {reason}")]
    BadAnswer {
        /// Address.
        url: String,
        /// What.
        reason: String,
    },
}

/// A client of one server. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Client {
    pub(super) http: reqwest::Client,
    base: String,
}

impl fmt::Debug for Client {
    /// Shows the address only: the headers may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at `url` (`http://host:port`, with or without `/v1`).
    ///
    /// # Errors
    /// When the address or the key cannot be used.
    pub fn new(url: &str, api_key: Option<&str>) -> Result<Self, ApiError> {
        let invalid = |reason: &str| ApiError::InvalidUrl { url: redact(url), reason: reason.to_owned() };
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let parsed = reqwest::Url::parse(&with_scheme).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(invalid("only http and https are spoken"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(invalid("keys do not belong in an address; use KDEPLOY_API_KEY"));
        }
        let loopback = match parsed.host_str() {
            Some("localhost" | "127.0.0.1" | "[::1]") => true,
            Some(host) => host.starts_with("127."),
            None => return Err(invalid("it names no host")),
        };
        let trimmed = with_scheme.trim_end_matches('/');
        let base = trimmed.strip_suffix("/v1").unwrap_or(trimmed).to_owned();
        let mut headers = HeaderMap::new();
        if let Some(key) = api_key {
            let mut value =
                HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ApiError::InvalidKey)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            // uvicorn closes idle connections after 5 s; one that is reused at that moment gives a
            // reset that looks like a fault of the server.
            .pool_idle_timeout(Duration::from_secs(4))
            .tcp_nodelay(true)
            .user_agent(concat!("kdeploy/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers);
        if loopback {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|source| ApiError::Unreachable { url: base.clone(), source })?;
        Ok(Self { http, base })
    }

    /// The address without `/v1`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Status of `/health`: 200 means that the engine's process lives, not that it can answer.
    ///
    /// # Errors
    /// When there is no answer in time.
    pub async fn health(&self, limit: Duration) -> Result<u16, ApiError> {
        Ok(self.get("/health", limit).await?.0)
    }

    /// The models it serves.
    ///
    /// # Errors
    /// When there is no answer in time, or it is not a list of models.
    pub async fn models(&self, limit: Duration) -> Result<Vec<ServedModel>, ApiError> {
        let body = self.get_ok("/v1/models", limit).await?;
        parse_models(&body)
            .map_err(|error| ApiError::BadAnswer { url: self.url("/v1/models"), reason: error.to_string() })
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// When there is no answer in time.
    pub async fn metrics(&self, limit: Duration) -> Result<String, ApiError> {
        let body = self.get_ok("/metrics", limit).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn get_ok(&self, path: &str, limit: Duration) -> Result<Vec<u8>, ApiError> {
        match self.get(path, limit).await? {
            (200, body) => Ok(body),
            (status, _) => Err(ApiError::Status { url: self.url(path), status }),
        }
    }

    async fn get(&self, path: &str, limit: Duration) -> Result<(u16, Vec<u8>), ApiError> {
        let url = self.url(path);
        let exchange = async {
            let unreachable = |source| ApiError::Unreachable { url: url.clone(), source };
            let response = self.http.get(&url).send().await.map_err(unreachable)?;
            let status = response.status().as_u16();
            let mut body = Vec::new();
            let mut parts = response.bytes_stream();
            while let Some(part) = parts.next().await {
                body.extend_from_slice(&part.map_err(unreachable)?);
                if body.len() as u64 > MAX_BODY.as_u64() {
                    let reason = format!("more than {MAX_BODY}");
                    return Err(ApiError::BadAnswer { url: url.clone(), reason });
                }
            }
            Ok((status, body))
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::TimedOut { url: url.clone(), limit }),
        }
    }
}

/// An address without the user and password that somebody may have put into it.
fn redact(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}://***{}", url.get(..scheme).unwrap_or_default(), url.get(at..).unwrap_or_default())
        }
        _ => url.to_owned(),
    }
}
