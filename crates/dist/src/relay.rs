//! Reductions of tensors through page-locked host memory, beside what the device computes.
//!
//! Every rank copies a piece of its vector into a slot of host memory; ranks of one machine share that memory and copy each other's pieces
//! to their devices, which add them up: few ranks the whole vectors, more of them a share each, which they pass on. Two streams carry the copies, one each way, so both directions of the link are in use, and the
//! device's own queue goes on meanwhile. Ranks on several machines, or behind a [`slowed`](crate::slowed) link, exchange the pieces by
//! messages and add them on the host. The sums have the same bits either way: in the order of ranks, in f32, rounded once.

mod parts;
mod small;

pub use parts::{Collected, Span};
pub use small::WayTime;

use crate::local::has_cores_for;
use crate::{Group, Reduction, shard};
use netcl_device::driver::Event;
use netcl_device::{Device, Error, Pinned, Result, SharedMemory, Stream};
use netcl_tensor::ops::map::map_into;
use netcl_tensor::{DType, Tensor};
use small::{AWAKE, SMALL, Small};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sizes of a [`Relay`].
#[derive(Clone, Copy, Debug)]
pub struct RelaySettings {
    /// Bytes that are copied at a time: a multiple of 4096.
    pub piece: usize,
    /// Pieces of each rank that the host memory holds: at least 3.
    pub slots: usize,
    /// From so many ranks on each sums its share and passes the sums on; with fewer, each sums everything.
    pub shares_from: usize,
}

impl Default for RelaySettings {
    /// Pieces that a link of 50 GB/s moves in a few times the latency of a transfer and a message.
    fn default() -> Self {
        Self { piece: 8 << 20, slots: 4, shares_from: 5 }
    }
}

/// A vector is copied in so many pieces, if they have at least so many bytes: the copy of one to the host and that of another to the device overlap.
const PIECES: usize = 4;
const LEAST_PIECE: usize = 2 << 20;
/// Elements at whose multiples shares begin: an alignment that every device accepts.
const ALIGN: usize = 1024;
/// Summands of one launch.
const SUMMANDS: [&str; 7] = [
    "x0 + x1",
    "x0 + x1 + x2",
    "x0 + x1 + x2 + x3",
    "x0 + x1 + x2 + x3 + x4",
    "x0 + x1 + x2 + x3 + x4 + x5",
    "x0 + x1 + x2 + x3 + x4 + x5 + x6",
    "x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7",
];

/// One rank's end of the reductions of a group.
pub struct Relay {
    group: Group,
    device: Device,
    settings: RelaySettings,
    // Before the memory: what is under way ends first.
    down: Stream,
    up: Stream,
    /// Whether they were used since the last join.
    down_used: bool,
    up_used: bool,
    host: Pinned,
    /// Whether the memory is that of all ranks.
    shared: bool,
    /// Memory of the device for other ranks' pieces where each rank sums its share, by type.
    staging: Vec<(DType, Vec<Tensor>)>,
    /// Memory for other ranks' vectors where each rank sums everything: of the first vector since the last join, of the second, …
    others: Vec<Vec<Tensor>>,
    /// How many of those are in use since the last join.
    taken: usize,
    /// Vectors that are still to be summed, and which of `others` they are summed with.
    pending: Vec<(Tensor, usize)>,
    small: Small,
    /// How long this host waits awake: not at all where cores are few.
    awake: Duration,
    /// Of the last small vector.
    last_small: Option<SmallTimes>,
    /// Pieces whose download was enqueued, and pieces that were reduced.
    started: usize,
    reduced: usize,
    /// Of the last pieces: when this rank has read the slots, if it reads any.
    read: VecDeque<Option<Event>>,
}

/// How the time of the last small vector of [`Relay::all_reduce_in_order`] went.
#[derive(Clone, Default)]
pub struct SmallTimes {
    /// Until the host had it: what was in the queue before, and its copy.
    pub read: Duration,
    /// Until the host had the sum: messages, and waiting for other ranks.
    pub message: Duration,
    /// Until the sum was enqueued.
    pub write: Duration,
    /// When it is on the device, if the driver says so.
    there: Option<Event>,
}

/// A piece that is on its way to the host.
struct Piece {
    x: Tensor,
    /// Where it begins in its vector, in elements.
    begin: usize,
    there: Event,
}

impl Relay {
    /// The end of this rank, on its device. All ranks call it, with the same settings.
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; `Shape` for other settings than those described; `Format` where ranks give different ones; `Memory` without room on the host; those of the device.
    pub fn new(group: &Group, device: &Device, settings: RelaySettings) -> Result<Self> {
        let RelaySettings { piece, slots, .. } = settings;
        if piece / 8 < group.size() || !piece.is_multiple_of(4096) || slots < 3 {
            return Err(Error::shape(format!(
                "relay: pieces of {piece} bytes in {slots} slots; expected a multiple of 4096, 8 bytes for each rank, and at least 3 slots"
            )));
        }
        group.agree(&[("the settings of the relay", format!("{settings:?}"))])?;
        let own = settings.piece * settings.slots;
        let shared = group.share_memory(own * group.size())?;
        let (whole, awake) = (shared.is_some(), has_cores_for(group.size()));
        let memory = shared.map_or_else(|| SharedMemory::new(own), Ok)?;
        Ok(Self {
            group: group.clone(),
            device: device.clone(),
            settings,
            down: device.stream()?,
            up: device.stream()?,
            down_used: false,
            up_used: false,
            host: device.pin(&Arc::new(memory)),
            shared: whole,
            staging: Vec::new(),
            others: Vec::new(),
            taken: 0,
            pending: Vec::new(),
            small: Small::new(device, awake)?,
            awake: if awake { AWAKE } else { Duration::ZERO },
            last_small: None,
            started: 0,
            reduced: 0,
            read: VecDeque::new(),
        })
    }

    /// Whether the ranks exchange data through memory that they share.
    pub fn shares_memory(&self) -> bool {
        self.shared
    }

    /// Replaces the values of contiguous `x`, of a float type, by the sums of all ranks'. They are on the device once `ready` has come, and
    /// the sums once the device's queue has come to where [`Relay::join`] was called. Waits for the other ranks, but not for the device's own
    /// queue behind `ready`. All ranks call it, with the same length and type.
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; those of the device.
    pub fn all_reduce(&mut self, x: &Tensor, ready: &Event) -> Result<()> {
        check_floats(x)?;
        if self.group.size() == 1 {
            return Ok(());
        }
        if is_small(x) {
            return self.reduce_small(x, ready);
        }
        let begun = Instant::now();
        self.use_streams(ready)?;
        tracing::trace!("a vector of {} elements: ordered after {:?}", x.count(), begun.elapsed());
        let rooms = if self.sums_whole() { self.rooms(x)? } else { Vec::new() };
        let length = self.piece(x.count() * x.dtype().size()) / x.dtype().size();
        let mut before = None;
        for begin in (0..x.count()).step_by(length) {
            let next = self.start(x.window(begin, [length.min(x.count() - begin)])?, begin)?;
            // The next piece is copied while this one is reduced.
            if let Some(piece) = before.replace(next) {
                self.reduce(&piece, &rooms)?;
            }
        }
        before.map_or(Ok(()), |last| self.reduce(&last, &rooms))
    }

    /// The same for a vector that is complete where the device's own queue is now; what comes next in that queue sees the sums. Of a small one
    /// the host waits once for the device, in that queue: a mark that is waited for, and a copy in a stream behind it, each take as long as the
    /// whole copy. All ranks call it, with the same length and type. Returns how long it took from when the device had come to it: messages, and
    /// waiting for slower ranks.
    ///
    /// # Errors
    /// As [`Relay::all_reduce`].
    pub fn all_reduce_in_order(&mut self, x: &Tensor) -> Result<Duration> {
        check_floats(x)?;
        if self.group.size() == 1 {
            return Ok(Duration::ZERO);
        }
        if is_small(x) {
            let begun = Instant::now();
            let mut data = self.small.read(x)?;
            let read = begun.elapsed();
            self.group.all_reduce_bytes(x.dtype(), &mut data, Reduction::Sum)?;
            let summed = begun.elapsed();
            let there = self.small.write(x, &data)?;
            let (message, write) = (summed - read, begun.elapsed() - summed);
            self.last_small = Some(SmallTimes { read, message, write, there });
            return Ok(message + write);
        }
        self.last_small = None;
        let ready = self.device.mark()?;
        self.device.flush()?;
        self.wait(&ready)?;
        let begun = Instant::now();
        self.all_reduce(x, &ready)?;
        self.join()?;
        Ok(begun.elapsed())
    }

    /// Waits until the device's own queue has come to where it is now; after [`Relay::all_reduce_in_order`] of a small vector, until its sums
    /// are on the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn settle(&mut self) -> Result<()> {
        let there = self.last_small.as_mut().and_then(|times| times.there.take());
        let there = there.map_or_else(|| self.device.mark(), Ok)?;
        self.device.flush()?;
        self.wait(&there)
    }

    /// How the time of the last vector of [`Relay::all_reduce_in_order`] went, if it was small.
    pub fn last_small(&self) -> Option<&SmallTimes> {
        self.last_small.as_ref()
    }

    /// What the ways to read and to write small vectors take on this device, of which the quickest are used.
    pub fn ways(&self) -> &[WayTime] {
        self.small.times()
    }

    /// Waits for an event that is flushed: awake for a while, where there are cores for that.
    fn wait(&self, event: &Event) -> Result<()> {
        self.device.wait_awake(event, self.awake)
    }

    /// Bytes of the pieces of a vector of `bytes`.
    fn piece(&self, bytes: usize) -> usize {
        let most = self.settings.piece;
        (bytes / PIECES).next_multiple_of(4096).clamp(LEAST_PIECE.min(most), most)
    }

    /// What comes next in both streams comes after `ready`.
    fn use_streams(&mut self, ready: &Event) -> Result<()> {
        self.down_used = true;
        self.up_used = true;
        self.down.wait(ready)?;
        self.up.wait(ready)
    }

    /// Whether each rank sums whole vectors, of which the others' are copied to its device.
    fn sums_whole(&self) -> bool {
        self.shared && self.group.size() < self.settings.shares_from
    }

    /// Memory for the other ranks' vectors like `x`, which will be summed with it: that of the last step if `x` is not longer.
    fn rooms(&mut self, x: &Tensor) -> Result<Vec<Tensor>> {
        let _tag = self.device.tag("gradients of other ranks");
        let at = self.taken;
        self.taken += 1;
        self.pending.push((x.clone(), at));
        let fits =
            |rooms: &Vec<Tensor>| rooms.iter().all(|r| r.dtype() == x.dtype() && r.count() >= x.count());
        if !self.others.get(at).is_some_and(fits) {
            let one = || Tensor::empty(&self.device, [x.count()], x.dtype());
            // Within the stream memory is new, so that no command before can still use it.
            let made = self.up.run(|| (1..self.group.size()).map(|_| one()).collect::<Result<Vec<_>>>())?;
            self.others.truncate(at);
            self.others.push(made);
        }
        Ok(self.others[at].clone())
    }

    /// What the device's own queue does from here on comes after all sums so far. Where each rank sums whole vectors, it does so now and in
    /// that queue: with NVIDIA's driver (580) a kernel of another queue begins when this one is empty.
    ///
    /// # Errors
    /// Those of the device.
    pub fn join(&mut self) -> Result<()> {
        self.taken = 0;
        self.join_so_far()
    }

    /// The same while more vectors follow before the next [`Relay::join`]: the device sums what has arrived while they are on their way. What
    /// follows may be on the device since before this call.
    ///
    /// # Errors
    /// Those of the device.
    pub fn join_so_far(&mut self) -> Result<()> {
        if std::mem::take(&mut self.down_used) {
            self.down.join()?;
        }
        if std::mem::take(&mut self.up_used) {
            self.up.join()?;
        }
        let own = self.group.rank();
        for (x, at) in std::mem::take(&mut self.pending) {
            let Some(others) = self.others.get(at) else { continue };
            let flat = x.reshape([x.count()])?;
            let part = |room: &Tensor| room.window(0, [x.count()]);
            let mut terms = others.iter().map(part).collect::<Result<Vec<_>>>()?;
            terms.insert(own, flat.clone());
            sum_into(&terms, &flat)?;
        }
        Ok(())
    }

    /// Runs `f`, whose transfers come after `ready` and wait neither for the device's own queue behind it nor for sums under way; they may not
    /// touch what is being summed.
    ///
    /// # Errors
    /// Those of `f` and of the device.
    pub fn beside<T>(&mut self, ready: &Event, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.down_used = true;
        self.down.wait(ready)?;
        self.down.run(f)
    }

    /// Where the slot of piece `number` of a rank begins.
    fn slot(&self, rank: usize, number: usize) -> usize {
        let RelaySettings { piece, slots, .. } = self.settings;
        let rank = if self.shared { rank } else { 0 };
        (rank * slots + number % slots) * piece
    }

    /// Enqueues the copy of a piece to the host. Its slot is free: all ranks had read what was there before they reduced the last piece but
    /// one (see `reduce`).
    fn start(&mut self, x: Tensor, begin: usize) -> Result<Piece> {
        let at = self.slot(self.group.rank(), self.started);
        let there = self.download(&x, 0..x.count(), at)?;
        self.started += 1;
        Ok(Piece { x, begin, there })
    }

    /// A vector for which a message takes less time than what it takes to start transfers. Waiting on the host takes less than ordering streams.
    fn reduce_small(&mut self, x: &Tensor, ready: &Event) -> Result<()> {
        self.wait(ready)?;
        let mut data = self.down.run(|| self.small.read(x))?;
        // It is empty: the copy was waited for.
        self.down.finish()?;
        self.group.all_reduce_bytes(x.dtype(), &mut data, Reduction::Sum)?;
        // In the device's own queue, where what comes behind it needs no order of streams.
        self.small.write(x, &data).map(drop)
    }

    fn reduce(&mut self, piece: &Piece, rooms: &[Tensor]) -> Result<()> {
        let begun = Instant::now();
        self.wait(&piece.there)?;
        let downloaded = begun.elapsed();
        self.free_slots()?;
        tracing::trace!("piece {}: slots are free after {:?}", self.reduced, begun.elapsed());
        let x = &piece.x;
        let read = match (self.sums_whole(), self.shared) {
            (true, _) => self.collect(piece, rooms)?,
            (false, true) => self.sum_shares(x)?,
            (false, false) => self.sum_on_host(x)?,
        };
        self.up.flush()?;
        self.read.push_back(Some(read));
        tracing::trace!(
            "piece {} of rank {}: downloaded after {downloaded:?}, exchanged after {:?}",
            self.reduced,
            self.group.rank(),
            begun.elapsed()
        );
        self.reduced += 1;
        Ok(())
    }

    /// Two pieces after this one a slot is written again: whoever comes to the messages of this one has read that.
    fn free_slots(&mut self) -> Result<()> {
        while self.read.len() + 2 >= self.settings.slots
            && let Some(read) = self.read.pop_front()
        {
            read.map_or(Ok(()), |read| self.wait(&read))?;
        }
        Ok(())
    }

    /// Every rank copies all others' pieces to its device.
    fn collect(&self, piece: &Piece, rooms: &[Tensor]) -> Result<Event> {
        self.group.barrier()?;
        let own = self.group.rank();
        let mut read = piece.there.clone();
        for (other, room) in (0..self.group.size()).filter(|rank| *rank != own).zip(rooms) {
            read = self.upload(other, 0..piece.x.count(), (room, piece.begin))?;
        }
        Ok(read)
    }

    /// Every rank sums its share of the piece, and reads the others' sums.
    fn sum_shares(&mut self, x: &Tensor) -> Result<Event> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let share = |rank: usize| {
            let units = shard(x.count().div_ceil(ALIGN), size, rank);
            (units.start * ALIGN).min(x.count())..(units.end * ALIGN).min(x.count())
        };
        self.group.barrier()?;
        self.sum(x, share(rank))?;
        // The sums take the place of this rank's share in its slot, which no other rank reads before.
        let summed = self.up.record()?;
        self.down.wait(&summed)?;
        let mut read = self.download(x, share(rank), self.slot(rank, self.reduced))?;
        self.wait(&read)?;
        self.group.barrier()?;
        for other in (0..size).filter(|other| *other != rank) {
            read = self.upload(other, share(other), (x, share(other).start))?;
        }
        Ok(read)
    }

    fn sum_on_host(&mut self, x: &Tensor) -> Result<Event> {
        let at = self.slot(self.group.rank(), self.reduced);
        let mut data = vec![0; x.count() * x.dtype().size()];
        self.host.memory().read(at, &mut data)?;
        self.group.all_reduce_bytes(x.dtype(), &mut data, Reduction::Sum)?;
        self.host.memory().write(at, &data)?;
        self.upload(self.group.rank(), 0..x.count(), (x, 0))
    }

    /// Replaces the elements `range` of `x` by the sums of all ranks'.
    fn sum(&mut self, x: &Tensor, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let own = self.group.rank();
        let others: Vec<usize> = (0..self.group.size()).filter(|rank| *rank != own).collect();
        let staging = self.staging(x.dtype())?;
        for (other, room) in others.iter().zip(&staging) {
            self.upload(*other, range.clone(), (room, 0))?;
        }
        let y = x.window(range.start, [range.len()])?;
        let mut terms =
            staging.iter().map(|room| room.window(0, [range.len()])).collect::<Result<Vec<_>>>()?;
        terms.insert(own, y.clone());
        self.up.run(|| sum_into(&terms, &y))
    }

    fn staging(&mut self, dtype: DType) -> Result<Vec<Tensor>> {
        if let Some((_, found)) = self.staging.iter().find(|(of, _)| *of == dtype) {
            return Ok(found.clone());
        }
        let _tag = self.device.tag("gradients of other ranks");
        let count = self.settings.piece / dtype.size();
        // Within the stream memory is new, so that no command before can still use it.
        let made = self.up.run(|| {
            (1..self.group.size())
                .map(|_| Tensor::empty(&self.device, [count], dtype))
                .collect::<Result<Vec<_>>>()
        })?;
        self.staging.push((dtype, made.clone()));
        Ok(made)
    }

    fn download(&self, x: &Tensor, range: Range<usize>, slot: usize) -> Result<Event> {
        let size = x.dtype().size();
        let (from, at) = (x.layout().offset + range.start, range.start * size);
        let there = self.down.run(|| {
            self.device.download_into((x.storage(), from * size), (&self.host, slot + at), range.len() * size)
        })?;
        self.down.flush()?;
        Ok(there)
    }

    /// The elements `range` of a rank's piece into `to`, from an element on.
    fn upload(&self, rank: usize, range: Range<usize>, (to, start): (&Tensor, usize)) -> Result<Event> {
        let size = to.dtype().size();
        let (at, target) = (self.slot(rank, self.reduced) + range.start * size, to.layout().offset + start);
        self.up.run(|| {
            self.device.upload_from((&self.host, at), (to.storage(), target * size), range.len() * size)
        })
    }
}

fn check_floats(x: &Tensor) -> Result<()> {
    if x.is_contiguous() && DType::FLOATS.contains(&x.dtype()) {
        return Ok(());
    }
    Err(Error::shape(format!("all_reduce of {} {}: expected contiguous floats", x.dtype(), x.shape())))
}

/// Whether a vector is exchanged by messages and summed on the host.
fn is_small(x: &Tensor) -> bool {
    x.count() * x.dtype().size() <= SMALL
}

/// `y = terms[0] + terms[1] + …`, in f32 and rounded once. `y` may be one of the terms.
///
/// # Errors
/// Those of the device.
pub fn sum_into(terms: &[Tensor], y: &Tensor) -> Result<()> {
    let most = SUMMANDS.len() + 1;
    let (mut sum, mut rest): (Option<Tensor>, &[Tensor]) = (None, terms);
    loop {
        let (now, later) = rest.split_at(rest.len().min(most - usize::from(sum.is_some())));
        let inputs: Vec<&Tensor> = sum.iter().chain(now).collect();
        let Some(expression) = inputs.len().checked_sub(2).and_then(|i| SUMMANDS.get(i)) else {
            return Ok(());
        };
        if later.is_empty() {
            return map_into(expression, &inputs, &[], y);
        }
        let partial = Tensor::empty(y.device(), y.shape(), DType::F32)?;
        map_into(expression, &inputs, &[], &partial)?;
        (sum, rest) = (Some(partial), later);
    }
}
