//! The routes of the server, one file per group.

mod chat;
mod completions;
mod embeddings;
mod format;
mod messages;
mod ollama;
mod ollama_models;
mod plain;
mod responses;

use crate::app::{App, MAX_GRAMMARS};
use crate::checker::Patience;
use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;
use crate::guard::{HeldBody, RequestName, body};
use crate::model::{Loaded, Running};
use crate::names::name;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use netcl::llm::engine::Job;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::{AcquireError, OwnedSemaphorePermit};

type Shared = State<Arc<App>>;

/// Returns all routes.
pub fn all() -> Router<Arc<App>> {
    of_openai().merge(of_ollama_clients())
}

/// Returns the pages, OpenAI's interface, and the additional routes of llama.cpp's server.
fn of_openai() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(plain::chat_page))
        .route("/device", get(plain::device_page))
        .route("/device/data", get(plain::device_data))
        .route("/openapi.json", get(plain::openapi))
        .route("/health", get(plain::health))
        .route("/ready", get(plain::ready))
        .route("/metrics", get(plain::metrics))
        .route("/props", get(plain::props))
        .route("/v1/models", get(plain::models))
        .route("/v1/models/{*name}", get(plain::model))
        .route(
            "/tokenize",
            openai(|app, _, body| Box::pin(async move { plain::tokenize(&app, &body).await })),
        )
        .route(
            "/detokenize",
            openai(|app, _, body| Box::pin(async move { plain::detokenize(&app, &body).await })),
        )
        .route(
            "/v1/chat/completions",
            openai(|app, id, body| Box::pin(async move { chat::chat(&app, &id, &body).await })),
        )
        .route(
            "/v1/completions",
            openai(|app, id, body| Box::pin(async move { completions::complete(&app, &id, &body).await })),
        )
        .route(
            "/v1/responses",
            openai(|app, id, body| Box::pin(async move { responses::respond_to(&app, &id, &body).await })),
        )
        .route(
            "/v1/embeddings",
            openai(|app, _, body| Box::pin(async move { embeddings::embeddings(&app, &body).await })),
        )
}

/// Returns Ollama's interface.
fn of_ollama_clients() -> Router<Arc<App>> {
    Router::new()
        .route("/api/version", get(ollama_models::version))
        .route("/api/tags", get(ollama_models::tags))
        .route("/api/ps", get(ollama_models::ps))
        .route("/api/pull", any(ollama_models::refused))
        .route("/api/push", any(ollama_models::refused))
        .route("/api/create", any(ollama_models::refused))
        .route("/api/copy", any(ollama_models::refused))
        .route("/api/delete", any(ollama_models::refused))
        .route("/api/blobs/{*digest}", any(ollama_models::refused))
        .route(
            "/api/show",
            of_ollama(|app, _, body| Box::pin(async move { ollama_models::show(&app, &body).await })),
        )
        .route(
            "/api/embed",
            of_ollama(|app, _, body| Box::pin(async move { ollama::embed(&app, &body).await })),
        )
        .route(
            "/api/embeddings",
            of_ollama(|app, _, body| Box::pin(async move { ollama::embed_one(&app, &body).await })),
        )
        .route(
            "/api/chat",
            of_ollama(|app, id, body| Box::pin(async move { ollama::chat(&app, &id, &body).await })),
        )
        .route(
            "/api/generate",
            of_ollama(|app, id, body| Box::pin(async move { ollama::generate(&app, &id, &body).await })),
        )
}

type Answer = std::pin::Pin<Box<dyn Future<Output = ApiResult<Response>> + Send>>;

type Handler = fn(Arc<App>, String, Vec<u8>) -> Answer;

/// Runs a handler on a body that is read completely first.
async fn handled(app: Arc<App>, request: Request, handler: Handler) -> ApiResult<Response> {
    let name = request.extensions().get::<RequestName>().map(|name| name.0.clone()).unwrap_or_default();
    // The memory is released when the answer's head is ready; streamed content has separate limits.
    let HeldBody { body, memory: _memory } = body(&app, request).await?;
    handler(app, name, body).await
}

/// Returns a route whose errors have OpenAI's format.
fn openai(handler: Handler) -> MethodRouter<Arc<App>> {
    post(move |State(app): Shared, request: Request| async move {
        handled(app, request, handler).await.unwrap_or_else(IntoResponse::into_response)
    })
}

/// Returns a route whose errors have Ollama's format, a sentence.
fn of_ollama(handler: Handler) -> MethodRouter<Arc<App>> {
    post(move |State(app): Shared, request: Request| async move {
        handled(app, request, handler).await.unwrap_or_else(ollama_models::of_ollama)
    })
}

/// The common fields of all objects of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// Id of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: String,
}

impl Head {
    /// Returns the fields of an answer whose id starts with `prefix`.
    pub fn new(prefix: &str, model: &Loaded) -> Self {
        Self { id: name(prefix), created: now(), model: model.name.clone() }
    }

    /// Returns an object of type `kind`.
    pub fn object(&self, kind: &str) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".into(), self.id.as_str().into());
        object.insert("object".into(), kind.into());
        object.insert("created".into(), self.created.into());
        object.insert("model".into(), self.model.as_str().into());
        object.insert("system_fingerprint".into(), concat!("netcl-", env!("CARGO_PKG_VERSION")).into());
        object
    }
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

/// Running answers.
pub struct Generation {
    /// The model that generates them.
    pub model: Arc<Loaded>,
    /// Receives them.
    pub running: Running,
}

impl Generation {
    /// Starts `texts` answers, `choices` for each job that `prepare` creates on a separate thread. `bound` requests have grammars. Those are compiled
    /// first, a few at a time, before the request occupies a slot of the model.
    ///
    /// # Errors
    /// 404, 429 and 503 of the model, and errors of `prepare`.
    pub async fn begin(
        app: &Arc<App>,
        request: &str,
        model: Option<&str>,
        [choices, texts]: [usize; 2],
        bound: bool,
        prepare: impl FnOnce(&Loaded, &Patience) -> ApiResult<Vec<Job>> + Send + 'static,
    ) -> ApiResult<Self> {
        let model = app.models.get(model).await?;
        let places = app.places(&model, texts)?;
        let own = Arc::clone(&model);
        let (patience, _waiting) = Patience::begin();
        let work = move || prepare(&own, &patience);
        let (jobs, places) = match bound {
            false => (aside(app, work).await?, places),
            true => {
                drop(places);
                let full = || ApiError::full(MAX_GRAMMARS, 5);
                let _waits = app.grammars.try_acquire().map_err(|_| full())?;
                let place = Arc::clone(&app.compilers).acquire_owned().await;
                let jobs = spawned(place, work).await?;
                (jobs, app.places(&model, texts)?)
            }
        };
        let running = model.begin(request, jobs, choices, places)?;
        Ok(Self { model, running })
    }
}

/// Runs slow work on a thread separate from the connection thread.
pub async fn aside<T: Send + 'static>(
    app: &App,
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    spawned(Arc::clone(&app.threads).acquire_owned().await, work).await
}

/// Runs work on another thread. Its permit is held until the work ends, even if the caller has stopped waiting.
async fn spawned<T: Send + 'static>(
    place: Result<OwnedSemaphorePermit, AcquireError>,
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let place = place.map_err(|_| ApiError::unavailable("The server is stopping", 5))?;
    let work = move || {
        let _place = place;
        netcl::device::guarded("preparing the request", work)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(ApiError::internal(error.message())),
        Err(error) => Err(ApiError::internal(format!("a thread of the server ended: {error}"))),
    }
}

/// Parses `stream`, and whether a final event reports the usage.
fn streaming(fields: &mut Fields) -> ApiResult<(bool, bool)> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    let usage = options.flag("include_usage")?.unwrap_or(false);
    // Padding against eavesdroppers; this server never adds any.
    options.flag("include_obfuscation")?;
    options.end()?;
    match stream {
        true => Ok((true, usage)),
        false => Err(ApiError::field("stream_options", "stream_options requires stream to be true")),
    }
}

/// Ignores fields that do not affect an answer.
fn harmless(fields: &mut Fields) -> ApiResult<()> {
    fields.pass_over(&["user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"]);
    fields.only("store", &false.into())
}
