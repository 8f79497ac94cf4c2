//! Training of a classifier on several devices. Every rank has the whole network and computes its images of each batch. Gradients are summed during
//! the backward pass, and all ranks make the same update.
//!
//! On each rank, batch normalization uses only that rank's images, like PyTorch's `DistributedDataParallel`, so the result depends on the number
//! of ranks; running statistics are those of rank 0. With [`sync_batch_norm`](ClassifierConfig::sync_batch_norm) it uses the images of all
//! ranks, like `SyncBatchNorm`. In that case, and without batch normalization, a run equals that of one device except for the order of sums.
//!
//! A batch is divided so that mixed images stay on one rank.

use super::outcome::Next;
use super::{Classifier, ClassifierConfig};
use crate::train::training::Parallel;
use crate::train::{Balance, Shares, SpeedUnit, Statistics};
use netcl_device::{Error, Result};
use netcl_dist::Group;
use netcl_tensor::{Device, counted};
use std::ops::Range;
use std::sync::Arc;

/// A batch that is divided between ranks.
#[derive(Clone, Copy)]
pub(super) struct DividedBatch {
    /// Number of images.
    images: usize,
    /// Whether images are mixed in pairs (`i` with `n - 1 - i`), which must stay together.
    paired: bool,
}

impl DividedBatch {
    /// Returns the batch of a run on this number of images.
    pub fn of(config: &ClassifierConfig, images: usize) -> Self {
        Self { images: config.batch.min(images).max(1), paired: config.mixup > 0.0 }
    }

    /// Returns the number of images.
    pub fn images(self) -> usize {
        self.images
    }

    /// Checks that each of `ranks` gets a part.
    ///
    /// # Errors
    /// `Format` for batches of fewer images, or pairs of them, than ranks.
    fn check(self, ranks: usize) -> Result<()> {
        let least = if self.paired { 2 * ranks } else { ranks };
        if self.images < least {
            let of = if self.paired {
                "two images, because the preset mixes images in pairs"
            } else {
                "one image"
            };
            return Err(Error::format(format!(
                "a batch of {} for {ranks} ranks is too small: each rank needs {of}; raise --batch to {least} or more",
                counted(self.images, "image")
            )));
        }
        Ok(())
    }

    /// Returns the number of units to divide: images, or pairs of them.
    fn rows(self) -> usize {
        if self.paired { self.images.div_ceil(2) } else { self.images }
    }

    /// Returns the places of the images of these rows. Images that are mixed in pairs stay together.
    pub fn places(self, rows: Range<usize>) -> Vec<usize> {
        if !self.paired {
            return rows.collect();
        }
        let back = rows.clone().rev().map(|i| self.images - 1 - i).filter(|i| !rows.contains(i));
        rows.clone().chain(back).collect()
    }

    /// Returns the share of these rows in the mean over the batch.
    pub fn share(self, rows: Range<usize>) -> f64 {
        self.places(rows).len() as f64 / self.images as f64
    }
}

/// Prepares this rank for a run with batches of `config` from `images` images. Without a `division`, devices of one kind get equal parts, and others
/// get parts by speed. All ranks call it.
///
/// # Errors
/// `Format` for batches of fewer images than ranks, and for the cases of [`Shares::check`]; errors of the group and the device.
pub(super) fn start(
    (group, device): (&Group, &Device),
    (config, images): (&ClassifierConfig, usize),
    division: Option<&Shares>,
) -> Result<Parallel> {
    let whole = DividedBatch::of(config, images);
    group.all_succeed(whole.check(group.size()))?;
    let mut balance = Balance::new(group, whole.rows(), 1);
    balance.meet(device, &[], (if whole.paired { 2 } else { 1 }, SpeedUnit::Images))?;
    group.all_succeed(division.map_or(Ok(()), |division| balance.divide(division)))?;
    let mut parallel = Parallel::with(group, balance);
    let reducer = parallel.reducer(device)?.clone();
    parallel.one_machine = group.is_on_one_machine()?;
    if config.sync_batch_norm {
        let of_ranks = shares(whole, &parallel);
        let statistics = Statistics::new(&reducer, device, group.rank(), &of_ranks)?;
        parallel.statistics = Some(Arc::new(statistics));
    }
    Ok(parallel)
}

/// Returns every rank's share of the mean over a batch.
pub(super) fn shares(whole: DividedBatch, parallel: &Parallel) -> Vec<f64> {
    (0..parallel.size()).map(|rank| whole.share(parallel.balance.rows_of(rank))).collect()
}

/// Returns the strongest request of any rank.
pub(super) fn ask(group: &Group, own: Next) -> Result<Next> {
    let all = group.all_gather(&[code(own)])?;
    Ok(next(all.into_iter().max().unwrap_or(0)))
}

/// Gives all ranks the running statistics of rank 0.
pub(super) fn share_statistics(group: &Group, classifier: &Classifier) -> Result<()> {
    let all = classifier.network.buffers();
    all.iter().try_for_each(|(_, tensor)| group.broadcast_tensor(tensor, 0))
}

/// Returns the sums over all ranks of losses and of confusion matrices.
pub(super) fn total(group: &Group, loss: f64, confusion: &[Vec<u64>]) -> Result<(f64, Vec<Vec<u64>>)> {
    let losses = group.all_gather(&[loss])?;
    let flat: Vec<u64> = confusion.concat();
    let (all, rows) = (group.all_gather(&flat)?, confusion.len().max(1));
    let of = |i: usize| all.iter().skip(i).step_by(flat.len().max(1)).sum::<u64>();
    let sums: Vec<u64> = (0..flat.len()).map(of).collect();
    let confusion = sums.chunks(flat.len().div_ceil(rows).max(1)).map(<[u64]>::to_vec).collect();
    Ok((losses.iter().sum(), confusion))
}

fn code(next: Next) -> u32 {
    match next {
        Next::GoOn => 0,
        Next::Save => 1,
        Next::Stop => 2,
    }
}

fn next(code: u32) -> Next {
    match code {
        0 => Next::GoOn,
        1 => Next::Save,
        _ => Next::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_dist::divide;

    /// Every place belongs to one rank, both images of a pair belong to the same rank and are opposite each other, and shares are proportional to
    /// images.
    #[test]
    fn places_of_a_batch_are_divided() {
        let weights: [&[f64]; 6] = [
            &[1.0],
            &[1.0; 3],
            &[3.0, 1.0, 1.0],
            &[1.0, 2.0, 1.0, 1.0],
            &[5.0, 1.0, 1.0, 0.1, 1.0],
            &[7.0, 2.0],
        ];
        for (images, weights) in [1, 6, 7, 10, 33, 128].into_iter().zip(weights) {
            for paired in [false, true] {
                let whole = DividedBatch { images, paired };
                let mut begin = 0;
                let mut rows = divide(whole.rows(), weights).into_iter().map(|n| {
                    begin += n;
                    begin - n..begin
                });
                let all: Vec<Range<usize>> = rows.by_ref().collect();
                let of: Vec<Vec<usize>> = all.iter().map(|rows| whole.places(rows.clone())).collect();
                let mut places = of.concat();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..images), "{images} {weights:?} {of:?}");
                for own in of.iter().filter(|_| paired) {
                    let opposite = own.iter().zip(own.iter().rev()).all(|(a, b)| a + b == images - 1);
                    assert!(opposite, "{own:?}");
                }
                let shares: f64 = all.into_iter().map(|rows| whole.share(rows)).sum();
                assert!((shares - 1.0).abs() < 1e-12);
            }
        }
    }
}
