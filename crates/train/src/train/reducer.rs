//! The thread that reduces a rank's gradients while its device continues with the backward pass.

use super::rows::union;
use netcl_device::driver::Event;
use netcl_dist::{Collected, Group, Relay, RelaySettings, Span};
use netcl_tensor::{Device, Error, Result, Tensor};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

enum Job {
    Rows {
        own: Vec<u8>,
        reply: Sender<Result<Vec<u32>>>,
    },
    Sum {
        x: Tensor,
        ready: Event,
    },
    Scatter {
        x: Tensor,
        bounds: Arc<Vec<usize>>,
        ready: Event,
    },
    Collect {
        x: Tensor,
        bounds: Arc<Vec<usize>>,
        rooms: Vec<Tensor>,
        ready: Event,
        reply: Sender<Result<Collected>>,
    },
    Gather {
        parts: Arc<Vec<Vec<Span>>>,
        ready: Event,
        reply: Sender<Result<Arrived>>,
    },
    JoinSoFar,
    Exchange {
        x: Tensor,
        reply: Sender<Result<Duration>>,
    },
    Finish {
        loss: Tensor,
        ready: Event,
        reply: Sender<Result<f32>>,
    },
}

/// Parameters that came from the other ranks.
pub(crate) struct Arrived {
    /// Bytes exchanged so far from the beginning of every rank's part; `usize::MAX` after the last ones.
    pub bytes: usize,
    /// Event when the last of them are on the device; `None` if this rank received none.
    pub there: Option<Event>,
}

/// The thread, and the channel to it.
pub(crate) struct Reducer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Reducer {
    /// Starts the thread. All ranks call this, each with its device.
    ///
    /// # Errors
    /// Errors of the group and the device; `Device` if the system cannot start a thread.
    pub fn start(group: &Group, device: &Device) -> Result<Self> {
        let relay = Relay::new(group, device, RelaySettings::default())?;
        let (jobs, todo) = channel();
        let group = group.clone();
        let thread =
            std::thread::Builder::new().name("reducer".into()).spawn(move || work(&group, relay, &todo));
        let thread = thread
            .map_err(|e| Error::device(format!("cannot start the thread that reduces gradients: {e}")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Replaces `x` by the sum over all ranks, once `ready` has come. [`Reducer::finish`] returns an error.
    ///
    /// # Errors
    /// `Internal` if the thread has ended.
    pub fn sum(&self, x: Tensor, ready: Event) -> Result<()> {
        self.give(Job::Sum { x, ready })
    }

    /// Requests which rows at least one rank needs, from this rank's [`TokenRows::bits`](super::rows::TokenRows::bits); the answer comes once the other ranks
    /// have made their requests.
    ///
    /// # Errors
    /// `Internal` if the thread has ended.
    pub fn rows(&self, own: Vec<u8>) -> Result<RowsOfAll> {
        let (reply, answer) = channel();
        self.give(Job::Rows { own, reply })?;
        Ok(RowsOfAll(answer))
    }

    /// Replaces this rank's part of `x` by the sum over all ranks, like [`Relay::reduce_scatter`], once `ready` has come. [`Reducer::finish`] returns
    /// an error.
    ///
    /// # Errors
    /// Errors of [`Reducer::sum`].
    pub fn scatter(&self, x: Tensor, bounds: Arc<Vec<usize>>, ready: Event) -> Result<()> {
        self.give(Job::Scatter { x, bounds, ready })
    }

    /// Receives all ranks' values of this rank's part of `x`, like [`Relay::collect_parts`], once `ready` has come.
    ///
    /// # Errors
    /// Errors of [`Reducer::sum`].
    pub fn collect(
        &self,
        x: Tensor,
        bounds: Arc<Vec<usize>>,
        rooms: Vec<Tensor>,
        ready: Event,
    ) -> Result<Receiver<Result<Collected>>> {
        let (reply, answer) = channel();
        self.give(Job::Collect { x, bounds, rooms, ready, reply })?;
        Ok(answer)
    }

    /// Sends this rank's part to all ranks, like [`Relay::all_gather`], once `ready` has come. Arrivals are reported piece by piece, to the end or an
    /// error.
    ///
    /// # Errors
    /// Errors of [`Reducer::sum`].
    pub fn gather(&self, parts: Arc<Vec<Vec<Span>>>, ready: Event) -> Result<Receiver<Result<Arrived>>> {
        let (reply, arriving) = channel();
        self.give(Job::Gather { parts, ready, reply })?;
        Ok(arriving)
    }

    /// Makes the device sum the exchanges started so far while later ones are in flight: see [`Relay::join_so_far`]. [`Reducer::finish`] returns an
    /// error.
    ///
    /// # Errors
    /// Errors of [`Reducer::sum`].
    pub fn join_so_far(&self) -> Result<()> {
        self.give(Job::JoinSoFar)
    }

    /// Replaces `x`, which is complete at this point of the device's queue, by the sum over all ranks, for later commands of that queue; waits for
    /// the ranks. No other sum may be in flight, because later commands would wait for it. Returns the time it took after the device reached this
    /// point.
    ///
    /// # Errors
    /// Errors of [`Relay::all_reduce_in_order`].
    pub fn exchange(&self, x: Tensor) -> Result<Duration> {
        let (reply, answer) = channel();
        self.give(Job::Exchange { x, reply })?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Waits for the sums; later commands of the device's queue run after them. Returns `loss`, which is available once `ready` has come.
    ///
    /// # Errors
    /// The first error of the sums since the last call.
    pub fn finish(&self, loss: Tensor, ready: Event) -> Result<f32> {
        let (reply, answer) = channel();
        self.give(Job::Finish { loss, ready, reply })?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    fn give(&self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)
    }
}

/// A pending answer to [`Reducer::rows`].
pub(crate) struct RowsOfAll(Receiver<Result<Vec<u32>>>);

impl RowsOfAll {
    /// Waits for the answer.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn wait(&self) -> Result<Vec<u32>> {
        self.0.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported as an error of its step.
            let _ = thread.join();
        }
    }
}

pub(super) fn ended() -> Error {
    Error::internal("the thread that reduces gradients has ended")
}

fn work(group: &Group, mut relay: Relay, jobs: &Receiver<Job>) {
    let mut failed = None;
    for job in jobs {
        match job {
            Job::Rows { own, reply } => {
                let _ = reply.send(group.all_gather_bytes(&own).map(|ranks| union(&ranks)));
            }
            Job::Sum { x, ready } => failed = failed.or_else(|| relay.all_reduce(&x, &ready).err()),
            Job::Scatter { x, bounds, ready } => {
                failed = failed.or_else(|| relay.reduce_scatter(&x, &bounds, &ready).err());
            }
            Job::Exchange { x, reply } => {
                let _ = reply.send(relay.all_reduce_in_order(&x));
            }
            Job::JoinSoFar => failed = failed.or_else(|| relay.join_so_far().err()),
            Job::Collect { x, bounds, rooms, ready, reply } => {
                let _ = reply.send(relay.collect_parts(&x, &bounds, &rooms, &ready));
            }
            Job::Gather { parts, ready, reply } => {
                let told = |bytes, there| {
                    let _ = reply.send(Ok(Arrived { bytes, there }));
                };
                let end = relay.all_gather(&parts, &ready, told);
                let _ = reply.send(end.map(|()| Arrived { bytes: usize::MAX, there: None }));
            }
            Job::Finish { loss, ready, reply } => {
                let done = match failed.take() {
                    Some(e) => Err(e),
                    None => relay
                        .with_overlapping_transfers(&ready, || loss.item())
                        .and_then(|loss| relay.join().map(|()| loss)),
                };
                // A receiver that no longer waits has another error.
                let _ = reply.send(done);
            }
        }
    }
}
