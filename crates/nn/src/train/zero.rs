//! State of the optimizer, and gradients, divided among ranks (ZeRO stages 1 and 2: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory
//! Optimizations Toward Training Trillion Parameter Models", 2020).
//!
//! Of every buffer of gradients each rank has a part of about the same number of elements. It gets the sums of that part, updates the
//! parameters there, and gives them to all others.

use super::sums::{Bucket, Sums, divide};
use crate::optim::Part;
use netcl_dist::Span;
use netcl_tensor::ops::optimizer::LANES;
use netcl_tensor::{Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// How the trained parameters are divided.
pub(super) struct Shards {
    /// Of each buffer of gradients: where the ranks' parts begin and end, in elements.
    bounds: Vec<Arc<Vec<usize>>>,
    /// This rank's parts, and where their gradients lie: the number of the buffer and the first element in it.
    own: Vec<(Part, usize, usize)>,
    /// The parameters of each rank, in the memory of this rank's device.
    spans: Arc<Vec<Vec<Span>>>,
    /// Names of the parameters in each buffer, and their places.
    places: Vec<Vec<(String, usize)>>,
}

impl Shards {
    /// The part of `rank` of `size`.
    ///
    /// # Errors
    /// `Format` where a rank would have nothing; those of views.
    pub fn new(trained: &[Tensor], (size, rank): (usize, usize)) -> Result<Self> {
        let separate = trained.first().is_some_and(|param| param.device().settings().exact_memory);
        let buckets = divide(trained.iter().rev().map(|param| (param, param.dtype())), separate);
        let mut held = vec![0; size];
        let bounds: Vec<_> = buckets.iter().map(|bucket| Arc::new(cut(bucket, &mut held))).collect();
        if held.contains(&0) {
            let count: usize = held.iter().sum();
            return Err(Error::format(format!(
                "--zero: {count} parameters cannot be divided among {size} ranks in parts of {LANES}"
            )));
        }
        let (mut own, mut spans) = (Vec::new(), vec![Vec::new(); size]);
        for (number, (bucket, bounds)) in buckets.iter().zip(&bounds).enumerate() {
            for (other, pair) in bounds.windows(2).enumerate() {
                for (param, at, range) in within(bucket, pair[0]..pair[1]) {
                    join(&mut spans[other], span(param, &range));
                    if other == rank {
                        own.push((Part::new(param, range.clone())?, number, at + range.start));
                    }
                }
            }
        }
        let name = |(param, at): &(Tensor, usize)| (param.name().unwrap_or_default().to_owned(), *at);
        let places = buckets.iter().map(|bucket| bucket.params.iter().map(name).collect()).collect();
        Ok(Self { bounds, own, spans: Arc::new(spans), places })
    }

    /// What this rank updates.
    pub fn parts(&self) -> Vec<Part> {
        self.own.iter().map(|(part, ..)| part.clone()).collect()
    }

    /// Where the parts of buffer `i` begin and end.
    pub fn bounds(&self, i: usize) -> &Arc<Vec<usize>> {
        &self.bounds[i]
    }

    /// The parameters of each rank.
    pub fn spans(&self) -> &Arc<Vec<Vec<Span>>> {
        &self.spans
    }

    /// Makes this rank's parts of accumulated gradients those of what it updates.
    ///
    /// # Errors
    /// `Unsupported` for other buffers than were planned: a parameter has no gradient, or one of another type.
    pub fn attach(&self, sums: &Sums) -> Result<()> {
        if sums.places() != self.places {
            return Err(Error::unsupported(
                "--zero: a trained parameter has no gradient, or one of another type than its own; leave it out with --freeze",
            ));
        }
        self.own.iter().try_for_each(|(part, bucket, at)| {
            let gradients = &sums.buckets()[*bucket];
            part.view.set_grad(Some(gradients.slice(0, *at..at + part.range.len())?));
            Ok(())
        })
    }
}

/// Bounds of the ranks' parts of a buffer, at vectors of parameters; `held` counts the elements of each rank so far, which keeps them even.
fn cut(bucket: &Bucket, held: &mut [usize]) -> Vec<usize> {
    let count: usize = bucket.params.iter().map(|(param, _)| param.count()).sum();
    let all = held.iter().sum::<usize>() + count;
    let (mut bounds, mut given) = (vec![0], 0);
    let size = held.len();
    for (rank, held) in held.iter_mut().enumerate() {
        let wanted = (all / size).saturating_sub(*held);
        let end = if rank + 1 == size { count } else { near(bucket, (given + wanted).min(count)).max(given) };
        *held += end - given;
        given = end;
        bounds.push(if rank + 1 == size { bucket.count } else { place(bucket, end) });
    }
    bounds
}

/// The number of elements nearest to `count` at which a vector of a parameter ends.
fn near(bucket: &Bucket, count: usize) -> usize {
    let mut before = 0;
    for (param, _) in &bucket.params {
        let n = param.count();
        if count < before + n {
            let vectors = (count - before + LANES / 2) / LANES;
            return before + (vectors * LANES).min(n);
        }
        before += n;
    }
    before
}

/// Where the element lies of which so many are before it: at the begin of its parameter's place, if it is the first one of that.
fn place(bucket: &Bucket, count: usize) -> usize {
    let mut before = 0;
    for (param, at) in &bucket.params {
        if count < before + param.count() {
            return at + count - before;
        }
        before += param.count();
    }
    bucket.count
}

/// The parameters of which elements lie in a range of a buffer: each with its place in the buffer, and these elements.
fn within(bucket: &Bucket, range: Range<usize>) -> impl Iterator<Item = (&Tensor, usize, Range<usize>)> {
    bucket.params.iter().filter_map(move |(param, at)| {
        let (from, to) = (range.start.max(*at), range.end.min(at + param.count()));
        (from < to).then(|| (param, *at, from - at..to - at))
    })
}

fn span(param: &Tensor, range: &Range<usize>) -> Span {
    let (buffer, size) = (param.storage(), param.dtype().size());
    let start = buffer.start() + (param.layout().offset + range.start) * size;
    Span { buffer: buffer.whole().clone(), start, bytes: range.len() * size }
}

/// Adds a span; one that goes on where the last one ends makes that longer.
fn join(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.buffer.same(&span.buffer) && last.start + last.bytes == span.start => {
            last.bytes += span.bytes;
        }
        _ => spans.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Init, Params};
    use netcl_tensor::DType;
    use netcl_tensor::suite::test_device;

    /// Every element belongs to one rank, parts begin at whole vectors, and no rank has more than another by more than some vectors.
    #[test]
    fn parameters_are_divided_evenly() {
        let device = test_device().unwrap();
        let sizes = [5, 100_000, 300, 3_000_001, 70_000, 300_000, 17, 256];
        let make = |params: &mut Params| {
            let one = |(i, n): (usize, &usize)| params.make(&format!("w{i}"), [*n], Init::Zeros);
            sizes.iter().enumerate().map(one).collect::<Result<Vec<_>>>()
        };
        let (_params, trained) = Params::build(&device, DType::Bf16, None, make).unwrap();
        for size in 1..=9 {
            let mut seen: Vec<Vec<u8>> = sizes.iter().map(|n| vec![0; *n]).collect();
            let mut held = Vec::new();
            for rank in 0..size {
                let shards = Shards::new(&trained, (size, rank)).unwrap();
                let parts = shards.parts();
                for Part { param, range, .. } in &parts {
                    let i = trained.iter().position(|other| other.name() == param.name()).unwrap();
                    assert!(range.start.is_multiple_of(LANES));
                    seen[i][range.clone()].iter_mut().for_each(|n| *n += 1);
                }
                let count: usize = parts.iter().map(|part| part.range.len()).sum();
                let bytes: Vec<usize> =
                    shards.spans.iter().map(|of| of.iter().map(|s| s.bytes).sum()).collect();
                assert_eq!(bytes[rank], 2 * count);
                held.push(count);
            }
            assert!(seen.iter().flatten().all(|n| *n == 1), "{size} ranks");
            let most = held.iter().max().unwrap() - held.iter().min().unwrap();
            assert!(most <= 4 * LANES, "{size} ranks: {held:?}");
        }
        assert!(Shards::new(&trained[..1], (2, 0)).is_err());
    }
}
