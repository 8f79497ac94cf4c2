//! The interface of one rank.

use crate::collective::SEGMENT;
use crate::element::{Element, Reduction};
use crate::subset::Subset;
use crate::{Transport, Watch, collective};
use bytemuck::Pod;
use netcl_device::{Error, Result, SharedMemory};
use netcl_tensor::DType;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

/// One rank's handle of a group of ranks that compute together.
///
/// All ranks call every operation, in the same order and with the same lengths; calls of one rank do not overlap. Sums are computed in rank order,
/// for 16-bit floats in f32. So they have the same bits in every run with the same number of ranks.
#[derive(Clone)]
pub struct Group {
    transport: Arc<dyn Transport>,
    /// Memory of the last reduction. Its lock also keeps two threads of a rank from calling at the same time.
    scratch: Arc<Mutex<Vec<u8>>>,
}

impl Group {
    /// Returns a group of the ranks of `transport`.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, scratch: Arc::default() }
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// Returns true for rank 0, which reports for all ranks.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Returns the message transport.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Returns the watch: the wait timeout of this rank and its wait statistics.
    pub fn watch(&self) -> &Watch {
        self.transport.watch()
    }

    /// Runs `f` while no other thread of this rank exchanges messages.
    fn alone<T>(&self, f: impl FnOnce(&dyn Transport, &mut Vec<u8>) -> Result<T>) -> Result<T> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let done = f(&*self.transport, &mut scratch);
        self.watch().was_busy(begun.elapsed());
        done
    }

    /// Replaces `data` with the reduction of all ranks' vectors.
    ///
    /// # Errors
    /// `Device` if a rank has ended or does not answer; `DType` for a mean of integers.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], how: Reduction) -> Result<()> {
        self.all_reduce_bytes(T::DTYPE, bytemuck::cast_slice_mut(data), how)
    }

    /// Does the same as [`Group::all_reduce`], for elements of `dtype` as bytes.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`]; `Shape` for an incomplete element.
    pub fn all_reduce_bytes(&self, dtype: DType, data: &mut [u8], how: Reduction) -> Result<()> {
        whole_elements("all_reduce", dtype, data)?;
        self.alone(|link, scratch| collective::all_reduce(link, dtype, how, data, (scratch, SEGMENT)))
    }

    /// Reduces all ranks' vectors. This rank gets the elements [`shard`]`(count, size, rank)` of the result, in place. The other elements keep their
    /// values.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn reduce_scatter<T: Element>(&self, data: &mut [T], how: Reduction) -> Result<()> {
        self.reduce_scatter_bytes(T::DTYPE, bytemuck::cast_slice_mut(data), how)
    }

    /// Does the same as [`Group::reduce_scatter`], for elements of `dtype` as bytes.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce_bytes`].
    pub fn reduce_scatter_bytes(&self, dtype: DType, data: &mut [u8], how: Reduction) -> Result<()> {
        whole_elements("reduce_scatter", dtype, data)?;
        self.alone(|link, scratch| collective::reduce_scatter(link, dtype, how, data, (scratch, SEGMENT)))
    }

    /// Does the same for arbitrary parts: this rank gets the bytes `ranges[rank]`, a multiple of the element size, in place.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce_bytes`]; `Shape` if the number of ranges differs from the number of ranks.
    pub fn reduce_scatter_ranges(
        &self,
        dtype: DType,
        data: &mut [u8],
        ranges: &[Range<usize>],
        how: Reduction,
    ) -> Result<()> {
        whole_elements("reduce_scatter_ranges", dtype, data)?;
        self.check_ranges("reduce_scatter_ranges", data.len(), ranges)?;
        self.alone(|link, scratch| collective::reduce_shares(link, dtype, how, data, ranges, scratch))
    }

    /// Completes a vector of which every rank has the bytes `ranges[rank]`.
    ///
    /// # Errors
    /// Same as [`Group::reduce_scatter_ranges`].
    pub fn all_gather_ranges(&self, data: &mut [u8], ranges: &[Range<usize>]) -> Result<()> {
        self.check_ranges("all_gather_ranges", data.len(), ranges)?;
        self.alone(|link, _| collective::gather_shares(link, data, ranges))
    }

    fn check_ranges(&self, op: &str, bytes: usize, ranges: &[Range<usize>]) -> Result<()> {
        // The ranges must be in rank order and not overlap.
        let ordered =
            ranges.iter().try_fold(0, |end, r| (end <= r.start && r.start <= r.end).then_some(r.end));
        if ranges.len() == self.size() && ordered.is_some_and(|end| end <= bytes) {
            return Ok(());
        }
        Err(Error::shape(format!("{op}: {ranges:?} of {bytes} bytes among {} ranks", self.size())))
    }

    /// Completes a vector of which every rank has its [`shard`].
    ///
    /// # Errors
    /// Same as [`Group::all_reduce_bytes`].
    pub fn all_gather_shards(&self, dtype: DType, data: &mut [u8]) -> Result<()> {
        whole_elements("all_gather_shards", dtype, data)?;
        self.alone(|link, _| collective::all_gather_shares(link, dtype, data))
    }

    /// Returns the concatenated vectors of all ranks.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn all_gather<T: Pod>(&self, own: &[T]) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); own.len() * self.size()];
        self.alone(|link, _| {
            collective::all_gather(link, bytemuck::cast_slice(own), bytemuck::cast_slice_mut(&mut all))
        })?;
        Ok(all)
    }

    /// Returns bytes of any length from every rank.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn all_gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let own_length = (own.len() as u64).to_le_bytes();
        let mut lengths = vec![0; 8 * self.size()];
        self.alone(|link, _| {
            collective::all_gather(link, &own_length, &mut lengths)?;
            let lengths: Vec<usize> = lengths.chunks_exact(8).map(number).collect();
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let mut padded = own.to_vec();
            padded.resize(longest, 0);
            let mut all = vec![0; longest * lengths.len()];
            collective::all_gather(link, &padded, &mut all)?;
            Ok(lengths.iter().enumerate().map(|(i, n)| all[i * longest..][..*n].to_vec()).collect())
        })
    }

    /// Replaces `data` with that of the rank `root`.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`]; `Shape` for a rank that does not exist.
    pub fn broadcast<T: Pod>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.broadcast_bytes(bytemuck::cast_slice_mut(data), root)
    }

    /// Does the same as [`Group::broadcast`], for bytes.
    ///
    /// # Errors
    /// Same as [`Group::broadcast`].
    pub fn broadcast_bytes(&self, data: &mut [u8], root: usize) -> Result<()> {
        self.check_rank("broadcast", root)?;
        self.alone(|link, _| collective::broadcast(link, data, root))
    }

    /// Sends the vector `all[rank * own.len()..]` of `root` to each rank; `all` of the other ranks is not read.
    ///
    /// # Errors
    /// Same as [`Group::broadcast`]; `Shape` if the number of vectors at `root` differs from the number of ranks.
    pub fn scatter<T: Pod>(&self, all: &[T], own: &mut [T], root: usize) -> Result<()> {
        self.check_vectors("scatter", all.len(), own.len(), root)?;
        let own = bytemuck::cast_slice_mut(own);
        self.alone(|link, _| collective::scatter(link, bytemuck::cast_slice(all), own, root))
    }

    /// Collects each rank's vector in `all` at `root`; `all` of the other ranks is not written.
    ///
    /// # Errors
    /// Same as [`Group::scatter`].
    pub fn gather<T: Pod>(&self, own: &[T], all: &mut [T], root: usize) -> Result<()> {
        self.check_vectors("gather", all.len(), own.len(), root)?;
        let all = bytemuck::cast_slice_mut(all);
        self.alone(|link, _| collective::gather(link, bytemuck::cast_slice(own), all, root))
    }

    /// Sends to another rank, which calls [`Group::recv`].
    ///
    /// # Errors
    /// Same as [`Group::broadcast`]; `Shape` for this rank itself.
    pub fn send<T: Pod>(&self, to: usize, data: &[T]) -> Result<()> {
        self.check_other("send", to)?;
        self.alone(|link, _| link.exchange(Some((to, bytemuck::cast_slice(data))), None))
    }

    /// Receives `data.len()` elements from another rank.
    ///
    /// # Errors
    /// Same as [`Group::send`].
    pub fn recv<T: Pod>(&self, from: usize, data: &mut [T]) -> Result<()> {
        self.check_other("recv", from)?;
        self.alone(|link, _| link.exchange(None, Some((from, bytemuck::cast_slice_mut(data)))))
    }

    /// Sends to one rank and receives from the same or another rank at the same time, until the receive buffer is full. Two ranks that send to each
    /// other do not deadlock. Either argument may be absent.
    ///
    /// # Errors
    /// Same as [`Group::send`].
    pub fn exchange<T: Pod>(&self, to: Option<(usize, &[T])>, from: Option<(usize, &mut [T])>) -> Result<()> {
        for rank in to.iter().map(|to| to.0).chain(from.iter().map(|from| from.0)) {
            self.check_other("exchange", rank)?;
        }
        let to = to.map(|(rank, data)| (rank, bytemuck::cast_slice(data)));
        let from = from.map(|(rank, data)| (rank, bytemuck::cast_slice_mut(data)));
        self.alone(|link, _| link.exchange(to, from))
    }

    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn barrier(&self) -> Result<()> {
        let mut all = vec![0; self.size()];
        self.alone(|link, _| collective::all_gather(link, &[1], &mut all))
    }

    /// Returns a group of the ranks that pass the same `color`, in the order of this group's ranks. All ranks call it.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn split(&self, color: u32) -> Result<Self> {
        let colors = self.all_gather(&[color])?;
        let members: Vec<usize> = (0..self.size()).filter(|rank| colors[*rank] == color).collect();
        let rank = members.iter().position(|member| *member == self.rank());
        let rank = rank.ok_or_else(|| Error::internal("a rank without its own color"))?;
        let whole = self.transport.clone();
        Ok(Self {
            transport: Arc::new(Subset { whole, members, rank }),
            // A rank exchanges messages for one of its groups at a time.
            scratch: self.scratch.clone(),
        })
    }

    /// Returns true if all ranks are on one machine and can share its memory. All ranks call it.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn is_on_one_machine(&self) -> Result<bool> {
        if !self.transport.may_share_memory() {
            return Ok(false);
        }
        // Machines may share a file system, but not memory.
        let machine = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let machines = self.all_gather_bytes(&machine)?;
        Ok(machines.iter().all(|other| !other.is_empty() && *other == machine))
    }

    /// Returns zeroed host memory of `bytes` that all ranks can access. `None` if the ranks are on several machines or there is not enough space. All
    /// ranks call it.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn share_memory(&self, bytes: usize) -> Result<Option<SharedMemory>> {
        if !self.is_on_one_machine()? {
            return Ok(None);
        }
        // Prefer a file system in memory, then the folder for temporary files.
        for folder in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            let (path, own) = if self.leads() { create_in(&folder, bytes) } else { (PathBuf::new(), None) };
            // The memory lives as long as any rank uses it. Its name is removed even if the ranks' exchange fails.
            let _named = Named(if self.leads() { path.clone() } else { PathBuf::new() });
            let name = self.all_gather_bytes(path.to_string_lossy().as_bytes())?;
            let path = PathBuf::from(String::from_utf8_lossy(&name[0]).into_owned());
            let found = if self.leads() || path.as_os_str().is_empty() {
                own
            } else {
                SharedMemory::open(&path).ok().filter(|memory| memory.bytes() == bytes.max(1))
            };
            let all = self.all_gather(&[u8::from(found.is_some())])?;
            if let (Some(memory), true) = (found, all.iter().all(|has| *has == 1)) {
                return Ok(Some(memory));
            }
        }
        Ok(None)
    }

    /// Makes an error of one rank an error of all ranks. Each rank gets its own error or, if it succeeded, that of the lowest rank that failed.
    ///
    /// # Errors
    /// The failure with the rank's number; same as [`Group::all_reduce`].
    pub fn all_succeed<T>(&self, own: Result<T>) -> Result<T> {
        if self.size() == 1 {
            return own;
        }
        let text = match &own {
            Ok(_) => Vec::new(),
            Err(e) => std::iter::once(kind_code(e)).chain(e.message().bytes()).collect(),
        };
        let all = self.all_gather_bytes(&text);
        let value = own.map_err(|e| e.context(format!("rank {}", self.rank())))?;
        for (rank, text) in all?.iter().enumerate() {
            if let Some((code, message)) = text.split_first() {
                let kind =
                    netcl_device::ErrorKind::ALL[usize::from(*code) % netcl_device::ErrorKind::ALL.len()];
                return Err(Error::new(kind, format!("rank {rank}: {}", String::from_utf8_lossy(message))));
            }
        }
        Ok(value)
    }

    /// Checks that all ranks have the same values for the named items.
    ///
    /// # Errors
    /// `Format`, at every rank, with the first name whose values differ, and the ranks that have each value.
    pub fn agree(&self, items: &[(&str, String)]) -> Result<()> {
        let own: Vec<u8> =
            items.iter().flat_map(|(name, value)| [field(name), field(value)].concat()).collect();
        let all = self.all_gather_bytes(&own)?;
        if all.iter().all(|other| *other == own) && all.len() == self.size() {
            return Ok(());
        }
        let all: Vec<Vec<String>> = all.iter().map(|bytes| fields(bytes)).collect();
        for (i, (name, _)) in items.iter().enumerate() {
            let value = |rank: usize| all[rank].get(2 * i + 1).map_or("nothing", String::as_str);
            let other = (0..self.size()).find(|rank| value(*rank) != value(0));
            if let Some(other) = other {
                let [first, second] = unlike_lines(value(0), value(other));
                return Err(Error::format(format!(
                    "the ranks do not agree: {name} is {first} at rank 0 and {second} at rank {other}. Start all ranks with the same program, \
                     settings and data"
                )));
            }
        }
        Err(Error::format("the ranks do not agree: they compare different things, so their programs differ"))
    }

    /// Ends this rank's participation: all ranks call it, after their last message. A rank that ends without this call counts as failed for the
    /// others.
    ///
    /// # Errors
    /// `Device` if the transport could not be closed.
    pub fn close(&self) -> Result<()> {
        self.transport.close()
    }

    /// Ends all ranks at once with this exit code, for a failure that the other ranks cannot detect.
    pub fn abort(&self, code: u8) {
        self.transport.abort(code);
    }

    fn check_rank(&self, op: &str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::shape(format!("{op}: rank {rank} of a group of {}", self.size())))
    }

    fn check_other(&self, op: &str, rank: usize) -> Result<()> {
        self.check_rank(op, rank)?;
        if rank == self.rank() {
            return Err(Error::shape(format!("{op}: rank {rank} is this rank itself")));
        }
        Ok(())
    }

    fn check_vectors(&self, op: &str, all: usize, own: usize, root: usize) -> Result<()> {
        self.check_rank(op, root)?;
        if self.rank() != root || all == own * self.size() {
            return Ok(());
        }
        Err(Error::shape(format!(
            "{op}: rank {root} has {all} elements for {} ranks of {own}, expected {}",
            self.size(),
            own * self.size()
        )))
    }
}

/// The name of a shared-memory file created by `create_in`. The file is removed when this is dropped; an empty name means that there was not enough
/// space.
struct Named(PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn create_in(folder: &Path, bytes: usize) -> (PathBuf, Option<SharedMemory>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    let path = folder.join(format!("netcl-{}-{number}-{since:x}", std::process::id()));
    match SharedMemory::create(&path, bytes) {
        Ok(memory) => (path, Some(memory)),
        Err(e) => {
            tracing::debug!("cannot share memory in {}: {e}", folder.display());
            // Remove the file that was created before the space ran out.
            let _ = std::fs::remove_file(&path);
            (PathBuf::new(), None)
        }
    }
}

fn whole_elements(op: &str, dtype: DType, data: &[u8]) -> Result<()> {
    if data.len().is_multiple_of(dtype.size()) {
        return Ok(());
    }
    Err(Error::shape(format!("{op}: {} bytes are not a whole number of {dtype}", data.len())))
}

/// Returns the first lines in which two texts differ.
fn unlike_lines<'a>(a: &'a str, b: &'a str) -> [&'a str; 2] {
    let (mut a, mut b) = (a.lines(), b.lines());
    loop {
        match (a.next(), b.next()) {
            (Some(x), Some(y)) if x == y => {}
            (x, y) => return [x, y].map(|line| line.unwrap_or("nothing")),
        }
    }
}

fn kind_code(e: &Error) -> u8 {
    let at = netcl_device::ErrorKind::ALL.iter().position(|kind| *kind == e.kind()).unwrap_or(0);
    u8::try_from(at).unwrap_or(0)
}

fn number(bytes: &[u8]) -> usize {
    let mut le = [0; 8];
    le.copy_from_slice(bytes);
    usize::try_from(u64::from_le_bytes(le)).unwrap_or(usize::MAX)
}

/// Returns a text preceded by its length.
fn field(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn fields(mut bytes: &[u8]) -> Vec<String> {
    let mut out = Vec::new();
    while let Some((length, rest)) = bytes.split_at_checked(8) {
        let (text, rest) = rest.split_at(number(length).min(rest.len()));
        out.push(String::from_utf8_lossy(text).into_owned());
        bytes = rest;
    }
    out
}
