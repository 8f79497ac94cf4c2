//! Connections that are open. Where all places are taken, the one that has been idle longest makes room for the next, or the one that has been sending
//! a body longest.

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

/// Milliseconds that a connection may be idle, or send a body, before it can make room: the request of a new one is still to be read.
const UNDISTURBED: u64 = 500;
/// The time of what has not begun.
const NEVER: u64 = u64::MAX;

/// All of them.
#[derive(Clone)]
pub struct Seats {
    began: Instant,
    all: Arc<Mutex<HashMap<u64, Arc<Seat>>>>,
}

/// One connection.
pub struct Seat {
    number: u64,
    /// Requests that are being answered.
    busy: AtomicU64,
    /// Milliseconds from the beginning of the server to its last request's end.
    idle_since: AtomicU64,
    /// The same until a body began that is still arriving.
    receives_since: AtomicU64,
    close: Notify,
    seats: Seats,
}

impl Seat {
    /// Since when it only takes a place, if it may be disturbed; idle ones are before others.
    fn wastes_since(&self, now: u64) -> Option<(bool, u64)> {
        let is_busy = self.busy.load(Ordering::SeqCst) > 0;
        let since = if is_busy { &self.receives_since } else { &self.idle_since }.load(Ordering::SeqCst);
        (since.saturating_add(UNDISTURBED) <= now).then_some((is_busy, since))
    }
}

impl Seats {
    /// None is open yet.
    pub fn new() -> Self {
        Self { began: Instant::now(), all: Arc::default() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A connection that was accepted.
    pub fn take(&self, number: u64) -> Taken {
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
        Taken(seat)
    }

    /// Closes the connection that has been idle longest, or else the one that has been sending a body longest. False if all are busy otherwise.
    pub fn make_room(&self) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let oldest = all.values().filter_map(|seat| Some((seat.wastes_since(now)?, seat.number))).min();
        let Some((_, number)) = oldest else { return false };
        // It is not chosen twice.
        all.remove(&number).inspect(|seat| seat.close.notify_one());
        true
    }
}

/// An open connection; dropped, it is closed.
pub struct Taken(Arc<Seat>);

impl Taken {
    /// The connection, for its requests.
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.0)
    }

    /// Is done when the connection has to make room.
    pub async fn closed(&self) {
        self.0.close.notified().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut all = self.0.seats.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.0.number);
    }
}

/// A request that is being answered.
pub struct Busy(Arc<Seat>);

impl Busy {
    /// From now on, until this is dropped.
    pub fn begin(seat: &Arc<Seat>) -> Self {
        seat.busy.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(seat))
    }

    /// Until the response's body has been written.
    pub fn during(self, response: Response) -> Response {
        response.map(|body| Body::new(Written { body, _busy: self }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.seats.now(), Ordering::SeqCst);
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request whose body is arriving.
pub struct Receiving(Arc<Seat>);

impl Receiving {
    /// From now on, until this is dropped.
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

/// A body during which its connection is busy.
struct Written {
    body: Body,
    _busy: Busy,
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
