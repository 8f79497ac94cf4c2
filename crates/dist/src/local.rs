//! Messages between threads of one process; each thread is a rank.

use crate::watch::Waiting;
use crate::{Group, Transport, Watch};
use netcl_device::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes per message piece: two fit in a core's L2 cache.
const PIECE: usize = 256 << 10;
/// Number of bytes copied while holding the lock. Copying them takes less time than acquiring the lock again.
const AT_ONCE: usize = 32 << 10;
/// Number of pieces that a sender may be ahead of its receiver.
const MAX_PIECES_AHEAD: usize = 8;
/// Duration of polling before a waiting rank sleeps. Waking a thread takes longer than most small messages. Ranks that compute the same work reach an
/// exchange within a few device waits of each other.
const SPIN: Duration = Duration::from_micros(200);
/// Interval at which a waiting rank checks its timeout.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Marks a rank that is not waiting.
const NOBODY: usize = usize::MAX;

/// Returns `size` ranks of one process, one per thread. If a rank is dropped before it was [closed](Group::close), the operations of the other ranks
/// fail with an error that names it. The same applies to a rank that does not answer within `patience`.
///
/// ```
/// use netcl_dist::{Reduction, local};
/// use std::time::Duration;
/// let ranks = local(3, Duration::from_secs(10));
/// let sums = std::thread::scope(|scope| {
///     let run = |rank: netcl_dist::Group| {
///         let mut x = [rank.rank() as f32, 1.0];
///         rank.all_reduce(&mut x, Reduction::Sum).map(|()| x)
///     };
///     let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
///     threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect::<Vec<_>>()
/// });
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// ```
pub fn local(size: usize, patience: Duration) -> Vec<Group> {
    let lines = (0..size * size).map(|_| Line::default()).collect();
    let waits = (0..size).map(|_| AtomicUsize::new(NOBODY)).collect();
    let spins = has_cores_for(size);
    let shared = Arc::new(Shared { lines, size, waits, spins });
    let thread = |rank| Thread { rank, shared: shared.clone(), watch: Watch::new(patience) };
    (0..size).map(|rank| Group::new(Arc::new(thread(rank)))).collect()
}

/// Returns true if every rank and its device's driver threads have separate cores, so that polling takes no time from other threads.
pub(crate) fn has_cores_for(ranks: usize) -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 4 * ranks)
}

struct Shared {
    /// The line from rank i to rank k is at `i * size + k`.
    lines: Vec<Line>,
    size: usize,
    /// The rank that each rank waits for.
    waits: Vec<AtomicUsize>,
    /// Whether waiting ranks poll; see [`has_cores_for`].
    spins: bool,
}

#[derive(Default)]
struct Line {
    state: Mutex<State>,
    /// Counts state changes, for ranks that poll.
    changes: AtomicUsize,
    changed: Condvar,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals a changed `state` to waiting ranks. Waking threads is a system call, which is skipped if none sleeps.
    fn change(&self, state: MutexGuard<'_, State>) {
        let sleeps = state.sleepers > 0;
        drop(state);
        self.changes.fetch_add(1, Ordering::Release);
        if sleeps {
            self.changed.notify_all();
        }
    }
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    /// Emptied pieces for reuse.
    spare: Vec<Vec<u8>>,
    /// Number of threads that sleep until the state changes.
    sleepers: usize,
    /// The sender or the receiver has ended.
    closed: bool,
}

impl State {
    /// Keeps the memory of a piece after it was read.
    fn keep(&mut self, piece: Vec<u8>) {
        if self.spare.len() < MAX_PIECES_AHEAD {
            self.spare.push(piece);
        }
    }
}

/// Marks a rank as waiting for the lifetime of this value.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(of: &'a AtomicUsize, peer: usize) -> Self {
        of.store(peer, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Relaxed);
    }
}

struct Thread {
    rank: usize,
    shared: Arc<Shared>,
    watch: Watch,
}

impl Thread {
    fn line(&self, from: usize, to: usize) -> &Line {
        &self.shared.lines[from * self.shared.size + to]
    }

    /// Waits until `ready` returns true; `peer` is the rank that it waits for.
    fn when<'a>(
        &self,
        line: &'a Line,
        peer: usize,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        let mut state = line.lock();
        if ready(&state) {
            return Ok(state);
        }
        let _waits = Waits::begin(&self.shared.waits[self.rank], peer);
        let mut waiting = Waiting::begin();
        while self.shared.spins && !ready(&state) && !state.closed && waiting.elapsed() < SPIN {
            // A change after this point is visible in the count, without the lock that the other rank needs for it.
            let seen = line.changes.load(Ordering::Acquire);
            if ready(&state) || state.closed {
                break;
            }
            drop(state);
            while line.changes.load(Ordering::Acquire) == seen && waiting.elapsed() < SPIN {
                std::hint::spin_loop();
            }
            state = line.lock();
        }
        while !ready(&state) {
            if state.closed {
                return Err(Error::device(format!(
                    "rank {} waits for {}, which has ended; its own message says why",
                    self.rank,
                    self.watch.name(peer)
                )));
            }
            let waited = waiting.look();
            let left = self.watch.patience().saturating_sub(waited);
            if left.is_zero() {
                return Err(Error::device(self.watch.silent(waited, &[self.silent(peer)])));
            }
            let left = left.min(TIMEOUT_CHECK_INTERVAL);
            state.sleepers += 1;
            state = line.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.sleepers -= 1;
        }
        Ok(state)
    }

    /// Follows the chain of waits from `peer` and returns the rank that is not waiting for another.
    fn silent(&self, peer: usize) -> usize {
        let mut at = peer;
        for _ in 0..self.shared.size {
            let next = self.shared.waits[at].load(Ordering::Relaxed);
            if next == NOBODY || next == self.rank {
                return at;
            }
            at = next;
        }
        peer
    }

    fn send(&self, to: usize, piece: &[u8]) -> Result<()> {
        let line = self.line(self.rank, to);
        let mut state = self.when(line, to, |state| state.closed || state.pieces.len() < MAX_PIECES_AHEAD)?;
        if state.closed {
            drop(state);
            return self.when(line, to, |_| false).map(drop);
        }
        let mut copy = state.spare.pop().unwrap_or_default();
        copy.clear();
        if piece.len() > AT_ONCE {
            drop(state);
            copy.extend_from_slice(piece);
            state = line.lock();
        } else {
            copy.extend_from_slice(piece);
        }
        state.pieces.push_back(copy);
        line.change(state);
        Ok(())
    }

    fn receive(&self, from: usize, piece: &mut [u8]) -> Result<()> {
        let line = self.line(from, self.rank);
        let mut state = self.when(line, from, |state| !state.pieces.is_empty())?;
        let found = state.pieces.pop_front().unwrap_or_default();
        if found.len() == piece.len() && found.len() <= AT_ONCE {
            piece.copy_from_slice(&found);
            state.keep(found);
            line.change(state);
            return Ok(());
        }
        line.change(state);
        if found.len() != piece.len() {
            return Err(Error::device(format!(
                "rank {} expected {} bytes from rank {from} and got {}: the ranks do not call the same operations",
                self.rank,
                piece.len(),
                found.len()
            )));
        }
        piece.copy_from_slice(&found);
        line.lock().keep(found);
        Ok(())
    }
}

impl Transport for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()> {
        let (receiver, out) = to.unwrap_or((self.rank, &[]));
        let (sender, into) = from.unwrap_or((self.rank, &mut []));
        let (mut out, mut into) = (out.chunks(PIECE), into.chunks_mut(PIECE));
        loop {
            let (next, room) = (out.next(), into.next());
            if next.is_none() && room.is_none() {
                return Ok(());
            }
            if let Some(piece) = next {
                self.send(receiver, piece)?;
            }
            if let Some(piece) = room {
                self.receive(sender, piece)?;
            }
        }
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn name(&self) -> String {
        "threads".into()
    }
}

impl Drop for Thread {
    /// Signals to waiting ranks that this rank has ended. Messages already sent can still be received.
    fn drop(&mut self) {
        for other in 0..self.shared.size {
            for line in [self.line(self.rank, other), self.line(other, self.rank)] {
                let mut state = line.lock();
                state.closed = true;
                line.change(state);
            }
        }
    }
}
