//! The thread that reduces a rank's gradients while its device goes on with the backward pass.

use netcl_device::driver::Event;
use netcl_dist::{Group, Relay, RelaySettings};
use netcl_tensor::{Device, Error, Result, Tensor};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What all ranks said at the end of a step.
pub(super) struct Reduced {
    /// Each rank's part of the loss.
    pub losses: Vec<f32>,
    /// Whether one was asked to stop, and to save.
    pub asked: [bool; 2],
}

enum Job {
    Sum { x: Tensor, ready: Event },
    Finish { loss: Tensor, asked: [bool; 2], ready: Event, reply: Sender<Result<Reduced>> },
}

/// The thread, and what it is given to do.
pub(super) struct Reducer {
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
            std::thread::Builder::new().name("reducer".into()).spawn(move || work(relay, &group, &todo));
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

    /// Waits for the sums; what the device's queue does from here on comes after them. `loss` is then the sum of all ranks' losses.
    ///
    /// # Errors
    /// The first one of the sums since the last call.
    pub fn finish(&self, loss: Tensor, asked: [bool; 2]) -> Result<Reduced> {
        let ready = loss.device().mark()?;
        let (reply, answer) = channel();
        self.give(Job::Finish { loss, asked, ready, reply })?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    fn give(&self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)
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

fn ended() -> Error {
    Error::internal("the thread that reduces gradients has ended")
}

fn work(mut relay: Relay, group: &Group, jobs: &Receiver<Job>) {
    let mut failed = None;
    for job in jobs {
        match job {
            Job::Sum { x, ready } => failed = failed.or_else(|| relay.all_reduce(&x, &ready).err()),
            Job::Finish { loss, asked, ready, reply } => {
                let done = match failed.take() {
                    Some(e) => Err(e),
                    None => finish(&mut relay, group, (&loss, &ready), asked),
                };
                // Whoever does not wait any more has an error of its own.
                let _ = reply.send(done);
            }
        }
    }
}

fn finish(
    relay: &mut Relay,
    group: &Group,
    (loss, ready): (&Tensor, &Event),
    asked: [bool; 2],
) -> Result<Reduced> {
    let own = relay.beside(ready, || loss.item())?;
    let all = group.all_gather(&[own.to_bits(), u32::from(asked[0]), u32::from(asked[1])])?;
    let of_rank: Vec<&[u32]> = all.chunks_exact(3).collect();
    let losses: Vec<f32> = of_rank.iter().map(|rank| f32::from_bits(rank[0])).collect();
    let asked = [1, 2].map(|i| of_rank.iter().any(|rank| rank[i] != 0));
    relay.beside(ready, || loss.set_f32(&[losses.iter().sum()]))?;
    relay.join()?;
    Ok(Reduced { losses, asked })
}
