//! Tensors from a rank to the one before or behind it, through page-locked host memory that the ranks of a machine share: a copy to the host, a
//! short message that says so, and a copy to the other device. Where ranks are on several machines, or behind a [`slowed`](crate::slowed)
//! link, the bytes are the message.
//!
//! Copies have streams of their own, one each way, and a thread waits for those to the host and sends the messages. So a rank can hand over what
//! its device has still to compute, and enqueue what comes next.

use crate::Group;
use crate::local::has_cores_for;
use netcl_device::driver::Event;
use netcl_device::{Device, Error, Pinned, Result, SharedMemory, Stream};
use netcl_tensor::Tensor;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Slots begin at multiples of this many bytes.
const PAGE: usize = 4096;
/// How long a rank asks for the end of a copy before it sleeps, where cores suffice.
const AWAKE: Duration = Duration::from_micros(500);
/// What a message begins with: whether what it tells of was computed.
const THERE: u8 = 1;
const FAILED: u8 = 0;

/// This rank's end of what ranks of a group hand over to those beside them.
pub struct Mailbox {
    group: Group,
    device: Device,
    // Before the memory: what is under way ends first.
    down: Stream,
    up: Stream,
    postman: Postman,
    /// The memory of all ranks, or of this one.
    host: Pinned,
    shared: bool,
    /// Bytes of a slot.
    slot: usize,
    slots: usize,
    /// Messages so far: to the rank before and to the one behind, and from them.
    sent: [usize; 2],
    received: [usize; 2],
    /// When the last message came.
    came: Option<Instant>,
}

/// What another rank is to be told of.
struct Letter {
    to: usize,
    /// When it is in host memory, and where.
    there: Event,
    at: usize,
    bytes: usize,
}

enum Job {
    /// A step begins.
    Begin(Instant),
    /// A part of it: when the device has computed it, when what it needed came, and who gets its result.
    Part { ready: Event, came: Option<Instant>, letter: Option<Letter> },
    /// The end: how long the device waited.
    End(Sender<Duration>),
}

/// The thread that sends messages.
struct Postman {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<Error>>>,
}

impl Mailbox {
    /// The end of this rank, on its device, for tensors of `bytes` at most. All ranks of `group` call it with the same sizes. No rank may be
    /// `slots` messages or more ahead of the one that reads them: whoever sends has learned before that the first of them was read.
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; `Device` where the system has no more threads.
    pub fn new(group: &Group, device: &Device, bytes: usize, slots: usize) -> Result<Self> {
        let (slot, slots) = (bytes.next_multiple_of(PAGE), slots.max(1));
        // Between each two neighbours in both directions.
        let lines = 2 * group.size().saturating_sub(1);
        let found = group.share_memory(lines * slots * slot)?;
        let shared = found.is_some();
        // Else from and to either side.
        let memory = Arc::new(found.map_or_else(|| SharedMemory::new(4 * slots * slot), Ok)?);
        let host = device.pin(&memory);
        let whole = (!shared).then_some(memory);
        Ok(Self {
            group: group.clone(),
            device: device.clone(),
            down: device.stream()?,
            up: device.stream()?,
            postman: Postman::start(group, device, whole)?,
            host,
            shared,
            slot,
            slots,
            sent: [0; 2],
            received: [0; 2],
            came: None,
        })
    }

    /// Whether tensors go through memory that the ranks share.
    pub fn shares_memory(&self) -> bool {
        self.shared
    }

    /// Begins a step, of which [`Mailbox::end`] says how long the device has waited.
    ///
    /// # Errors
    /// `Internal` where the thread has ended.
    pub fn begin(&mut self) -> Result<()> {
        self.came = None;
        self.postman.give(Job::Begin(Instant::now()))
    }

    /// Waits until `from` has sent its next tensor. It is in `room` for whatever the device's queue does from here on; the copy begins once
    /// `free` has come, from which on nothing in the queue uses what was there.
    ///
    /// # Errors
    /// `Shape` for a tensor that has no room, or a rank that is not beside this one; as [`Group::recv`]; those of the device, and what
    /// the messages of this rank failed with.
    pub fn receive(&mut self, from: usize, room: &Tensor, free: Option<&Event>) -> Result<()> {
        let (side, bytes) = (self.side(from)?, self.bytes_of(room)?);
        let slot = self.place(from, self.group.rank(), self.received[side]);
        self.received[side] += 1;
        let mut message = vec![0; if self.shared { 1 } else { 1 + bytes }];
        let got = self.group.recv(from, &mut message);
        // This rank's own error says more than that of one that waits for it.
        self.postman.check()?;
        got?;
        self.came = Some(Instant::now());
        if message[0] != THERE {
            let name = self.group.watch().name(from);
            return Err(Error::device(format!(
                "{name} could not compute what this rank waits for; its own message says why"
            )));
        }
        if !self.shared {
            self.host.memory().write(slot, &message[1..])?;
        }
        free.map_or(Ok(()), |free| self.up.wait(free))?;
        let target = (room.storage(), room.layout().offset * room.dtype().size());
        let there = self.up.run(|| self.device.upload_from((&self.host, slot), target, bytes))?;
        self.up.flush()?;
        self.device.wait_for(&there)
    }

    /// Tells that what was enqueued in the device's queue so far is a part of the step, whose result the rank and the tensor are, if one needs it.
    /// Returns when the result has been copied; until then nothing may overwrite it. Does not wait for the device.
    ///
    /// # Errors
    /// `Shape` for a tensor that has no room, or a rank that is not beside this one; those of the device, and what the messages of this rank
    /// failed with.
    pub fn send(&mut self, result: Option<(usize, &Tensor)>) -> Result<(Event, Option<Event>)> {
        let ready = self.device.mark()?;
        self.device.flush()?;
        let letter = result.map(|(to, x)| self.copied(to, x, &ready)).transpose()?;
        let there = letter.as_ref().map(|letter| letter.there.clone());
        let came = self.came.take();
        self.postman.check()?;
        self.postman.give(Job::Part { ready: ready.clone(), came, letter })?;
        Ok((ready, there))
    }

    fn copied(&mut self, to: usize, x: &Tensor, ready: &Event) -> Result<Letter> {
        let (side, bytes) = (self.side(to)?, self.bytes_of(x)?);
        let at = self.place(self.group.rank(), to, self.sent[side]);
        self.sent[side] += 1;
        let from = (x.storage(), x.layout().offset * x.dtype().size());
        self.down.wait(ready)?;
        let there = self.down.run(|| self.device.download_into(from, (&self.host, at), bytes))?;
        self.down.flush()?;
        Ok(Letter { to, there, at, bytes })
    }

    /// What the device's queue does from here on comes after all copies so far, whose tensors are free for others then.
    ///
    /// # Errors
    /// Those of the device.
    pub fn join(&self) -> Result<()> {
        self.down.join()?;
        self.up.join()
    }

    /// Waits until all messages are sent. Returns how long the device waited for what other ranks sent.
    ///
    /// # Errors
    /// What the messages of this rank failed with; those of the device.
    pub fn end(&mut self) -> Result<Duration> {
        let (reply, answer) = channel();
        self.postman.give(Job::End(reply))?;
        let waited = answer.recv();
        self.postman.check()?;
        self.join()?;
        waited.map_err(|_| ended())
    }

    /// 0 for the rank before this one, 1 for the one behind.
    fn side(&self, rank: usize) -> Result<usize> {
        let own = self.group.rank();
        match rank {
            _ if rank + 1 == own => Ok(0),
            _ if rank == own + 1 && rank < self.group.size() => Ok(1),
            _ => Err(Error::shape(format!("mailbox: rank {rank} is not beside rank {own}"))),
        }
    }

    fn bytes_of(&self, x: &Tensor) -> Result<usize> {
        let bytes = x.count() * x.dtype().size();
        if bytes > self.slot || !x.is_contiguous() {
            return Err(Error::shape(format!(
                "mailbox: {} {} for {} contiguous bytes at most",
                x.dtype(),
                x.shape(),
                self.slot
            )));
        }
        Ok(bytes)
    }

    /// Where message `number` from a rank to one beside it lies.
    fn place(&self, from: usize, to: usize, number: usize) -> usize {
        let own = self.group.rank();
        let line = match self.shared {
            true => 2 * from.min(to) + usize::from(from > to),
            false => 2 * usize::from(from.max(to) > own) + usize::from(from == own),
        };
        (line * self.slots + number % self.slots) * self.slot
    }
}

impl Postman {
    /// `whole`: the memory of what messages carry themselves.
    fn start(group: &Group, device: &Device, whole: Option<Arc<SharedMemory>>) -> Result<Self> {
        let (jobs, todo) = channel();
        let failed = Arc::new(Mutex::new(None));
        let round = Round { group: group.clone(), device: device.clone(), whole, failed: failed.clone() };
        let thread = std::thread::Builder::new().name("mail".into()).spawn(move || round.work(&todo));
        let thread =
            thread.map_err(|e| Error::device(format!("no thread for messages between stages: {e}")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), failed })
    }

    fn give(&self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)
    }

    fn check(&self) -> Result<()> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

impl Drop for Postman {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic was an error of the step it belonged to.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Round {
    group: Group,
    device: Device,
    whole: Option<Arc<SharedMemory>>,
    failed: Arc<Mutex<Option<Error>>>,
}

impl Round {
    fn work(&self, jobs: &Receiver<Job>) {
        let awake = if has_cores_for(self.group.size()) { AWAKE } else { Duration::ZERO };
        let (mut ended, mut waited) = (None, Duration::ZERO);
        for job in jobs {
            match job {
                Job::Begin(now) => (ended, waited) = (Some(now), Duration::ZERO),
                Job::Part { ready, came, letter } => {
                    let passed = self.device.wait_awake(&ready, awake);
                    let now = Instant::now();
                    if let Some((came, ended)) = came.zip(ended) {
                        waited += came.saturating_duration_since(ended);
                    }
                    ended = Some(now);
                    let copied = passed.and_then(|()| match &letter {
                        Some(letter) => self.device.wait_awake(&letter.there, awake),
                        None => Ok(()),
                    });
                    let told = letter.map_or(Ok(()), |letter| self.tell(&letter, copied.is_ok()));
                    if let Err(e) = copied.and(told) {
                        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    }
                }
                Job::End(reply) => {
                    // Whoever does not wait any more has an error of its own.
                    let _ = reply.send(waited);
                }
            }
        }
    }

    fn tell(&self, letter: &Letter, there: bool) -> Result<()> {
        let mut message = vec![if there { THERE } else { FAILED }];
        if let Some(memory) = &self.whole {
            message.resize(1 + letter.bytes, 0);
            memory.read(letter.at, &mut message[1..])?;
        }
        self.group.send(letter.to, &message)
    }
}

fn ended() -> Error {
    Error::internal("the thread that sends messages between stages has ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, local, slowed};
    use netcl_tensor::DType;
    use netcl_tensor::suite::test_device;

    fn on_three(messages: bool, f: impl Fn(Group, Device) + Sync) {
        let f = &f;
        std::thread::scope(|scope| {
            for rank in local(3, Duration::from_secs(60)) {
                let link = Link { delay: Duration::ZERO, bytes_per_s: 1e9 };
                let rank = if messages { slowed(&rank, link) } else { rank };
                scope.spawn(move || f(rank, test_device().unwrap()));
            }
        });
    }

    /// Rows go along three ranks and come back, each of which adds its number; slots and rooms are used again.
    #[test]
    fn tensors_go_to_the_rank_behind_and_come_back() {
        for messages in [false, true] {
            on_three(messages, |rank, device| {
                let mut mail = Mailbox::new(&rank, &device, 4000, 3).unwrap();
                assert_eq!(mail.shares_memory(), !messages);
                let own = rank.rank();
                let into = Tensor::zeros(&device, [10, 100], DType::F32).unwrap();
                let mut free = None;
                for round in 0..7usize {
                    mail.begin().unwrap();
                    let values: Vec<f32> = (0..1000).map(|i| (i * (round + 1)) as f32).collect();
                    let mut x = Tensor::from_f32(&device, [10, 100], &values, DType::F32).unwrap();
                    if own > 0 {
                        mail.receive(own - 1, &into, free.as_ref()).unwrap();
                        x = into.add_scalar(own as f32).unwrap();
                    }
                    if own < 2 {
                        free = Some(mail.send(Some((own + 1, &x))).unwrap().0);
                        mail.receive(own + 1, &into, free.as_ref()).unwrap();
                        x = into.add_scalar(own as f32).unwrap();
                    }
                    let result = own.checked_sub(1).map(|to| (to, &x));
                    let (ready, there) = mail.send(result).unwrap();
                    assert_eq!(there.is_some(), own > 0);
                    free = Some(ready);
                    mail.end().unwrap();
                    if own == 0 {
                        let expected: Vec<f32> = values.iter().map(|v| v + 4.0).collect();
                        assert_eq!(x.to_vec().unwrap(), expected);
                    }
                }
                let large = Tensor::zeros(&device, [2000], DType::F32).unwrap();
                let beside = if own == 0 { 1 } else { own - 1 };
                assert!(mail.send(Some((beside, &large))).is_err());
                assert!(mail.send(Some((own, &into))).is_err());
                rank.barrier().unwrap();
            });
        }
    }

    /// What waits is the device, not the host that is ahead of it.
    #[test]
    fn waiting_is_from_the_end_of_a_part_to_the_next_message() {
        let waited = Mutex::new([Duration::ZERO; 3]);
        on_three(false, |rank, device| {
            let mut mail = Mailbox::new(&rank, &device, 400, 2).unwrap();
            let (own, x) = (rank.rank(), Tensor::zeros(&device, [100], DType::F32).unwrap());
            rank.barrier().unwrap();
            mail.begin().unwrap();
            if own > 0 {
                mail.receive(own - 1, &x, None).unwrap();
            }
            if own == 1 {
                std::thread::sleep(Duration::from_millis(60));
            }
            mail.send((own < 2).then_some((own + 1, &x))).unwrap();
            waited.lock().unwrap()[own] = mail.end().unwrap();
        });
        let waited = waited.into_inner().unwrap();
        assert_eq!(waited[0], Duration::ZERO);
        assert!(waited[2] >= Duration::from_millis(55), "{waited:?}");
    }

    /// A rank that cannot compute says so to the one that waits for it.
    #[test]
    fn a_part_that_failed_is_told() {
        let ranks = local(2, Duration::from_secs(60));
        let errors: Vec<String> = std::thread::scope(|scope| {
            let run = |rank: Group| {
                scope.spawn(move || {
                    let device = test_device().unwrap();
                    let mut mail = Mailbox::new(&rank, &device, 400, 2).unwrap();
                    let x = Tensor::zeros(&device, [100], DType::F32).unwrap();
                    if rank.rank() == 1 {
                        return mail.receive(0, &x, None).unwrap_err().to_string();
                    }
                    // An event of another driver is one that cannot be waited for.
                    let there = Event::new(());
                    let letter = Some(Letter { to: 1, there: there.clone(), at: 0, bytes: 400 });
                    mail.postman.give(Job::Part { ready: there, came: None, letter }).unwrap();
                    mail.end().unwrap_err().to_string()
                })
            };
            let threads: Vec<_> = ranks.into_iter().map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(errors[0].contains("event"), "{errors:?}");
        assert!(errors[1].contains("rank 0 could not compute"), "{errors:?}");
    }
}
