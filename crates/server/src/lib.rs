//! OpenAI's HTTP interface for models that netcl runs: JSON and connections here, tokens in [`netcl::llm::engine`].
//!
//! Connections run on one thread. Each loaded model runs on another thread, the only one that calls the device. A request becomes a command to that
//! thread. Its tokens come back through a channel with capacity for the whole answer, so the model's thread never waits for a reader. When a client
//! disconnects, its request is dropped. This notifies the thread, and the pages are free in the next step.
//!
//! A route takes the fields of a request one by one, so an unknown field is an error (`fields`). It prepares the job on a separate thread, because
//! rendering a template or compiling a schema can take long. `reader` separates reasoning and function calls from text, in the forms that the chat
//! template shows (`forms`). The constraints of a request are one grammar (`bound`). Embedding vectors are computed between two steps of the engine.
//! `registry` loads models on request, within a memory budget. Each page is a single file without external resources.
#![forbid(unsafe_code)]

mod answer;
mod app;
mod checker;
mod error;
mod fields;
mod forms;
mod guard;
mod io;
mod listen;
mod logprobs;
mod metrics;
mod model;
mod names;
mod output_grammar;
mod piece;
mod profile;
mod reader;
mod registry;
mod routes;
mod sampling_params;
mod schemas;
mod seats;
mod stream;
mod tools;
mod worker;

pub use app::ServeOptions;
pub use checker::{Checker, check_grammar};
pub use model::{ModelOptions, ModelSpec};

use app::App;
use metrics::Metrics;
use netcl::device::{Error, Result};
use registry::Models;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Additional threads: those that compile grammars and those that wait for threads to end.
const MORE: usize = 8;
/// Time limit for threads of disconnected clients to end.
const END: Duration = Duration::from_secs(1);

fn runtime() -> Result<Runtime> {
    let made = Builder::new_current_thread().enable_all().max_blocking_threads(app::ASIDE + MORE).build();
    made.map_err(|e| Error::memory(format!("cannot start the server's runtime: {e}")))
}

/// Serves models until SIGINT or SIGTERM, and then until running answers have ended, within the configured limit. `announce` receives the address as
/// soon as connections are accepted. The first model is loaded then, and requests wait for it.
///
/// # Errors
/// `Io` and `Format` of the address, and errors from loading the first model.
pub fn serve(
    specs: Vec<ModelSpec>,
    models: ModelOptions,
    budget: Option<u64>,
    options: ServeOptions,
    announce: impl FnOnce(&str) -> Result<()>,
) -> Result<()> {
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let metrics = Metrics::new();
        let models = Models::new(specs, models, budget, &metrics)?;
        let mut app = App::new(models, metrics, options);
        let (listener, address) = listen::bind(&app).await?;
        app.address = Some(address);
        let app = Arc::new(app);
        let stop = signals()?;
        announce(&format!("http://{address}"))?;
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let connections = {
            let app = Arc::clone(&app);
            let stop = async move {
                tokio::select! {
                    () = stop => {}
                    _ = ended => {}
                }
            };
            tokio::spawn(async move { listen::answer(&app, listener, stop).await })
        };
        let loaded = app.models.open_first().await;
        // Without a model the connections end.
        let stays = loaded.is_ok().then_some(end);
        drop(connections.await);
        drop(stays);
        app.models.close().await;
        loaded
    });
    // Dropping the runtime would wait for all of its threads without a time limit.
    runtime.shutdown_timeout(END);
    served
}

/// Completes when the process is asked to stop.
#[cfg(unix)]
fn signals() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| {
        signal(kind)
            .map_err(|e| Error::new(netcl::device::ErrorKind::Io, format!("cannot listen for signals: {e}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Completes when the process is asked to stop.
#[cfg(not(unix))]
fn signals() -> Result<impl Future<Output = ()>> {
    Ok(async {
        // Without signals the server runs forever.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
mod tests;
