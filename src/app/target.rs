//! The server that `smoke` and `bench` talk to: a deployment by name, or any server by its URL.

use std::time::Duration;

use super::context::App;
use super::supervise::base_url;
use crate::api::{ApiError, Client, Deadlines, PromptRequest};
use crate::config::{DeploymentName, SmokeCase};
use crate::measure::RequestRecord;
use crate::plan::{Endpoint, WarmupPlan, default_smoke, default_warmup};
use crate::report::{Diagnostic, ErrorCode, Retry};
use crate::store::LaunchRecord;

/// Longest time for a short answer of a server somewhere else.
const SHORT: Duration = Duration::from_secs(10);
/// Longest time for a whole answer.
const TOTAL: Duration = Duration::from_secs(900);
/// Longest time without a byte of it.
const IDLE: Duration = Duration::from_secs(300);

/// A server, the model it serves, and what is known of it.
#[derive(Debug)]
pub(super) struct Target {
    pub client: Client,
    /// Name of the deployment, or the address.
    pub label: String,
    /// Name of the model as it is served.
    pub model: String,
    pub endpoint: Endpoint,
    /// The story's request, fitted to the context window.
    pub warmup: WarmupPlan,
    pub smoke: Vec<SmokeCase>,
    /// Present for deployments of this host.
    pub record: Option<LaunchRecord>,
}

impl Target {
    /// Finds the server.
    ///
    /// # Errors
    /// When nothing of that name runs, or nothing answers at the URL.
    pub(super) async fn find(
        app: &App,
        name: Option<&DeploymentName>,
        url: Option<&str>,
    ) -> Result<Self, Diagnostic> {
        match url {
            Some(url) => Self::at(app, url).await,
            None => Self::of_deployment(app, name).await,
        }
    }

    async fn of_deployment(app: &App, name: Option<&DeploymentName>) -> Result<Self, Diagnostic> {
        let Some(name) = app.choose(name)? else {
            return Err(Diagnostic::new(ErrorCode::NameNotFound, "nothing runs")
                .command("start something", "kdeploy up MODEL")
                .command("or ask a server by its address", "--url http://HOST:PORT"));
        };
        let Some(record) = app.record(&name)? else {
            return Err(Diagnostic::new(ErrorCode::NameNotFound, format!("there is no deployment `{name}`"))
                .command("see what there is", "kdeploy status --all"));
        };
        let client =
            Client::new(&base_url(&record.plan), app.api_key().as_deref()).map_err(|e| api_error(&e))?;
        check_serves(&client, &record.plan.model.served_name).await.map_err(|diagnostic| {
            diagnostic
                .fact(format!("`{name}`"), format!("recorded as {:?}", record.state).to_lowercase())
                .command("see how it feels", format!("kdeploy status {name}"))
        })?;
        Ok(Self {
            client,
            label: name.to_string(),
            model: record.plan.model.served_name.clone(),
            endpoint: record.plan.endpoint,
            warmup: record.plan.warmup.clone(),
            smoke: if record.plan.smoke.is_empty() {
                default_smoke(record.plan.endpoint)
            } else {
                record.plan.smoke.clone()
            },
            record: Some(record),
        })
    }

    async fn at(app: &App, url: &str) -> Result<Self, Diagnostic> {
        let client = Client::new(url, app.api_key().as_deref()).map_err(|error| api_error(&error))?;
        let models = client.models(SHORT).await.map_err(|error| api_error(&error))?;
        let Some(model) = models.into_iter().next() else {
            return Err(Diagnostic::new(ErrorCode::BadAnswer, "the server serves no model")
                .fact(client.base(), "empty list"));
        };
        let mut target = Self {
            label: client.base().to_owned(),
            client,
            model: model.id,
            endpoint: Endpoint::Chat,
            warmup: default_warmup(model.max_model_len),
            smoke: default_smoke(Endpoint::Chat),
            record: None,
        };
        if target.has_no_chat_template().await {
            target.endpoint = Endpoint::Completions;
            target.smoke = default_smoke(Endpoint::Completions);
        }
        Ok(target)
    }

    /// A server whose tokenizer has no chat template refuses every chat with HTTP 400 or 404, at once
    /// and without generating anything; an empty conversation is refused by all, so nothing is run.
    async fn has_no_chat_template(&self) -> bool {
        let mut request =
            self.request(&WarmupPlan { prompt: "hi".to_owned(), max_tokens: crate::units::Tokens::new(1) });
        request.endpoint = Endpoint::Chat;
        let deadlines = Deadlines { total: SHORT, idle: SHORT };
        // A server that has been asked nothing yet must stay so: its first request is the cold one.
        if self.is_fresh().await {
            return false;
        }
        let record = self.client.stream(&request, deadlines).await;
        record.failure_text().is_some_and(|text| text.contains("chat template"))
    }

    /// Has the server finished no request yet? `false` when it does not say.
    pub(super) async fn is_fresh(&self) -> bool {
        let Ok(text) = self.client.metrics(SHORT).await else { return false };
        let load = crate::measure::ServerLoad::from_text(&text);
        load.generation_tokens.is_some_and(|n| n == 0.0) && load.finished.unwrap_or(0.0) == 0.0
    }

    /// What `/metrics` says now.
    pub(super) async fn load(&self) -> crate::measure::ServerLoad {
        self.client
            .metrics(SHORT)
            .await
            .map(|text| crate::measure::ServerLoad::from_text(&text))
            .unwrap_or_default()
    }

    pub(super) fn request(&self, what: &WarmupPlan) -> PromptRequest {
        PromptRequest::new(self.model.clone(), self.endpoint, what.prompt.clone(), what.max_tokens)
    }

    pub(super) async fn ask(&self, request: &PromptRequest) -> RequestRecord {
        self.client.stream(request, Deadlines { total: TOTAL, idle: IDLE }).await
    }
}

async fn check_serves(client: &Client, model: &str) -> Result<(), Diagnostic> {
    let models = client.models(SHORT).await.map_err(|error| api_error(&error))?;
    if models.iter().any(|served| served.id == model) {
        return Ok(());
    }
    let served = models.iter().map(|served| served.id.as_str()).collect::<Vec<_>>().join(", ");
    Err(Diagnostic::new(
        ErrorCode::BadAnswer,
        format!("the server at {} does not serve `{model}`", client.base()),
    )
    .fact("/v1/models", if served.is_empty() { "an empty list".to_owned() } else { served }))
}

/// An error of a short request in words.
pub(super) fn api_error(error: &ApiError) -> Diagnostic {
    match error {
        ApiError::InvalidUrl { .. } => Diagnostic::new(ErrorCode::Usage, "the address cannot be used")
            .cause_chain(error)
            .advice("write it as http://HOST:PORT"),
        ApiError::InvalidKey => {
            Diagnostic::new(ErrorCode::SettingInvalid, "the API key cannot be used").cause_chain(error)
        }
        ApiError::Unreachable { .. } | ApiError::TimedOut { .. } => {
            Diagnostic::new(ErrorCode::ServerUnreachable, "the server does not answer")
                .cause_chain(error)
                .retry(Retry::Later)
        }
        ApiError::Status { status: 401 | 403, .. } => {
            Diagnostic::new(ErrorCode::NoPermission, "the server wants a key")
                .cause_chain(error)
                .advice("give it in the environment: KDEPLOY_API_KEY")
        }
        ApiError::Status { .. } | ApiError::BadAnswer { .. } => {
            Diagnostic::new(ErrorCode::BadAnswer, "the server's answer makes no sense").cause_chain(error)
        }
    }
}
