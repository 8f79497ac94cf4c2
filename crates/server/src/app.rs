//! What all requests share.

use crate::error::ApiResult;
use crate::metrics::Metrics;
use crate::model::Loaded;
use crate::registry::Models;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How a server listens and whom it answers.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The address; of a name the first one that it has.
    pub host: String,
    /// 0 takes a free one.
    pub port: u16,
    /// Keys that requests are let in with; without one everybody is.
    pub keys: Vec<String>,
    /// Whether other machines are served without a key.
    pub open: bool,
    /// Pages of these origins may ask; `*` for all.
    pub origins: Vec<String>,
    /// How long running answers may take after a signal to stop.
    pub drain: Duration,
    /// Bytes of a request's body at most.
    pub max_body: usize,
    /// How long a request's head, and its body, may take to arrive.
    pub read_timeout: Duration,
    /// How long a client may take none of what is written to it.
    pub write_timeout: Duration,
    /// Connections at the same time, at most.
    pub connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: Vec::new(),
            open: false,
            origins: Vec::new(),
            drain: Duration::from_secs(30),
            max_body: 16 << 20,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            connections: 2048,
        }
    }
}

/// KiB that requests may take until they are answered; four of the largest bodies in any case.
const MOST_MEMORY: usize = 1 << 20;
/// Threads that render and encode at the same time, at most.
pub const ASIDE: usize = 8;
/// Grammars that are compiled at the same time, at most.
const MOST_COMPILERS: usize = 4;
/// Requests whose grammars wait to be compiled, at most.
pub const MOST_GRAMMARS: usize = 32;

/// The state of a server.
pub struct App {
    /// Its models.
    pub models: Models,
    /// What is counted.
    pub metrics: Metrics,
    /// Hashes of keys: the keys themselves are not kept.
    pub keys: Vec<blake3::Hash>,
    /// How it listens.
    pub options: ServeOptions,
    /// Where it listens, if it does.
    pub address: Option<SocketAddr>,
    /// When it began.
    pub started: Instant,
    /// The same in seconds since 1970.
    pub since: u64,
    /// Whether it is stopping.
    pub draining: AtomicBool,
    /// Memory that requests may take until they are answered, in KiB.
    pub memory: Arc<Semaphore>,
    /// A place for each thread that renders and encodes.
    pub threads: Arc<Semaphore>,
    /// A place for each grammar that is compiled: half of the processors are left to others.
    pub compilers: Arc<Semaphore>,
    /// A place for each request that has a grammar compiled or waits for that.
    pub grammars: Semaphore,
}

impl App {
    /// Nothing is loaded and nobody listens yet.
    pub fn new(models: Models, metrics: Metrics, options: ServeOptions) -> Self {
        let keys = options.keys.iter().map(|key| blake3::hash(key.as_bytes())).collect();
        let options = ServeOptions { keys: Vec::new(), ..options };
        let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        let draining = AtomicBool::new(false);
        let most_body = options.max_body;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            models,
            metrics,
            keys,
            options,
            address: None,
            started: Instant::now(),
            since,
            draining,
            memory: Arc::new(Semaphore::new(MOST_MEMORY.max(most_body >> 8))),
            threads: Arc::new(Semaphore::new(ASIDE)),
            compilers: Arc::new(Semaphore::new((processors / 2).clamp(1, MOST_COMPILERS))),
            grammars: Semaphore::new(MOST_GRAMMARS),
        }
    }

    /// Places for so many texts, if there are any.
    ///
    /// # Errors
    /// As [`Loaded::places`].
    pub fn places(&self, model: &Loaded, texts: usize) -> ApiResult<OwnedSemaphorePermit> {
        model.places(texts).inspect_err(|error| {
            if error.retry_after.is_some() {
                self.metrics.rejected.inc();
            }
        })
    }

    /// Whether a key is one of this server's. Takes as long whatever the key is: hashes of equal length are compared, with all of them.
    pub fn knows(&self, key: &str) -> bool {
        let hash = blake3::hash(key.as_bytes());
        // Equality of blake3's hashes takes the same time for all.
        self.keys.iter().fold(false, |known, own| (*own == hash) | known)
    }
}
