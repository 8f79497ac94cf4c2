//! Means and variances over the images of several ranks, for batch normalization equivalent to PyTorch's `SyncBatchNorm`.

use netcl_tensor::ops::batch_norm::batch_statistics;
use netcl_tensor::ops::map::map_into;
use netcl_tensor::tape::function;
use netcl_tensor::{Result, Shape, Tensor, fuse, no_grad};
use std::cell::RefCell;
use std::sync::Arc;

/// The ranks whose images are normalized together.
pub trait RankGroup: Send + Sync {
    /// Returns this rank and the number of ranks.
    fn place(&self) -> (usize, usize);

    /// Returns each rank's share of the elements, f32 (ranks, 1, 1); the sum is 1.
    fn shares(&self) -> &Tensor;

    /// This rank's part.
    fn share(&self) -> f64;

    /// Returns the sum of all ranks' tensors of this shape, f32; `write` writes this rank's. All ranks call it in the same order. The result stays
    /// valid until the next pass.
    ///
    /// # Errors
    /// Errors of `write`, of the ranks and of the device.
    fn sum(&self, shape: &Shape, write: &dyn Fn(&Tensor) -> Result<()>) -> Result<Tensor>;
}

thread_local! {
    static TOGETHER: RefCell<Option<Arc<dyn RankGroup>>> = const { RefCell::new(None) };
}

/// Runs `f`. Within it, training batch normalization uses the statistics of all `ranks`.
pub fn together<T>(ranks: &Arc<dyn RankGroup>, f: impl FnOnce() -> T) -> T {
    struct Leave(Option<Arc<dyn RankGroup>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            TOGETHER.set(self.0.take());
        }
    }
    let _leave = Leave(TOGETHER.replace(Some(Arc::clone(ranks))));
    f()
}

/// Returns the ranks of [`together`], if this thread is within it.
pub(super) fn ranks() -> Option<Arc<dyn RankGroup>> {
    TOGETHER.with_borrow(Clone::clone)
}

/// Result of batch normalization over all ranks' images.
pub(super) struct Normed {
    /// This rank's output (N, C, ..).
    pub y: Tensor,
    /// f32 (C).
    pub mean: Tensor,
    /// Divided by the number of elements, f32 (C).
    pub variance: Tensor,
    /// Elements per channel.
    pub count: usize,
}

/// Computes `(x - mean) / sqrt(variance + eps) · weight + bias` with mean and variance over all ranks' x `(N, C, ..)`; gradients include all ranks'
/// losses. Ranks may have different numbers of images.
///
/// # Errors
/// Same as [`batch_statistics`]; errors of the ranks.
pub(super) fn normed(
    ranks: &Arc<dyn RankGroup>,
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    eps: f32,
) -> Result<Normed> {
    let all = gathered(ranks, &batch_statistics(x)?)?;
    let (means, variances) = (all.slice(1, 0..1)?, all.slice(1, 1..2)?);
    let shares = ranks.shares();
    let mean = fuse(&[&means, shares], |t| t[0].mul(&t[1])?.sum(&[0]))?;
    // Differences of means first, because rounding requires it: Chan, Golub and LeVeque 1979.
    let variance = fuse(&[&means, &variances, shares, &mean], |t| {
        let apart = t[0].sub(&t[3])?;
        t[1].add(&apart.mul(&apart)?)?.mul(&t[2])?.sum(&[0])
    })?;
    let channels = weight.count();
    let mut dims = vec![1; x.shape().rank() - 1];
    dims[0] = channels;
    let laid = |of: &Tensor| of.reshape(dims.clone());
    let parts = [x, &laid(&mean)?, &laid(&variance)?, &laid(weight)?, &laid(bias)?];
    let y = fuse(&parts, |t| t[0].sub(&t[1])?.mul(&t[2].add_scalar(eps)?.rsqrt()?)?.mul(&t[3])?.add(&t[4]))?;
    let count = (x.count() / channels.max(1)) as f64 / ranks.share();
    let flat = |of: &Tensor| of.detach().reshape([channels]);
    Ok(Normed {
        y: y.to_dtype(x.dtype())?,
        mean: flat(&mean)?,
        variance: flat(&variance)?,
        count: count.round() as usize,
    })
}

/// Returns `own` of every rank, (ranks, ..).
fn gathered(ranks: &Arc<dyn RankGroup>, own: &Tensor) -> Result<Tensor> {
    let (rank, size) = ranks.place();
    let mut dims = vec![size];
    dims.extend_from_slice(own.dims());
    let plain = own.detach();
    let part = move |all: &Tensor| no_grad(|| all.detach().slice(0, rank..rank + 1));
    let all = ranks.sum(&dims.into(), &|all| {
        all.device().fill(all.storage(), &[0])?;
        let place = part(all)?;
        map_into("x0", &[&plain.reshape(place.shape().clone())?], &[], &place)
    })?;
    let (ranks, shape) = (Arc::clone(ranks), own.shape().clone());
    let backward = move |dys: &[Option<Tensor>]| {
        let Some(dy) = dys.first().and_then(Option::as_ref) else { return Ok(vec![None]) };
        let dy = dy.contiguous()?;
        let sum = ranks.sum(dy.shape(), &|all| map_into("x0", &[&dy], &[], all))?;
        Ok(vec![Some(part(&sum)?.reshape(shape.clone())?)])
    };
    let made = function("gathered_statistics", &[own], vec![all], backward)?;
    made.into_iter().next().ok_or_else(|| netcl_tensor::Error::internal("statistics without a result"))
}
