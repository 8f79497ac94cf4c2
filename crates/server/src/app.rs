//! State that all requests share.

use crate::error::ApiResult;
use crate::metrics::Metrics;
use crate::model::Loaded;
use crate::registry::Models;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Listen address, access control and limits of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Host address; for a host name, its first address is used.
    pub host: String,
    /// Port; 0 selects a free one.
    pub port: u16,
    /// API keys; without keys, every request is accepted.
    pub keys: Vec<String>,
    /// Whether other machines are served without a key.
    pub open: bool,
    /// Origins whose pages may send requests; `*` for all.
    pub origins: Vec<String>,
    /// Time that running answers may take after a stop signal.
    pub drain: Duration,
    /// Maximum bytes of a request body.
    pub max_body: usize,
    /// Time limit for a request's head and for its body to arrive.
    pub read_timeout: Duration,
    /// Time limit for a client that does not read its response.
    pub write_timeout: Duration,
    /// Maximum number of concurrent connections.
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

/// KiB that requests may occupy until they are answered, but at least four of the largest bodies.
const MAX_MEMORY_KIB: usize = 1 << 20;
/// Maximum number of threads that render and encode concurrently.
pub const ASIDE: usize = 8;
/// Maximum number of grammars that are compiled concurrently.
const MAX_COMPILERS: usize = 4;
/// Maximum number of requests whose grammars wait for compilation.
pub const MAX_GRAMMARS: usize = 32;

/// The state of a server.
pub struct App {
    /// Models of the server.
    pub models: Models,
    /// Counters.
    pub metrics: Metrics,
    /// Hashes of keys; the keys themselves are not stored.
    pub keys: Vec<blake3::Hash>,
    /// Listen options.
    pub options: ServeOptions,
    /// Listen address, if the server listens.
    pub address: Option<SocketAddr>,
    /// Start time.
    pub started: Instant,
    /// Start time in seconds since 1970.
    pub since: u64,
    /// Whether the server is stopping.
    pub draining: AtomicBool,
    /// Memory that requests may occupy until they are answered, in KiB.
    pub memory: Arc<Semaphore>,
    /// A permit for each thread that renders and encodes.
    pub threads: Arc<Semaphore>,
    /// A permit for each grammar that is compiled: half of the processors stay free for other work.
    pub compilers: Arc<Semaphore>,
    /// A permit for each request whose grammar is being compiled or waits for compilation.
    pub grammars: Semaphore,
}

impl App {
    /// Returns a server state without loaded models or a listener.
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
            memory: Arc::new(Semaphore::new(MAX_MEMORY_KIB.max(most_body >> 8))),
            threads: Arc::new(Semaphore::new(ASIDE)),
            compilers: Arc::new(Semaphore::new((processors / 2).clamp(1, MAX_COMPILERS))),
            grammars: Semaphore::new(MAX_GRAMMARS),
        }
    }

    /// Returns permits for `texts` sequences, if available.
    ///
    /// # Errors
    /// Same as [`Loaded::places`].
    pub fn places(&self, model: &Loaded, texts: usize) -> ApiResult<OwnedSemaphorePermit> {
        model.places(texts).inspect_err(|error| {
            if error.retry_after.is_some() {
                self.metrics.rejected.inc();
            }
        })
    }

    /// Returns true if a key belongs to this server. The time is the same for every key: hashes of equal length are compared, with all of them.
    pub fn knows(&self, key: &str) -> bool {
        let hash = blake3::hash(key.as_bytes());
        // Comparing blake3 hashes takes constant time.
        self.keys.iter().fold(false, |known, own| (*own == hash) | known)
    }
}
