//! The thread that reduces a rank's gradients while its device goes on with the backward pass.

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
    /// Bytes at the begin of every rank's part that were exchanged; `usize::MAX` after the last ones.
    pub bytes: usize,
    /// When the last of them are on the device; `None` where this rank got none.
    pub there: Option<Event>,
}

/// The thread, and what it is given to do.
pub(crate) struct Reducer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Reducer {
    /// Starts it. All ranks call this, with a device each.
    ///
    /// # Errors
    /// Those of the group and the device; `Device` where the system has no more threads.
    pub fn start(group: &Group, device: &Device) -> Result<Self> {
        let relay = Relay::new(group, device, RelaySettings::default())?;
        let (jobs, todo) = channel();
        let group = group.clone();
        let thread =
            std::thread::Builder::new().name("reducer".into()).spawn(move || work(&group, relay, &todo));
        let thread =
            thread.map_err(|e| Error::device(format!("no thread for the reduction of gradients: {e}")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Replaces `x` by the sum over all ranks, once `ready` has come. An error comes with [`Reducer::finish`].
    ///
    /// # Errors
    /// `Internal` where the thread has ended.
    pub fn sum(&self, x: Tensor, ready: Event) -> Result<()> {
        self.give(Job::Sum { x, ready })
    }

    /// Asks which rows at least one rank needs, from this rank's [`Rows::bits`](super::rows::Rows::bits); the answer comes once the other ranks
    /// have asked.
    ///
    /// # Errors
    /// `Internal` where the thread has ended.
    pub fn rows(&self, own: Vec<u8>) -> Result<RowsOfAll> {
        let (reply, answer) = channel();
        self.give(Job::Rows { own, reply })?;
        Ok(RowsOfAll(answer))
    }

    /// Replaces this rank's part of `x` by the sum over all ranks, as [`Relay::reduce_scatter`] does, once `ready` has come. An error comes with
    /// [`Reducer::finish`].
    ///
    /// # Errors
    /// As [`Reducer::sum`].
    pub fn scatter(&self, x: Tensor, bounds: Arc<Vec<usize>>, ready: Event) -> Result<()> {
        self.give(Job::Scatter { x, bounds, ready })
    }

    /// Gets what all ranks have of this rank's part of `x`, as [`Relay::collect_parts`] does, once `ready` has come.
    ///
    /// # Errors
    /// As [`Reducer::sum`].
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

    /// Gives all ranks this one's part, as [`Relay::all_gather`] does, once `ready` has come. What arrives is told piece by piece,
    /// to the end or an error.
    ///
    /// # Errors
    /// As [`Reducer::sum`].
    pub fn gather(&self, parts: Arc<Vec<Vec<Span>>>, ready: Event) -> Result<Receiver<Result<Arrived>>> {
        let (reply, arriving) = channel();
        self.give(Job::Gather { parts, ready, reply })?;
        Ok(arriving)
    }

    /// The device sums what was begun so far while what is begun from here on is on its way: see [`Relay::join_so_far`]. An error comes with
    /// [`Reducer::finish`].
    ///
    /// # Errors
    /// As [`Reducer::sum`].
    pub fn join_so_far(&self) -> Result<()> {
        self.give(Job::JoinSoFar)
    }

    /// Replaces `x`, which is complete where the device's queue is, by the sum over all ranks for what comes next in that queue; waits for the ranks.
    /// No other sum may be under way: what comes next would wait for it. Returns how long that took from when the device had come to it.
    ///
    /// # Errors
    /// As [`Relay::all_reduce_in_order`].
    pub fn exchange(&self, x: Tensor) -> Result<Duration> {
        let (reply, answer) = channel();
        self.give(Job::Exchange { x, reply })?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Waits for the sums; what the device's queue does from here on comes after them. Returns `loss`, which is there once `ready` has come.
    ///
    /// # Errors
    /// The first one of the sums since the last call.
    pub fn finish(&self, loss: Tensor, ready: Event) -> Result<f32> {
        let (reply, answer) = channel();
        self.give(Job::Finish { loss, ready, reply })?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    fn give(&self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)
    }
}

/// An answer to [`Reducer::rows`] to come.
pub(crate) struct RowsOfAll(Receiver<Result<Vec<u32>>>);

impl RowsOfAll {
    /// Waits for it.
    ///
    /// # Errors
    /// Those of the group.
    pub fn wait(&self) -> Result<Vec<u32>> {
        self.0.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic was an error of the step it belonged to.
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
                    None => relay.beside(&ready, || loss.item()).and_then(|loss| relay.join().map(|()| loss)),
                };
                // Whoever does not wait any more has an error of its own.
                let _ = reply.send(done);
            }
        }
    }
}
