//! Prefetches batches on a thread, so that the device does not wait for them.

use super::{Batch, Loader, Position};
use netcl_device::{Error, ErrorKind, Result};
use std::{
    sync::mpsc::{IntoIter, Receiver, sync_channel},
    thread::JoinHandle,
};

/// An endless sequence of batches from a position on; ends after an error. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch {
    batches: Option<Receiver<Result<(Position, Batch)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts a thread that keeps up to `depth` batches ready. `Io` if no thread can be created.
    pub fn start(loader: Loader, from: Position, depth: usize) -> Result<Self> {
        let (send, batches) = sync_channel(depth);
        let work = move || {
            let mut at = from;
            loop {
                let batch = loader.batch(at).map(|batch| (at, batch));
                let failed = batch.is_err();
                // Sending fails after the end of the run; after an error the thread ends.
                if send.send(batch).is_err() || failed {
                    return;
                }
                at = loader.next(at);
            }
        };
        let thread = std::thread::Builder::new().name("netcl-data".into()).spawn(work).map_err(started)?;
        Ok(Self { batches: Some(batches), thread: Some(thread) })
    }
}

impl Iterator for Prefetch {
    type Item = Result<(Position, Batch)>;

    /// Returns the next batch and its position, or the error of [`Loader::batch`]; after an error, `None`.
    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // The channel is dropped first: a thread that waits to send into it wakes up and ends.
        drop(self.batches.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the data thread panicked");
        }
    }
}

/// Runs `work` with the items of `items`, which a separate thread computes up to `depth` ahead; they end after the first error. The thread has ended
/// when this returns.
///
/// # Errors
/// `Io` if no thread can be created; those of `work`.
pub(crate) fn ahead<T: Send, R>(
    items: impl Iterator<Item = Result<T>> + Send,
    depth: usize,
    work: impl FnOnce(&mut IntoIter<Result<T>>) -> Result<R>,
) -> Result<R> {
    std::thread::scope(|scope| {
        let (send, ready) = sync_channel(depth);
        let make = move || {
            for item in items {
                let failed = item.is_err();
                // Sending fails after the end of `work`.
                if send.send(item).is_err() || failed {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("netcl-data".into()).spawn_scoped(scope, make).map_err(started)?;
        // Dropped before the scope waits for the thread, so that a thread that waits to send wakes up and ends.
        work(&mut ready.into_iter())
    })
}

fn started(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot start the data thread: {e}"))
}

#[cfg(test)]
mod tests {
    use super::super::Tokens;
    use super::*;

    #[test]
    fn same_batches_as_the_loader_from_any_position() {
        let loader = Loader::new(Tokens::from((0..300).collect::<Vec<_>>()), 300, 2, 8, 2).unwrap();
        let mut at = Position { seed: 1, step: 10, micro: 1 };
        let mut ahead = Prefetch::start(loader.clone(), at, 3).unwrap();
        for _ in 0..20 {
            let (position, batch) = ahead.next().unwrap().unwrap();
            assert_eq!((position, batch), (at, loader.batch(at).unwrap()));
            at = loader.next(at);
        }
    }

    #[test]
    fn errors_arrive_once_and_the_thread_ends() {
        let loader = Loader::new(Tokens::from(vec![7; 20]), 7, 2, 8, 1).unwrap();
        let mut ahead = Prefetch::start(loader, Position::default(), 2).unwrap();
        assert!(ahead.next().unwrap().unwrap_err().message().contains("is 7, but the vocabulary has 7"));
        assert!(ahead.next().is_none());
    }

    #[test]
    fn items_come_in_order_and_a_worker_that_stops_early_ends_the_thread() {
        let all = ahead((0..100).map(Ok), 3, |items| items.collect::<Result<Vec<i32>>>()).unwrap();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        let first = ahead((0..).map(Ok), 2, |items| Ok(items.next())).unwrap();
        assert_eq!(first.unwrap().unwrap(), 0);
        let broken = |i: i32| if i < 2 { Ok(i) } else { Err(Error::format("broken")) };
        let seen = ahead((0..).map(broken), 2, |items| Ok(items.count())).unwrap();
        assert_eq!(seen, 3, "two items and the error");
    }
}
