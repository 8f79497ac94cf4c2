//! The exchanges of a sharded optimizer: sums of which each rank keeps a part (reduce-scatter), and parts that every rank sends to the others
//! (all-gather). Together they move the bytes of one [`Relay::all_reduce`].

use super::{Relay, is_small};
use crate::Reduction;
use netcl_device::driver::Event;
use netcl_device::{Buffer, Error, Result};
use netcl_tensor::{DType, Tensor};
use std::ops::Range;
use std::time::Instant;

/// A contiguous byte range of a buffer.
#[derive(Clone, Debug)]
pub struct Span {
    /// The buffer.
    pub buffer: Buffer,
    /// The first byte.
    pub start: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Result of [`Relay::collect_parts`].
pub struct Collected {
    /// Event after which the result is available.
    pub there: Event,
    /// Whether this rank's own values already contain the sums, so that the rooms were not used.
    pub summed: bool,
}

/// Alignment of pieces that consist of whole pages.
const PAGE: usize = 4096;

impl Relay {
    /// Replaces this rank's part of contiguous `x`, of a float type, with the sums over all ranks; the other elements keep their values. The part of
    /// rank `r` is the elements `bounds[r]..bounds[r + 1]`. Everything else is the same as in [`Relay::all_reduce`].
    ///
    /// # Errors
    /// Same as [`Relay::all_reduce`]; `Shape` for bounds that do not divide `x` over the ranks.
    pub fn reduce_scatter(&mut self, x: &Tensor, bounds: &[usize], ready: &Event) -> Result<()> {
        self.check(x, bounds)?;
        let own = bounds[self.group.rank()]..bounds[self.group.rank() + 1];
        let small = is_small(x);
        let rooms = match self.shared && !small && self.group.size() > 1 && !own.is_empty() {
            true => self.rooms(&x.reshape([x.count()])?.slice(0, own)?)?,
            false => Vec::new(),
        };
        self.scatter(x, bounds, &rooms, ready)
    }

    /// Collects the other ranks' values for this rank's part in memory of the caller, for reuse. They go to `rooms`, one per other rank, and are not
    /// summed. Users of `x` and `rooms` wait for the event; [`sum_into`](crate::sum_into) sums.
    ///
    /// # Errors
    /// Same as [`Relay::reduce_scatter`]; `Shape` for too few or too small rooms.
    pub fn collect_parts(
        &mut self,
        x: &Tensor,
        bounds: &[usize],
        rooms: &[Tensor],
        ready: &Event,
    ) -> Result<Collected> {
        self.check(x, bounds)?;
        let own = bounds[self.group.rank() + 1] - bounds[self.group.rank()];
        let fits = |room: &Tensor| room.is_contiguous() && room.dtype() == x.dtype() && room.count() >= own;
        if rooms.len() + 1 < self.group.size() || !rooms.iter().all(fits) {
            return Err(Error::shape(format!(
                "collect_parts: {} rooms for {own} elements of {} other ranks",
                rooms.len(),
                self.group.size() - 1
            )));
        }
        let small = is_small(x);
        self.scatter(x, bounds, rooms, ready)?;
        Ok(Collected { there: self.up.record()?, summed: small || !self.shared || self.group.size() == 1 })
    }

    fn scatter(&mut self, x: &Tensor, bounds: &[usize], rooms: &[Tensor], ready: &Event) -> Result<()> {
        if self.group.size() == 1 {
            return Ok(());
        }
        if is_small(x) {
            return self.reduce_small(x, ready);
        }
        self.use_streams(ready)?;
        let own = bounds[self.group.rank()]..bounds[self.group.rank() + 1];
        let length = self.portion() / x.dtype().size();
        let longest = bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let ranges = |at: usize| -> Vec<Range<usize>> {
            let of = |pair: &[usize]| (pair[0] + at).min(pair[1])..(pair[0] + at + length).min(pair[1]);
            bounds.windows(2).map(of).collect()
        };
        let mut before = None;
        for at in (0..longest).step_by(length) {
            let ranges = ranges(at);
            let there = self.start_portions(x, &ranges)?;
            // The next portions are copied while these are exchanged.
            if let Some((ranges, there)) = before.replace((ranges, there)) {
                self.exchange_portions(x, &ranges, there, (rooms, own.start))?;
            }
        }
        let last =
            before.map(|(ranges, there)| self.exchange_portions(x, &ranges, there, (rooms, own.start)));
        last.unwrap_or(Ok(()))
    }

    fn check(&self, x: &Tensor, bounds: &[usize]) -> Result<()> {
        let divided = bounds.len() == self.group.size() + 1
            && bounds.is_sorted()
            && bounds.first() == Some(&0)
            && bounds.last() == Some(&x.count());
        if x.is_contiguous() && DType::FLOATS.contains(&x.dtype()) && divided {
            return Ok(());
        }
        Err(Error::shape(format!(
            "reduce_scatter of {} {} at {bounds:?} among {} ranks: expected contiguous floats, and bounds from 0 to their number",
            x.dtype(),
            x.shape(),
            self.group.size()
        )))
    }

    /// Returns the bytes of each rank's part that are exchanged at a time.
    fn portion(&self) -> usize {
        let ranks = if self.shared { self.group.size() - 1 } else { self.group.size() };
        let most = self.settings.piece / ranks;
        // Whole elements of any type, and whole pages if they fit.
        let unit = if most >= PAGE { PAGE } else { 8 };
        most / unit * unit
    }

    /// Returns the position of the portion for `rank` in a slot. Without shared memory the slot also contains this rank's own portion.
    fn place(&self, of: usize, rank: usize) -> usize {
        let place = if self.shared && rank > of { rank - 1 } else { rank };
        place * self.portion()
    }

    /// Enqueues the copies to the host of the portions that other ranks sum.
    fn start_portions(&mut self, x: &Tensor, ranges: &[Range<usize>]) -> Result<Option<Event>> {
        let (own, size) = (self.group.rank(), x.dtype().size());
        let slot = self.slot(own, self.started);
        let mut there = None;
        for (rank, range) in ranges.iter().enumerate() {
            if range.is_empty() || self.shared && rank == own {
                continue;
            }
            let start = (x.layout().offset + range.start) * size;
            let span = Span { buffer: x.storage().clone(), start, bytes: range.len() * size };
            there = Some(self.copy_down(&span, slot + self.place(own, rank))?);
        }
        self.started += 1;
        Ok(there)
    }

    /// Gets the other ranks' portions of this rank's part: into `rooms`, to be summed later, or, by messages, as sums into `x`. `begin` is the start
    /// of this rank's part.
    fn exchange_portions(
        &mut self,
        x: &Tensor,
        ranges: &[Range<usize>],
        there: Option<Event>,
        (rooms, begin): (&[Tensor], usize),
    ) -> Result<()> {
        let (own, size) = (self.group.rank(), x.dtype().size());
        let range = ranges[own].clone();
        self.exchange(there, |relay| {
            if !relay.shared {
                return relay.sum_portions(x, ranges);
            }
            relay.group.barrier()?;
            let mut read = None;
            let others = (0..relay.group.size()).filter(|rank| *rank != own);
            for (other, room) in others.zip(rooms).filter(|_| !range.is_empty()) {
                let at = relay.slot(other, relay.reduced) + relay.place(other, own);
                let start = (room.layout().offset + range.start - begin) * size;
                let span = Span { buffer: room.storage().clone(), start, bytes: range.len() * size };
                read = Some(relay.copy_up(at, &span)?);
            }
            Ok(read)
        })
    }

    /// Sums portions by messages on the host.
    fn sum_portions(&self, x: &Tensor, ranges: &[Range<usize>]) -> Result<Option<Event>> {
        let (own, size) = (self.group.rank(), x.dtype().size());
        let slot = self.slot(own, self.reduced);
        let mut bytes = Vec::with_capacity(ranges.len());
        let mut data = Vec::new();
        for (rank, range) in ranges.iter().enumerate() {
            let begin = data.len();
            data.resize(begin + range.len() * size, 0);
            self.host.memory().read(slot + self.place(own, rank), &mut data[begin..])?;
            bytes.push(begin..data.len());
        }
        self.group.reduce_scatter_ranges(x.dtype(), &mut data, &bytes, Reduction::Sum)?;
        if ranges[own].is_empty() {
            return Ok(None);
        }
        let at = slot + self.place(own, own);
        self.host.memory().write(at, &data[bytes[own].clone()])?;
        let start = (x.layout().offset + ranges[own].start) * size;
        self.copy_up(at, &Span { buffer: x.storage().clone(), start, bytes: bytes[own].len() }).map(Some)
    }

    /// Sends the bytes of this rank's part to all ranks and receives theirs. `parts[r]` are the positions of rank `r`'s part in the memory of this
    /// rank's device. The parts have the same lengths on all ranks.
    ///
    /// This rank's bytes must be complete when `ready` completes. The bytes of the other ranks are valid after the device's queue has reached
    /// [`Relay::join`], or earlier. After each exchange, `arrived` receives the number of bytes exchanged so far from the start of every part, and
    /// the event of the last of them. Waits for the other ranks, but not for commands in the device's own queue after `ready`. All ranks call it.
    ///
    /// # Errors
    /// Same as [`Relay::all_reduce`]; `Shape` if the number of parts differs from the number of ranks.
    pub fn all_gather(
        &mut self,
        parts: &[Vec<Span>],
        ready: &Event,
        mut arrived: impl FnMut(usize, Option<Event>),
    ) -> Result<()> {
        let (rank, size) = (self.group.rank(), self.group.size());
        if parts.len() != size {
            return Err(Error::shape(format!("all_gather of {} parts among {size} ranks", parts.len())));
        }
        if size == 1 {
            return Ok(());
        }
        self.use_streams(ready)?;
        let length = if self.shared { self.settings.piece } else { self.portion() };
        let bytes: Vec<usize> = parts.iter().map(|part| part.iter().map(|span| span.bytes).sum()).collect();
        let longest = bytes.iter().copied().max().unwrap_or(0);
        let range = |rank: usize, at: usize| at.min(bytes[rank])..(at + length).min(bytes[rank]);
        let mut before = None;
        for at in (0..longest).step_by(length) {
            let slot = self.slot(rank, self.started) + if self.shared { 0 } else { self.place(rank, rank) };
            let mut there = None;
            for (offset, span) in within(&parts[rank], range(rank, at)) {
                there = Some(self.copy_down(&span, slot + offset)?);
            }
            self.started += 1;
            if let Some(before) = before.replace((at, there)) {
                self.gather_pieces(parts, before, range, &mut arrived)?;
            }
        }
        before.map_or(Ok(()), |last| self.gather_pieces(parts, last, range, &mut arrived))
    }

    /// Exchanges the pieces of all parts that start at `at`. The copy of this rank's piece to the host is already running.
    fn gather_pieces(
        &mut self,
        parts: &[Vec<Span>],
        (at, there): (usize, Option<Event>),
        range: impl Fn(usize, usize) -> Range<usize>,
        arrived: &mut impl FnMut(usize, Option<Event>),
    ) -> Result<()> {
        let ranges: Vec<_> = (0..parts.len()).map(|rank| range(rank, at)).collect();
        self.exchange(there, |relay| relay.read_others(parts, &ranges))?;
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(at);
        arrived(end, self.read.back().cloned().flatten());
        Ok(())
    }

    /// Copies the bytes `ranges` of all other ranks' parts to the device.
    fn read_others(&self, parts: &[Vec<Span>], ranges: &[Range<usize>]) -> Result<Option<Event>> {
        let own = self.group.rank();
        if self.shared {
            self.group.barrier()?;
        } else {
            self.gather_on_host(ranges)?;
        }
        let mut read = None;
        for (rank, part) in parts.iter().enumerate().filter(|(rank, _)| *rank != own) {
            let at = self.slot(rank, self.reduced) + if self.shared { 0 } else { self.place(own, rank) };
            for (offset, span) in within(part, ranges[rank].clone()) {
                read = Some(self.copy_up(at + offset, &span)?);
            }
        }
        Ok(read)
    }

    /// Completes this rank's slot by messages.
    fn gather_on_host(&self, ranges: &[Range<usize>]) -> Result<()> {
        let own = self.group.rank();
        let slot = self.slot(own, self.reduced);
        let ends = ranges.iter().scan(0, |end, range| {
            *end += range.len();
            Some(*end - range.len()..*end)
        });
        let bytes: Vec<Range<usize>> = ends.collect();
        let mut data = vec![0; bytes.last().map_or(0, |last| last.end)];
        self.host.memory().read(slot + self.place(own, own), &mut data[bytes[own].clone()])?;
        self.group.all_gather_ranges(&mut data, &bytes)?;
        for (rank, bytes) in bytes.iter().enumerate().filter(|(rank, _)| *rank != own) {
            self.host.memory().write(slot + self.place(own, rank), &data[bytes.clone()])?;
        }
        Ok(())
    }

    /// Runs one round: waits for this rank's copies and for free slots, then lets `read` get the data that the other ranks have copied.
    fn exchange(
        &mut self,
        there: Option<Event>,
        read: impl FnOnce(&Self) -> Result<Option<Event>>,
    ) -> Result<()> {
        let begun = Instant::now();
        if let Some(there) = &there {
            self.wait(there)?;
        }
        self.free_slots()?;
        let read = read(self)?;
        self.up.flush()?;
        self.read.push_back(read);
        tracing::trace!("piece {} of parts: exchanged after {:?}", self.reduced, begun.elapsed());
        self.reduced += 1;
        Ok(())
    }

    fn copy_down(&self, span: &Span, at: usize) -> Result<Event> {
        let from = (&span.buffer, span.start);
        let there = self.down.run(|| self.device.download_into(from, (&self.host, at), span.bytes))?;
        self.down.flush()?;
        Ok(there)
    }

    fn copy_up(&self, at: usize, span: &Span) -> Result<Event> {
        let to = (&span.buffer, span.start);
        self.up.run(|| self.device.upload_from((&self.host, at), to, span.bytes))
    }
}

/// Returns the bytes `range` of consecutive spans: the start of each within the range, and its span.
fn within(spans: &[Span], range: Range<usize>) -> impl Iterator<Item = (usize, Span)> {
    let mut end = 0;
    spans.iter().filter_map(move |span| {
        let begin = end;
        end += span.bytes;
        let (from, to) = (begin.max(range.start), end.min(range.end));
        let cut = || Span { buffer: span.buffer.clone(), start: span.start + from - begin, bytes: to - from };
        (from < to).then(|| (from - range.start, cut()))
    })
}
