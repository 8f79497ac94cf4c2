//! Open connections. If all slots are in use, the server closes one connection for a new one. It closes the one that has been idle longest. If none
//! is idle, it closes the one that has been sending a body longest.

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::Notify;

/// Milliseconds that a connection may be idle, or send a body, before it can be closed: the request of a new connection has not been read yet.
const UNDISTURBED: u64 = 500;
/// Time value of an event that has not begun.
const NEVER: u64 = u64::MAX;

/// All connections.
#[derive(Clone)]
pub struct Seats {
    began: Instant,
    all: Arc<Mutex<HashMap<u64, Arc<Seat>>>>,
}

/// One connection.
pub struct Seat {
    number: u64,
    /// Number of requests that are being answered.
    busy: AtomicU64,
    /// Milliseconds from server start to the end of its last request.
    idle_since: AtomicU64,
    /// Milliseconds from server start to the start of a body that is still arriving.
    receives_since: AtomicU64,
    close: Notify,
    seats: Seats,
}

impl Seat {
    /// Returns since when the connection only occupies a slot, if it may be closed; idle connections sort first.
    fn wastes_since(&self, now: u64) -> Option<(bool, u64)> {
        let is_busy = self.busy.load(Ordering::SeqCst) > 0;
        let since = if is_busy { &self.receives_since } else { &self.idle_since }.load(Ordering::SeqCst);
        (since.saturating_add(UNDISTURBED) <= now).then_some((is_busy, since))
    }
}

impl Seats {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self { began: Instant::now(), all: Arc::default() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds an accepted connection.
    pub fn take(&self, number: u64) -> OpenConnection {
        let idle_since = AtomicU64::new(self.now());
        let seat = Arc::new(Seat {
            number,
            busy: AtomicU64::new(0),
            idle_since,
            receives_since: AtomicU64::new(NEVER),
            close: Notify::new(),
            seats: self.clone(),
        });
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&seat));
        OpenConnection(seat)
    }

    /// Closes the connection that has been idle longest, or else the one that has been sending a body longest. Returns false if all connections are
    /// otherwise busy.
    pub fn make_room(&self) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let oldest = all.values().filter_map(|seat| Some((seat.wastes_since(now)?, seat.number))).min();
        let Some((_, number)) = oldest else { return false };
        // Remove it, so that it is not chosen twice.
        all.remove(&number).inspect(|seat| seat.close.notify_one());
        true
    }
}

/// An open connection; dropping it closes it.
pub struct OpenConnection(Arc<Seat>);

impl OpenConnection {
    /// Returns the connection, for its requests.
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.0)
    }

    /// Completes when the connection must be closed.
    pub async fn closed(&self) {
        self.0.close.notified().await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut all = self.0.seats.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.0.number);
    }
}

/// A request that is being answered.
pub struct BusySeat(Arc<Seat>);

impl BusySeat {
    /// Marks the connection as busy until this is dropped.
    pub fn begin(seat: &Arc<Seat>) -> Self {
        seat.busy.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(seat))
    }

    /// Keeps the connection busy until the response's body has been written.
    pub fn during(self, response: Response) -> Response {
        response.map(|body| Body::new(Written { body, _busy: self }))
    }
}

impl Drop for BusySeat {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.seats.now(), Ordering::SeqCst);
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request whose body is arriving.
pub struct Receiving(Arc<Seat>);

impl Receiving {
    /// Marks the body as arriving until this is dropped.
    pub fn begin(seat: &Arc<Seat>) -> Self {
        seat.receives_since.store(seat.seats.now(), Ordering::SeqCst);
        Self(Arc::clone(seat))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.receives_since.store(NEVER, Ordering::SeqCst);
    }
}

/// A response body that keeps its connection busy.
struct Written {
    body: Body,
    _busy: BusySeat,
}

impl HttpBody for Written {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
