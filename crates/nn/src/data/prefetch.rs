//! Prefetching of batches on a thread, so that the device does not wait for them.

use super::{Batch, Loader, Position};
use netcl_device::{Error, ErrorKind, Result};
use std::{
    sync::mpsc::{Receiver, sync_channel},
    thread::JoinHandle,
};

/// Endless sequence of batches from a position on; ends after an error. Dropping it ends the thread.
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
        let thread = std::thread::Builder::new()
            .name("netcl-data".into())
            .spawn(work)
            .map_err(|e| Error::new(ErrorKind::Io, format!("starting the data thread: {e}")))?;
        Ok(Self { batches: Some(batches), thread: Some(thread) })
    }
}

impl Iterator for Prefetch {
    type Item = Result<(Position, Batch)>;

    /// The next batch and its position, or the error of [`Loader::batch`]; after an error, `None`.
    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // First the channel: a thread that waits to send into it wakes up and ends.
        drop(self.batches.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the data thread panicked");
        }
    }
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
}
