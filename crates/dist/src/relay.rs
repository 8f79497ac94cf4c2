//! Tensor reductions through page-locked host memory, concurrent with the device's computation.
//!
//! Every rank copies a piece of its vector into a slot of host memory. Ranks of one machine share that memory and copy each other's pieces to their
//! devices, which add them. With few ranks, each adds the whole vectors. With more ranks, each adds one share and passes the sums on. Two streams
//! carry the copies, one per direction, so both directions of the link are in use, and the device's own queue continues meanwhile.
//!
//! Ranks on several machines, or on a [`slowed`](crate::slowed) link, exchange the pieces by messages and add them on the host. The sums have the
//! same bits either way: in rank order, in f32, rounded once.

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
use small::{AWAKE, MAX_HOST_SUM_BYTES, Small};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sizes for a [`Relay`].
#[derive(Clone, Copy, Debug)]
pub struct RelaySettings {
    /// Bytes that are copied at a time: a multiple of 4096.
    pub piece: usize,
    /// Number of pieces per rank that the host memory holds: at least 3.
    pub slots: usize,
    /// Number of ranks from which each rank sums a share and passes the sums on. With fewer ranks, each sums everything.
    pub shares_from: usize,
}

impl Default for RelaySettings {
    /// Pieces that a link of 50 GB/s moves in a few times the latency of a transfer and a message.
    fn default() -> Self {
        Self { piece: 8 << 20, slots: 4, shares_from: 5 }
    }
}

/// A vector is copied in at least this many pieces, if they have at least the minimum size. The copy of one piece to the host and that of another to
/// the device then overlap.
const PIECES: usize = 4;
const MIN_PIECE_BYTES: usize = 2 << 20;
/// Alignment of shares in elements, which every device accepts.
const ALIGN: usize = 1024;
/// Parameter names of the summands of one launch.
const SUMMANDS: [&str; 7] = [
    "x0 + x1",
    "x0 + x1 + x2",
    "x0 + x1 + x2 + x3",
    "x0 + x1 + x2 + x3 + x4",
    "x0 + x1 + x2 + x3 + x4 + x5",
    "x0 + x1 + x2 + x3 + x4 + x5 + x6",
    "x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7",
];

/// One rank's interface for the reductions of a group.
pub struct Relay {
    group: Group,
    device: Device,
    settings: RelaySettings,
    // Declared before the memory: running transfers must end first.
    down: Stream,
    up: Stream,
    /// Whether the streams were used since the last join.
    down_used: bool,
    up_used: bool,
    host: Pinned,
    /// Whether all ranks share the memory.
    shared: bool,
    /// Device memory for other ranks' pieces, by type. Used if each rank sums its share.
    staging: Vec<(DType, Vec<Tensor>)>,
    /// Memory for other ranks' vectors, used if each rank sums everything. Entry 0 belongs to the first vector since the last join, entry 1 to the
    /// second, …
    others: Vec<Vec<Tensor>>,
    /// Number of these entries in use since the last join.
    taken: usize,
    /// Vectors that are still to be summed, with the index of their entry in `others`.
    pending: Vec<(Tensor, usize)>,
    small: Small,
    /// Duration of polling on this host: zero if it has few cores.
    awake: Duration,
    /// Times of the last small vector.
    last_small: Option<SmallTimes>,
    /// Number of pieces whose download was enqueued, and number of reduced pieces.
    started: usize,
    reduced: usize,
    /// For the last pieces: the event after which this rank has read the slots, if it reads any.
    read: VecDeque<Option<Event>>,
}

/// Times of the last small vector of [`Relay::all_reduce_in_order`].
#[derive(Clone, Default)]
pub struct SmallTimes {
    /// Time until the host had the vector: earlier commands in the queue, and its copy.
    pub read: Duration,
    /// Time until the host had the sum: messages, and waiting for other ranks.
    pub message: Duration,
    /// Time until the sum was enqueued.
    pub write: Duration,
    /// Event after which the sum is on the device, if the driver reports it.
    there: Option<Event>,
}

/// A piece on its way to the host.
struct PieceInFlight {
    x: Tensor,
    /// Start within its vector, in elements.
    begin: usize,
    there: Event,
}

impl Relay {
    /// Returns this rank's relay on its device. All ranks call it with the same settings.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`]; `Shape` for invalid settings; `Format` if the settings of the ranks differ; `Memory` if the host has too little
    /// memory; device errors.
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

    /// Returns true if the ranks exchange data through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.shared
    }

    /// Replaces the values of contiguous `x`, of a float type, with the sums over all ranks. The values must be on the device when `ready` completes.
    /// The sums are valid after the device's queue has reached the call of [`Relay::join`]. Waits for the other ranks, but not for commands in the
    /// device's own queue after `ready`. All ranks call it with the same length and type.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`]; device errors.
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

    /// Does the same for a vector that is complete at the current position of the device's own queue; later commands in that queue see the sums. For
    /// a small vector the host waits once for the device, in that queue. Waiting for a mark, and copying in a stream after it, would each take as
    /// long as the whole copy.
    ///
    /// All ranks call it with the same length and type. Returns the time since the device reached this point: messages, and waiting for slower ranks.
    ///
    /// # Errors
    /// Same as [`Relay::all_reduce`].
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

    /// Waits until the device's own queue has reached its current end. After [`Relay::all_reduce_in_order`] of a small vector, waits until its sums
    /// are on the device.
    ///
    /// # Errors
    /// Device errors.
    pub fn settle(&mut self) -> Result<()> {
        let there = self.last_small.as_mut().and_then(|times| times.there.take());
        let there = there.map_or_else(|| self.device.mark(), Ok)?;
        self.device.flush()?;
        self.wait(&there)
    }

    /// Returns the times of the last vector of [`Relay::all_reduce_in_order`], if it was small.
    pub fn last_small(&self) -> Option<&SmallTimes> {
        self.last_small.as_ref()
    }

    /// Returns the times of the methods to read and write small vectors on this device. The fastest ones are used.
    pub fn ways(&self) -> &[WayTime] {
        self.small.times()
    }

    /// Waits for an event that is flushed. Polls for a while if there are enough cores.
    fn wait(&self, event: &Event) -> Result<()> {
        self.device.wait_awake(event, self.awake)
    }

    /// Returns the piece size in bytes for a vector of `bytes`.
    fn piece(&self, bytes: usize) -> usize {
        let most = self.settings.piece;
        (bytes / PIECES).next_multiple_of(4096).clamp(MIN_PIECE_BYTES.min(most), most)
    }

    /// Makes later commands in both streams wait for `ready`.
    fn use_streams(&mut self, ready: &Event) -> Result<()> {
        self.down_used = true;
        self.up_used = true;
        self.down.wait(ready)?;
        self.up.wait(ready)
    }

    /// Returns true if each rank sums whole vectors, so that those of the others are copied to its device.
    fn sums_whole(&self) -> bool {
        self.shared && self.group.size() < self.settings.shares_from
    }

    /// Returns memory for the other ranks' vectors that are summed with `x`. Reuses the memory of the last step if `x` is not longer.
    fn rooms(&mut self, x: &Tensor) -> Result<Vec<Tensor>> {
        let _tag = self.device.tag("gradients of other ranks");
        let at = self.taken;
        self.taken += 1;
        self.pending.push((x.clone(), at));
        let fits =
            |rooms: &Vec<Tensor>| rooms.iter().all(|r| r.dtype() == x.dtype() && r.count() >= x.count());
        if !self.others.get(at).is_some_and(fits) {
            let one = || Tensor::empty(&self.device, [x.count()], x.dtype());
            // Allocations within the stream are new memory, so that no earlier command can still use it.
            let made = self.up.run(|| (1..self.group.size()).map(|_| one()).collect::<Result<Vec<_>>>())?;
            self.others.truncate(at);
            self.others.push(made);
        }
        Ok(self.others[at].clone())
    }

    /// Makes later commands of the device's own queue run after all sums so far. If each rank sums whole vectors, it sums them now and in that queue.
    /// With NVIDIA's driver (580), a kernel of another queue starts only when this one is empty.
    ///
    /// # Errors
    /// Device errors.
    pub fn join(&mut self) -> Result<()> {
        self.taken = 0;
        self.join_so_far()
    }

    /// Does the same if more vectors follow before the next [`Relay::join`]: the device sums the vectors that have arrived while the others are in
    /// transit. The following vectors may already be complete on the device before this call.
    ///
    /// # Errors
    /// Device errors.
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

    /// Runs `f`. Its transfers run after `ready` and wait neither for later commands of the device's own queue nor for running sums. They must not
    /// touch data that is being summed.
    ///
    /// # Errors
    /// Errors of `f` and of the device.
    pub fn with_overlapping_transfers<T>(
        &mut self,
        ready: &Event,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.down_used = true;
        self.down.wait(ready)?;
        self.down.run(f)
    }

    /// Returns the start of the slot of piece `number` of a rank.
    fn slot(&self, rank: usize, number: usize) -> usize {
        let RelaySettings { piece, slots, .. } = self.settings;
        let rank = if self.shared { rank } else { 0 };
        (rank * slots + number % slots) * piece
    }

    /// Enqueues the copy of a piece to the host. Its slot is free: all ranks read its previous content before they reduced the second to last piece
    /// (see `reduce`).
    fn start(&mut self, x: Tensor, begin: usize) -> Result<PieceInFlight> {
        let at = self.slot(self.group.rank(), self.started);
        let there = self.download(&x, 0..x.count(), at)?;
        self.started += 1;
        Ok(PieceInFlight { x, begin, there })
    }

    /// Reduces a vector for which a message takes less time than starting transfers. Waiting on the host takes less time than ordering streams.
    fn reduce_small(&mut self, x: &Tensor, ready: &Event) -> Result<()> {
        self.wait(ready)?;
        let mut data = self.down.run(|| self.small.read(x))?;
        // The stream is empty: its copy has been waited for.
        self.down.finish()?;
        self.group.all_reduce_bytes(x.dtype(), &mut data, Reduction::Sum)?;
        // Write in the device's own queue, where later commands need no ordering between streams.
        self.small.write(x, &data).map(drop)
    }

    fn reduce(&mut self, piece: &PieceInFlight, rooms: &[Tensor]) -> Result<()> {
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

    /// Waits for reads of old slots. A slot is rewritten two pieces later: a rank that reaches the messages of this piece has read it.
    fn free_slots(&mut self) -> Result<()> {
        while self.read.len() + 2 >= self.settings.slots
            && let Some(read) = self.read.pop_front()
        {
            read.map_or(Ok(()), |read| self.wait(&read))?;
        }
        Ok(())
    }

    /// Copies the pieces of all other ranks to this rank's device.
    fn collect(&self, piece: &PieceInFlight, rooms: &[Tensor]) -> Result<Event> {
        self.group.barrier()?;
        let own = self.group.rank();
        let mut read = piece.there.clone();
        for (other, room) in (0..self.group.size()).filter(|rank| *rank != own).zip(rooms) {
            read = self.upload(other, 0..piece.x.count(), (room, piece.begin))?;
        }
        Ok(read)
    }

    /// Sums this rank's share of the piece and reads the sums of the other ranks.
    fn sum_shares(&mut self, x: &Tensor) -> Result<Event> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let share = |rank: usize| {
            let units = shard(x.count().div_ceil(ALIGN), size, rank);
            (units.start * ALIGN).min(x.count())..(units.end * ALIGN).min(x.count())
        };
        self.group.barrier()?;
        self.sum(x, share(rank))?;
        // The sums replace this rank's share in its slot. The other ranks read it only afterwards.
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

    /// Replaces the elements `range` of `x` with the sums over all ranks.
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
        // Allocations within the stream are new memory, so that no earlier command can still use it.
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

    /// Copies the elements `range` of a rank's piece into `to`, starting at element `start`.
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

/// Returns true if a vector is exchanged by messages and summed on the host.
fn is_small(x: &Tensor) -> bool {
    x.count() * x.dtype().size() <= MAX_HOST_SUM_BYTES
}

/// Computes `y = terms[0] + terms[1] + …`, in f32 and rounded once. `y` may be one of the terms.
///
/// # Errors
/// Device errors.
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
