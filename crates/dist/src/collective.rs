//! The collective algorithms, over bytes. All of them use [`Transport::exchange`], in an order that depends only on the ranks.
//!
//! Large vectors are reduced by pairwise exchange. Each rank receives its share of the vector from every other rank and adds the shares in rank
//! order. It then sends its sums to all ranks (Thakur, Rabenseifner and Gropp 2005). That moves 2 (n - 1) / n of the vector in each direction, with
//! the same data volume and step count as a ring. The order of the sums is the same for every share. Small vectors are sent to all ranks in log2(n)
//! steps (Bruck et al. 1997), and each rank adds them itself.

use crate::element::{Reduction, reduce};
use crate::shard::shard;
use crate::transport::Transport;
use netcl_device::Result;
use netcl_tensor::DType;
use std::ops::Range;

/// Maximum total size, in bytes, of all ranks' vectors that are sent to all ranks whole.
pub(crate) const MAX_WHOLE_BYTES: usize = 64 << 10;
/// Bytes of a share that are exchanged at a time. In addition to the vector, a rank needs this much memory for each other rank.
pub(crate) const SEGMENT: usize = 8 << 20;

/// Replaces `data` with the reduction over all ranks. Shares are exchanged in segments of `length` bytes, a multiple of the element size.
pub(crate) fn all_reduce(
    link: &dyn Transport,
    dtype: DType,
    how: Reduction,
    data: &mut [u8],
    (scratch, length): (&mut Vec<u8>, usize),
) -> Result<()> {
    let n = link.size();
    if data.len().saturating_mul(n) <= MAX_WHOLE_BYTES {
        let mut all = vec![0; data.len() * n];
        all_gather(link, data, &mut all)?;
        let parts: Vec<&[u8]> = if data.is_empty() { Vec::new() } else { all.chunks(data.len()).collect() };
        return reduce(dtype, how, &parts, data);
    }
    for now in segments(link, dtype, data.len(), length) {
        reduce_shares(link, dtype, how, data, &now, scratch)?;
        gather_shares(link, data, &now)?;
    }
    Ok(())
}

/// Reduces each rank's share of `data` into that rank's `data`, in segments of `length` bytes; the other shares keep this rank's values.
pub(crate) fn reduce_scatter(
    link: &dyn Transport,
    dtype: DType,
    how: Reduction,
    data: &mut [u8],
    (scratch, length): (&mut Vec<u8>, usize),
) -> Result<()> {
    for now in segments(link, dtype, data.len(), length) {
        reduce_shares(link, dtype, how, data, &now, scratch)?;
    }
    Ok(())
}

/// Sends every rank's share of `data` to all ranks.
pub(crate) fn all_gather_shares(link: &dyn Transport, dtype: DType, data: &mut [u8]) -> Result<()> {
    gather_shares(link, data, &shares(link, dtype, data.len()))
}

/// Returns the byte range of each rank's share of a vector of `bytes` bytes.
fn shares(link: &dyn Transport, dtype: DType, bytes: usize) -> Vec<Range<usize>> {
    let (n, size) = (link.size(), dtype.size());
    let share = |rank| shard(bytes / size, n, rank);
    (0..n).map(share).map(|elements| elements.start * size..elements.end * size).collect()
}

/// Splits the shares into parts of at most `length` bytes. Each step has one part per rank, which is empty after the rank's share has ended.
fn segments(
    link: &dyn Transport,
    dtype: DType,
    bytes: usize,
    length: usize,
) -> impl Iterator<Item = Vec<Range<usize>>> {
    let shares = shares(link, dtype, bytes);
    let steps = shares.iter().map(|share| share.len().div_ceil(length)).max().unwrap_or(0);
    let segment = move |share: &Range<usize>, step: usize| {
        let begin = (share.start + step * length).min(share.end);
        begin..(begin + length).min(share.end)
    };
    (0..steps).map(move |step| shares.iter().map(|share| segment(share, step)).collect())
}

/// Reduces each rank's range of `data` into that rank's `data`.
pub(crate) fn reduce_shares(
    link: &dyn Transport,
    dtype: DType,
    how: Reduction,
    data: &mut [u8],
    shares: &[Range<usize>],
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let (n, rank) = (link.size(), link.rank());
    let own = shares[rank].clone();
    scratch.resize(own.len() * n, 0);
    let part = |of: usize| of * own.len()..(of + 1) * own.len();
    for step in 1..n {
        let (to, from) = ((rank + step) % n, (rank + n - step) % n);
        let out = some(&data[shares[to].clone()]).map(|out| (to, out));
        link.exchange(out, some_mut(&mut scratch[part(from)]).map(|room| (from, room)))?;
    }
    scratch[part(rank)].copy_from_slice(&data[own.clone()]);
    if own.is_empty() {
        return Ok(());
    }
    let parts: Vec<&[u8]> = scratch.chunks(own.len()).collect();
    reduce(dtype, how, &parts, &mut data[own])
}

/// Sends each rank's range of `data` to all ranks.
pub(crate) fn gather_shares(link: &dyn Transport, data: &mut [u8], shares: &[Range<usize>]) -> Result<()> {
    let (n, rank) = (link.size(), link.rank());
    for step in 1..n {
        let (to, from) = ((rank + step) % n, (rank + n - step) % n);
        let (own, room) = apart(data, &shares[rank], &shares[from]);
        link.exchange(some(own).map(|own| (to, own)), some_mut(room).map(|room| (from, room)))?;
    }
    Ok(())
}

/// Returns two disjoint ranges of `data`: one to read, one to write.
fn apart<'a>(data: &'a mut [u8], read: &Range<usize>, write: &Range<usize>) -> (&'a [u8], &'a mut [u8]) {
    if read.is_empty() {
        return (&[], &mut data[write.clone()]);
    }
    if write.is_empty() {
        return (&data[read.clone()], &mut []);
    }
    if read.start < write.start {
        let (left, right) = data.split_at_mut(write.start);
        (&left[read.clone()], &mut right[..write.len()])
    } else {
        let (left, right) = data.split_at_mut(read.start);
        (&right[..read.len()], &mut left[write.clone()])
    }
}

/// Collects vectors of the same length from all ranks, in rank order.
pub(crate) fn all_gather(link: &dyn Transport, own: &[u8], all: &mut [u8]) -> Result<()> {
    let (n, rank, len) = (link.size(), link.rank(), own.len());
    if len == 0 {
        return Ok(());
    }
    if len.saturating_mul(n) > MAX_WHOLE_BYTES {
        all[rank * len..(rank + 1) * len].copy_from_slice(own);
        let shares: Vec<Range<usize>> = (0..n).map(|rank| rank * len..(rank + 1) * len).collect();
        return gather_shares(link, all, &shares);
    }
    // Vectors of the ranks, starting with this one.
    let mut known = vec![0; all.len()];
    known[..len].copy_from_slice(own);
    let mut have = 1;
    while have < n {
        let more = have.min(n - have) * len;
        let (old, new) = known.split_at_mut(have * len);
        let (to, from) = ((rank + n - have) % n, (rank + have) % n);
        link.exchange(Some((to, &old[..more])), Some((from, &mut new[..more])))?;
        have += more / len;
    }
    for (i, vector) in known.chunks(len).enumerate() {
        let at = (rank + i) % n * len;
        all[at..at + len].copy_from_slice(vector);
    }
    Ok(())
}

/// Sends the vector of `root` to all ranks: by a binomial tree, or, if it is long, in shares that the ranks then exchange.
pub(crate) fn broadcast(link: &dyn Transport, data: &mut [u8], root: usize) -> Result<()> {
    let n = link.size();
    if data.len() <= MAX_WHOLE_BYTES || n < 3 {
        return tree(link, data, root);
    }
    let shares: Vec<Range<usize>> = (0..n).map(|rank| shard(data.len(), n, rank)).collect();
    scatter_shares(link, data, &shares, root)?;
    gather_shares(link, data, &shares)
}

fn tree(link: &dyn Transport, data: &mut [u8], root: usize) -> Result<()> {
    let (n, place) = (link.size(), (link.rank() + link.size() - root) % link.size());
    if data.is_empty() {
        return Ok(());
    }
    let rank_at = |place: usize| (place + root) % n;
    let mut reach = n.next_power_of_two() / 2;
    let mut have = place == 0;
    while reach > 0 {
        if have && place + reach < n && place.is_multiple_of(2 * reach) {
            link.exchange(Some((rank_at(place + reach), data)), None)?;
        } else if !have && place % (2 * reach) == reach {
            link.exchange(None, Some((rank_at(place - reach), data)))?;
            have = true;
        }
        reach /= 2;
    }
    Ok(())
}

fn scatter_shares(link: &dyn Transport, data: &mut [u8], shares: &[Range<usize>], root: usize) -> Result<()> {
    if link.rank() != root {
        let own = &mut data[shares[link.rank()].clone()];
        return some_mut(own).map_or(Ok(()), |own| link.exchange(None, Some((root, own))));
    }
    for (rank, share) in shares.iter().enumerate().filter(|(rank, share)| *rank != root && !share.is_empty())
    {
        link.exchange(Some((rank, &data[share.clone()])), None)?;
    }
    Ok(())
}

/// Sends one vector of `all` at `root` to each rank.
pub(crate) fn scatter(link: &dyn Transport, all: &[u8], own: &mut [u8], root: usize) -> Result<()> {
    if own.is_empty() {
        return Ok(());
    }
    if link.rank() != root {
        return link.exchange(None, Some((root, own)));
    }
    for (rank, vector) in all.chunks(own.len()).enumerate() {
        if rank == root {
            own.copy_from_slice(vector);
        } else {
            link.exchange(Some((rank, vector)), None)?;
        }
    }
    Ok(())
}

/// Collects one vector from each rank into `all` at `root`.
pub(crate) fn gather(link: &dyn Transport, own: &[u8], all: &mut [u8], root: usize) -> Result<()> {
    if own.is_empty() {
        return Ok(());
    }
    if link.rank() != root {
        return link.exchange(Some((root, own)), None);
    }
    for (rank, vector) in all.chunks_mut(own.len()).enumerate() {
        if rank == root {
            vector.copy_from_slice(own);
        } else {
            link.exchange(None, Some((rank, vector)))?;
        }
    }
    Ok(())
}

fn some(data: &[u8]) -> Option<&[u8]> {
    (!data.is_empty()).then_some(data)
}

fn some_mut(data: &mut [u8]) -> Option<&mut [u8]> {
    if data.is_empty() { None } else { Some(data) }
}
