//! State of the optimizer, and gradients, partitioned between ranks (ZeRO stages 1 and 2: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory
//! Optimizations Toward Training Trillion Parameter Models", 2020).
//!
//! Each rank has a part of every gradient buffer, with about the same number of elements. It receives the sums of that part, updates the parameters
//! there, and sends them to all others.
//!
//! The updated parameters arrive during the next forward pass: a replay waits before the first command that uses a parameter (`Between`). In stage 2
//! no whole gradients are kept ([`divided`](super::divided)).

use super::sums::{Sums, divide};
use crate::optim::{ParameterPart, Rule};
use netcl_dist::Span;
use netcl_model::params::ALIGN;
use netcl_tensor::ops::optimizer::LANES;
use netcl_tensor::{DType, Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// A buffer for gradients that are not kept has a `PARTS`th of all gradients, within these bounds in bytes. Fewer than `MIN_BUFFER_BYTES` do not
/// justify a separate exchange.
const MAX_BUFFER_BYTES: usize = 25 << 20;
const MIN_BUFFER_BYTES: usize = 64 << 10;
const PARTS: usize = 16;

/// Elements of a parameter whose gradients are adjacent.
pub(super) struct ParameterPiece {
    pub param: Tensor,
    pub range: Range<usize>,
    /// Position of the first of their gradients, in elements.
    pub at: usize,
}

/// Gradients that are exchanged together.
pub(super) struct Cell {
    /// In the order of the parameters.
    pub params: Vec<ParameterPiece>,
    /// Number of elements, including those between parameters.
    pub count: usize,
}

/// Returns the elements of a buffer for gradients that are not kept, for this many elements of `width` bytes in total.
pub(super) fn cell(elements: usize, width: usize) -> usize {
    let bytes = (elements / PARTS).saturating_mul(width).clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
    (bytes / width / ALIGN).max(1) * ALIGN
}

/// The partition of the trained parameters.
pub(super) struct Shards {
    rank: usize,
    cells: Arc<Vec<Cell>>,
    /// Start and end of the ranks' parts of each cell, in elements.
    bounds: Vec<Arc<Vec<usize>>>,
    /// This rank's parts, and the position of their gradients: the number of the cell and the first element in it.
    own: Vec<(ParameterPart, usize, usize)>,
    /// The parameters of each rank, in the memory of this rank's device: those of the last cell first, because the next step uses them first.
    spans: Arc<Vec<Vec<Span>>>,
    /// Bytes from the beginning of all ranks' spans that contain the parameters of each cell.
    needs: Vec<usize>,
}

impl Shards {
    /// Creates the part of `rank` of `size`. At stage 1 it partitions the buffers in which gradients stay, at stage 2 the buffers that they pass
    /// through.
    ///
    /// # Errors
    /// `Format` if a rank would have nothing; `Unsupported` at stage 2 for parameters of several types and for an optimizer that needs whole
    /// matrices; those of views.
    pub fn new(trained: &[Tensor], (size, rank): (usize, usize), stage: u8, rule: &dyn Rule) -> Result<Self> {
        let whole = rule.needs_whole_matrices();
        if whole && stage > 1 {
            return Err(Error::unsupported(format!(
                "--zero {stage}: {} needs whole matrices, but gradients of parts do not stay together; use --zero 1",
                rule.kind().title
            )));
        }
        let cells = if stage > 1 { through(trained)? } else { staying(trained) };
        let mut held = vec![0; size];
        let bounds: Vec<_> = cells.iter().map(|cell| Arc::new(cut(cell, &mut held, whole))).collect();
        if held.contains(&0) {
            let count: usize = held.iter().sum();
            let parts = if whole { "whole tensors".into() } else { format!("parts of {LANES}") };
            return Err(Error::format(format!(
                "--zero: {count} parameters cannot be divided between {size} ranks in {parts}"
            )));
        }
        let mut own = Vec::new();
        for (number, (cell, bounds)) in cells.iter().zip(&bounds).enumerate() {
            for (param, at, range) in within(cell, bounds[rank]..bounds[rank + 1]) {
                own.push((ParameterPart::new(param, range)?, number, at));
            }
        }
        let (mut spans, mut needs) = (vec![Vec::new(); size], vec![0; cells.len()]);
        let mut bytes = vec![0; size];
        for (number, (cell, bounds)) in cells.iter().zip(&bounds).enumerate().rev() {
            for (other, pair) in bounds.windows(2).enumerate() {
                for (param, _, range) in within(cell, pair[0]..pair[1]) {
                    let span = span(param, &range);
                    bytes[other] += span.bytes;
                    join(&mut spans[other], span);
                }
            }
            needs[number] = bytes.iter().copied().max().unwrap_or(0);
        }
        Ok(Self { rank, cells: Arc::new(cells), bounds, own, spans: Arc::new(spans), needs })
    }

    /// Returns the commands where a step first uses parameters of each cell, from [`Stepper::first_use`](super::stepper::Stepper::first_use), in
    /// ascending order. Also returns the bytes from the beginning of all ranks' [`Shards::spans`] that each needs.
    pub fn uses(&self, first_use: impl Fn(&Tensor) -> Option<usize>) -> (Vec<usize>, Vec<usize>) {
        let first = |cell: &Cell| cell.params.iter().filter_map(|piece| first_use(&piece.param)).min();
        let cells = self.cells.iter().zip(&self.needs);
        let mut uses: Vec<(usize, usize)> =
            cells.filter_map(|(cell, need)| Some((first(cell)?, *need))).collect();
        uses.sort_unstable();
        uses.into_iter().unzip()
    }

    /// Returns the rank whose part it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the parts that this rank updates.
    pub fn parts(&self) -> Vec<ParameterPart> {
        self.own.iter().map(|(part, ..)| part.clone()).collect()
    }

    /// Returns the gradients that are exchanged together.
    pub fn cells(&self) -> &Arc<Vec<Cell>> {
        &self.cells
    }

    /// Returns the boundaries of the parts of cell `i`.
    pub fn bounds(&self, i: usize) -> &Arc<Vec<usize>> {
        &self.bounds[i]
    }

    /// Returns the parameters of each rank.
    pub fn spans(&self) -> &Arc<Vec<Vec<Span>>> {
        &self.spans
    }

    /// Makes this rank's parts of accumulated gradients those of the parts that it updates.
    ///
    /// # Errors
    /// `Unsupported` for other buffers than planned: a parameter lacks a gradient, or has one of another type.
    pub fn attach(&self, sums: &Sums) -> Result<()> {
        let place = |piece: &ParameterPiece| (piece.param.name().unwrap_or_default().to_owned(), piece.at);
        let places = self.cells.iter().map(|cell| cell.params.iter().map(place).collect::<Vec<_>>());
        if !places.eq(sums.places().iter().cloned()) {
            return Err(Error::unsupported(
                "--zero: a trained parameter lacks a gradient, or has one of another type than its own; exclude it with --freeze",
            ));
        }
        self.own.iter().try_for_each(|(part, bucket, at)| {
            let gradients = &sums.buckets()[*bucket];
            part.view.set_grad(Some(gradients.slice(0, *at..at + part.range.len())?));
            Ok(())
        })
    }

    /// Returns this rank's parts, and the position of their gradients: the number of the cell and the first element in it.
    pub fn own(&self) -> &[(ParameterPart, usize, usize)] {
        &self.own
    }
}

/// Returns the buffers in which gradients stay.
fn staying(trained: &[Tensor]) -> Vec<Cell> {
    let separate = trained.first().is_some_and(|param| param.device().settings().exact_memory);
    let buckets = divide(trained.iter().rev().map(|param| (param, param.dtype())), separate);
    let piece = |(param, at): (Tensor, usize)| ParameterPiece { range: 0..param.count(), param, at };
    let cell = |bucket: super::sums::Bucket| Cell {
        params: bucket.params.into_iter().map(piece).collect(),
        count: bucket.count,
    };
    buckets.into_iter().map(cell).collect()
}

/// Returns cells of equal size, the last parameters first; a large parameter spans several cells.
fn through(trained: &[Tensor]) -> Result<Vec<Cell>> {
    let dtype = trained.first().map_or(DType::F32, Tensor::dtype);
    if let Some(other) = trained.iter().find(|param| param.dtype() != dtype) {
        return Err(Error::unsupported(format!(
            "--zero 2: parameters are of the types {dtype} and {}; use --zero 1",
            other.dtype()
        )));
    }
    let places = trained.iter().scan(0, |end, param| {
        let at = *end;
        *end += param.count().next_multiple_of(ALIGN);
        Some((param, at))
    });
    let places: Vec<(&Tensor, usize)> = places.collect();
    let total: usize = trained.iter().map(|param| param.count().next_multiple_of(ALIGN)).sum();
    let size = cell(total, dtype.size());
    let ends = (0..total.div_ceil(size)).map(|i| total - i * size);
    let one = |end: usize| {
        let begin = end.saturating_sub(size);
        let piece = |(param, at): &(&Tensor, usize)| {
            let (from, to) = (begin.max(*at), end.min(at + param.count()));
            let param = (*param).clone();
            (from < to).then(|| ParameterPiece { param, range: from - at..to - at, at: from - begin })
        };
        Cell { params: places.iter().filter_map(piece).collect(), count: end - begin }
    };
    Ok(ends.map(one).collect())
}

/// Returns the bounds of the ranks' parts of a cell, at vectors of parameters or between `whole` parameters; `held` counts the elements of each rank
/// so far, which balances them.
fn cut(cell: &Cell, held: &mut [usize], whole: bool) -> Vec<usize> {
    let count: usize = cell.params.iter().map(|piece| piece.range.len()).sum();
    let all = held.iter().sum::<usize>() + count;
    let (mut bounds, mut given) = (vec![0], 0);
    let size = held.len();
    for (rank, held) in held.iter_mut().enumerate() {
        let wanted = (all / size).saturating_sub(*held);
        let wanted = (given + wanted).min(count);
        let end = if rank + 1 == size { count } else { near(cell, wanted, whole).max(given) };
        *held += end - given;
        given = end;
        bounds.push(if rank + 1 == size { cell.count } else { place(cell, end) });
    }
    bounds
}

/// Returns the number of elements nearest to `count` at which a vector of a parameter, or a `whole` parameter, ends.
fn near(cell: &Cell, count: usize, whole: bool) -> usize {
    let mut before = 0;
    for piece in &cell.params {
        let n = piece.range.len();
        if count < before + n {
            let unit = if whole { n } else { LANES };
            let units = (count - before + unit / 2) / unit;
            return before + (units * unit).min(n);
        }
        before += n;
    }
    before
}

/// Returns the position of the element that has `count` elements before it: at the beginning of its parameter's place, if it is the parameter's first
/// one.
fn place(cell: &Cell, count: usize) -> usize {
    let mut before = 0;
    for piece in &cell.params {
        if count < before + piece.range.len() {
            return piece.at + count - before;
        }
        before += piece.range.len();
    }
    cell.count
}

/// Returns the parameter elements in a range of a cell: for each parameter the position of its first one, and their range.
fn within(cell: &Cell, range: Range<usize>) -> impl Iterator<Item = (&Tensor, usize, Range<usize>)> {
    cell.params.iter().filter_map(move |ParameterPiece { param, range: all, at }| {
        let (from, to) = (range.start.max(*at), range.end.min(at + all.len()));
        (from < to).then(|| (param, from, from - at + all.start..to - at + all.start))
    })
}

fn span(param: &Tensor, range: &Range<usize>) -> Span {
    let (buffer, size) = (param.storage(), param.dtype().size());
    let start = buffer.start() + (param.layout().offset + range.start) * size;
    Span { buffer: buffer.whole().clone(), start, bytes: range.len() * size }
}

/// Adds a span, or extends the last one if the span continues it.
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
    use crate::optim::{AdamW, OptimizerKind, UpdateStep};
    use netcl_model::params::{Init, Params};
    use netcl_tensor::suite::test_device;

    /// Checks that the bytes that a use of a cell waits for contain its parameters, of every rank. The first used cell waits for the fewest.
    fn brought_in_time(shards: &Shards) {
        let (uses, needs) =
            shards.uses(|param| param.name().map(|name| name.trim_start_matches('w').parse().unwrap()));
        assert!(uses.is_sorted() && needs.is_sorted() && uses.len() == shards.cells.len());
        for (cell, (bounds, need)) in shards.cells.iter().zip(shards.bounds.iter().zip(&shards.needs)) {
            for (rank, pair) in bounds.windows(2).enumerate() {
                for (param, _, range) in within(cell, pair[0]..pair[1]) {
                    let (wanted, mut before) = (span(param, &range), 0);
                    let place = shards.spans[rank].iter().find_map(|span| {
                        let begin = before;
                        before += span.bytes;
                        let inside = span.start <= wanted.start
                            && wanted.start + wanted.bytes <= span.start + span.bytes
                            && span.buffer.same(&wanted.buffer);
                        inside.then(|| begin + wanted.start - span.start)
                    });
                    assert!(place.unwrap() + wanted.bytes <= *need, "{:?} of rank {rank}", param.name());
                }
            }
        }
    }

    /// Every element belongs to one rank, parts begin at whole vectors, and the ranks' numbers of elements differ by at most a few vectors.
    #[test]
    fn parameters_are_divided_evenly() {
        let device = test_device().unwrap();
        let sizes = [5, 100_000, 300, 3_000_001, 70_000, 300_000, 17, 256];
        let make = |params: &mut Params| {
            let one = |(i, n): (usize, &usize)| params.make(&format!("w{i}"), [*n], Init::Zeros);
            sizes.iter().enumerate().map(one).collect::<Result<Vec<_>>>()
        };
        let (_params, trained) = Params::build(&device, DType::Bf16, None, make).unwrap();
        for (size, stage) in (1..=9).flat_map(|size| [(size, 1), (size, 2)]) {
            let mut seen: Vec<Vec<u8>> = sizes.iter().map(|n| vec![0; *n]).collect();
            let mut held = Vec::new();
            for rank in 0..size {
                let shards = Shards::new(&trained, (size, rank), stage, &ADAMW).unwrap();
                let parts = shards.parts();
                for ParameterPart { param, range, .. } in &parts {
                    let i = trained.iter().position(|other| other.name() == param.name()).unwrap();
                    assert!(range.start.is_multiple_of(LANES));
                    seen[i][range.clone()].iter_mut().for_each(|n| *n += 1);
                }
                let count: usize = parts.iter().map(|part| part.range.len()).sum();
                let bytes: Vec<usize> =
                    shards.spans.iter().map(|of| of.iter().map(|s| s.bytes).sum()).collect();
                assert_eq!(bytes[rank], 2 * count);
                held.push(count);
                brought_in_time(&shards);
            }
            assert!(seen.iter().flatten().all(|n| *n == 1), "{size} ranks");
            let most = held.iter().max().unwrap() - held.iter().min().unwrap();
            assert!(most <= 4 * LANES, "{size} ranks: {held:?}");
        }
        assert!(Shards::new(&trained[..1], (2, 0), 1, &ADAMW).is_err());
    }

    const ADAMW: AdamW = AdamW { betas: [0.9, 0.95], eps: 1e-8 };

    /// Like AdamW, for whole matrices.
    #[derive(Debug)]
    struct Whole;

    impl Rule for Whole {
        fn kind(&self) -> &'static OptimizerKind {
            ADAMW.kind()
        }
        fn values(&self) -> Vec<f64> {
            ADAMW.values()
        }
        fn state(&self) -> &'static [&'static str] {
            ADAMW.state()
        }
        fn needs_whole_matrices(&self) -> bool {
            true
        }
        fn scalars(&self) -> [f64; 4] {
            ADAMW.scalars()
        }
        fn reference(&self, p: &mut f64, state: &mut [f64], step: &UpdateStep) {
            ADAMW.reference(p, state, step);
        }
    }

    #[test]
    fn an_optimizer_of_whole_matrices_gets_no_parts_of_them() {
        let device = test_device().unwrap();
        let make = |params: &mut Params| {
            let one = |i: usize| params.make(&format!("w{i}"), [100 + i, 300], Init::Zeros);
            (0..7).map(one).collect::<Result<Vec<_>>>()
        };
        let (_params, trained) = Params::build(&device, DType::Bf16, None, make).unwrap();
        let mut seen = 0;
        for rank in 0..3 {
            let parts = Shards::new(&trained, (3, rank), 1, &Whole).unwrap().parts();
            assert!(parts.iter().all(|part| part.range == (0..part.param.count())), "rank {rank}");
            assert!((2..=3).contains(&parts.len()), "rank {rank}");
            seen += parts.len();
        }
        assert_eq!(seen, 7);
        let error = |size, stage| Shards::new(&trained, (size, 0), stage, &Whole).err().unwrap().to_string();
        assert!(error(3, 2).contains("AdamW needs whole matrices"));
        assert!(error(8, 1).contains("whole tensors"));
    }
}
