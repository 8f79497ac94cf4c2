//! Accumulated gradients and loss of a step with several micro-batches, in fixed buffers: every replay of the captured micro-batch adds to the
//! same memory, so one graph serves all micro-batches.
//!
//! Ranks reduce these buffers. The captured backward pass is replayed in parts that end after the last write to a buffer (`Between`), and a thread
//! reduces the buffer meanwhile ([`reducer`](super::reducer)). Steps have the same bits with and without capture.

use netcl_model::params::ALIGN;
use netcl_tensor::ops::map::map_into;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Maximum bytes of a gradient buffer, unless it has a single larger gradient. PyTorch's `DistributedDataParallel` uses the same sizes (Li et al.,
/// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020). The first one is small, so that its reduction starts early.
pub(crate) const FIRST_BUCKET: usize = 1 << 20;
/// See [`FIRST_BUCKET`].
pub(crate) const BUCKET: usize = 25 << 20;

/// The accumulators of a step.
pub(crate) struct Sums {
    /// Parameters and their gradient accumulators.
    gradients: Vec<(Tensor, Tensor)>,
    /// The buffers of the accumulators, each for consecutive parameters, with the last parameters first: this is approximately the order in which a
    /// backward pass completes them.
    buckets: Vec<Tensor>,
    /// The tied table with an accumulator for its embedding's gradient, which comes at the end of a pass; the head's is in the first bucket.
    apart: Option<(Tensor, Tensor)>,
    /// Names of the parameters in each buffer, and the start of their gradients.
    places: Vec<Vec<(String, usize)>>,
    loss: Tensor,
    /// Whether a step has several micro-batches. With a single one, gradients replace those of the last step, which saves clearing them.
    several: bool,
}

/// Gradients of one type in one buffer.
pub(super) struct Bucket {
    pub dtype: DType,
    /// The parameters, in their order, and the start of their gradients, in elements.
    pub params: Vec<(Tensor, usize)>,
    pub count: usize,
}

impl Sums {
    /// Creates accumulators for the parameters that have a gradient now, with the gradients' types. If the table `tied` is large enough, its head's
    /// gradient is completed before the embedding's.
    pub fn like<'a>(
        device: &Device,
        params: impl Iterator<Item = &'a Tensor>,
        tied: Option<&Tensor>,
        loss: DType,
        several: bool,
    ) -> Result<Self> {
        let _tag = device.tag("gradients");
        let mut gradients = Vec::new();
        let mut buckets = Vec::new();
        let mut places = Vec::new();
        // Memory checkers need every buffer to be a separate allocation.
        let separate = device.settings().exact_memory;
        let graded: Vec<_> = params.filter_map(|param| Some((param, param.grad()?.dtype()))).collect();
        let is_tied = |param: &Tensor| tied.is_some_and(|table| table.name() == param.name());
        let (tables, others): (Vec<_>, Vec<_>) = graded
            .into_iter()
            .rev()
            .partition(|(param, dtype)| is_tied(param) && is_apart(param.count(), *dtype));
        let mut apart = None;
        if let Some((table, dtype)) = tables.first() {
            apart = Some(((*table).clone(), Tensor::empty(device, table.shape().clone(), *dtype)?));
        }
        let divided =
            divide(tables.into_iter(), true).into_iter().chain(divide(others.into_iter(), separate));
        for bucket in divided {
            let whole = Tensor::empty(device, [bucket.count], bucket.dtype)?;
            let name = |(param, at): &(Tensor, usize)| (param.name().unwrap_or_default().to_owned(), *at);
            places.push(bucket.params.iter().map(name).collect());
            for (param, at) in bucket.params {
                let sum = whole.window(at, param.shape().clone())?;
                gradients.push((param, sum));
            }
            buckets.push(whole);
        }
        let sums =
            Self { gradients, buckets, places, apart, loss: Tensor::empty(device, [], loss)?, several };
        sums.all().try_for_each(clear)?;
        sums.begin()?;
        Ok(sums)
    }

    /// Resets the accumulators and makes the backward pass add to them.
    ///
    /// They are set to -0, because -0 + x has the bits of x for every x, including -0: the first micro-batch can add like the others and needs no
    /// separate graph.
    pub fn begin(&self) -> Result<()> {
        if self.several {
            self.all().try_for_each(clear)?;
        }
        self.gradients.iter().for_each(|(param, sum)| param.set_grad(Some(sum.clone())));
        clear(&self.loss)
    }

    /// Returns all memory of accumulated gradients.
    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.buckets.iter().chain(self.apart.iter().map(|(_, later)| later))
    }

    /// Returns the tied table, and the accumulator of its embedding's gradient.
    pub fn apart(&self) -> Option<(&Tensor, &Tensor)> {
        self.apart.as_ref().map(|(table, later)| (table, later))
    }

    /// Returns whether a step accumulates several micro-batches. With a single one, gradients replace those of the last step.
    pub fn are_added(&self) -> bool {
        self.several
    }

    /// Returns the buffers of the accumulated gradients, approximately in the order in which a backward pass completes them.
    pub fn buckets(&self) -> &[Tensor] {
        &self.buckets
    }

    /// Returns the names of the parameters in each buffer, and the start of their gradients.
    pub fn places(&self) -> &[Vec<(String, usize)>] {
        &self.places
    }

    /// Adds the loss of a micro-batch; returns the sum.
    pub fn add_loss(&self, loss: &Tensor) -> Result<Tensor> {
        map_into("x0 + x1", &[&self.loss, loss], &[], &self.loss)?;
        Ok(self.loss.clone())
    }

    /// Returns the sum of the losses.
    pub fn loss(&self) -> Tensor {
        self.loss.clone()
    }

    /// Detaches the accumulators from the parameters.
    pub fn end(&self) {
        self.gradients.iter().for_each(|(param, _)| param.set_grad(None));
    }
}

/// Allocates and frees what a step of this many ranks, on one machine or not, needs in addition to its plan: the other ranks' gradients, and some
/// small buffers.
///
/// # Errors
/// `Memory` if they do not fit.
pub(crate) fn exchange_fits(
    device: &Device,
    sums: Option<&Sums>,
    (ranks, one_machine): (usize, bool),
) -> Result<()> {
    let buckets = sums.map_or(&[][..], Sums::buckets);
    // With more ranks, each holds less of the others' data at a time.
    let others = if one_machine { ranks.saturating_sub(1).min(4) } else { 0 };
    let rooms = buckets.iter().flat_map(|bucket| std::iter::repeat_n(bucket, others));
    let rooms = rooms.map(|bucket| Tensor::empty(device, [bucket.count()], bucket.dtype()));
    let small = (0..8).map(|_| Tensor::empty(device, [4096], DType::F32));
    rooms.chain(small).collect::<Result<Vec<_>>>().map(drop)
}

/// Returns whether the two gradients of a tied table of this many elements are separate. A table that fits in the first bucket is reduced in less
/// time than agreeing on rows takes.
pub(crate) fn is_apart(count: usize, dtype: DType) -> bool {
    count.saturating_mul(dtype.size()) >= FIRST_BUCKET
}

/// Divides the gradients of these parameters and types into buffers, the last parameters first. Every buffer except the first has at most half of the
/// remaining gradients, as long as that is more than [`FIRST_BUCKET`]. The last buffers are small, because their exchange cannot overlap with the
/// pass.
pub(super) fn divide<'a>(params: impl Iterator<Item = (&'a Tensor, DType)>, separate: bool) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let params: Vec<(&Tensor, DType)> = params.collect();
    let size = |(param, dtype): &(&Tensor, DType)| param.count() * dtype.size();
    let mut left: usize = params.iter().map(size).sum();
    // Maximum bytes of each buffer.
    let mut most: Vec<usize> = Vec::new();
    for (param, dtype) in params {
        // Only the last one: a pass completes the gradients of a buffer at about the same time.
        let last = buckets.iter().rposition(|bucket| bucket.dtype == dtype);
        let has_room =
            |i: &usize| !separate && (buckets[*i].count + param.count()) * dtype.size() <= most[*i];
        let at = last.filter(has_room).unwrap_or(buckets.len());
        if at == buckets.len() {
            let first = buckets.is_empty();
            most.push(if first { FIRST_BUCKET } else { (left / 2).clamp(FIRST_BUCKET, BUCKET) });
            buckets.push(Bucket { dtype, params: Vec::new(), count: 0 });
        }
        left -= size(&(param, dtype));
        let bucket = &mut buckets[at];
        bucket.params.push((param.clone(), 0));
        bucket.count += param.count().next_multiple_of(ALIGN);
    }
    // Within a buffer, gradients have the order of their parameters, so that neighbors are neighbors in both.
    for bucket in &mut buckets {
        bucket.params.reverse();
        bucket.params.iter_mut().fold(0, |at, (param, begin)| {
            *begin = at;
            at + param.count().next_multiple_of(ALIGN)
        });
    }
    buckets
}

fn clear(sum: &Tensor) -> Result<()> {
    let nothing: &[u8] = match sum.dtype() {
        DType::F32 => &(-0.0f32).to_le_bytes(),
        _ => &[0, 0x80],
    };
    sum.device().fill(sum.storage(), nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_tensor::suite::test_device;

    /// Buffers follow the order of the parameters, are small at first, and one gradient may be larger than a buffer.
    #[test]
    fn gradients_are_divided_in_order() {
        let device = test_device().unwrap();
        let sizes = [100_000, 5, 200_000, 300_000, 8_000_000, 2_000_000, 1_000_000, 500_000, 300, 300];
        let params: Vec<Tensor> = sizes
            .iter()
            .map(|n| Tensor::empty(&device, [1], DType::F32).unwrap().expand([*n]).unwrap())
            .collect();
        let of = |separate| {
            let all = divide(params.iter().map(|p| (p, DType::F32)), separate);
            all.iter()
                .map(|b| (b.params.iter().map(|(p, _)| p.count()).collect(), b.count))
                .collect::<Vec<_>>()
        };
        // A buffer has at most half of the remaining gradients, except for a single longer gradient.
        let expected = vec![
            (vec![5, 100_000], 100_096 + 256),
            (vec![300_000, 200_000], 500_224),
            (vec![8_000_000], 8_000_000),
            (vec![2_000_000], 2_000_128),
            (vec![1_000_000], 1_000_192),
            (vec![500_000], 500_224),
            (vec![300, 300], 1024),
        ];
        assert_eq!(of(false), expected);
        assert_eq!(of(true).len(), sizes.len());
    }
}
