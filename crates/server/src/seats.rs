//! Connections that are open. Where all places are taken, the one that has been idle longest makes room for the next.

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
    close: Notify,
    seats: Seats,
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
            close: Notify::new(),
            seats: self.clone(),
        });
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&seat));
        Taken(seat)
    }

    /// Closes the connection that has been idle longest. False if all are busy.
    pub fn make_room(&self) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = all.values().filter(|seat| seat.busy.load(Ordering::SeqCst) == 0);
        let oldest = idle.min_by_key(|seat| (seat.idle_since.load(Ordering::SeqCst), seat.number));
        let Some(number) = oldest.map(|seat| seat.number) else { return false };
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
