//! The test of a classifier during training.

use super::batches::plain;
use super::distributed::{share_statistics, total};
use super::task::ImageTraining;
use crate::train::training::Ranks;
use netcl_device::{Error, Result};
use netcl_tensor::no_grad;
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};

impl ImageTraining<'_> {
    /// Returns the mean loss and the confusion matrix of the test images. Ranks take batches in turn.
    pub(super) fn test(&self, ranks: &Ranks) -> Result<(f64, Vec<Vec<u64>>)> {
        let Some(parallel) = &ranks.parallel else { return self.test_part((0, 1)) };
        let group = parallel.group();
        share_statistics(group, &self.classifier)?;
        let (loss, confusion) = self.test_part((group.rank(), group.size()))?;
        total(group, loss, &confusion)
    }

    /// Returns the contribution of a rank's batches.
    pub(super) fn test_part(&self, (rank, ranks): (usize, usize)) -> Result<(f64, Vec<Vec<u64>>)> {
        let (images, classes) = (&self.data.test, self.data.classes.len());
        let at = (&self.classifier.device, self.config.dtype);
        let mut confusion = vec![vec![0u64; classes]; classes];
        let mut sum = 0.0;
        let all: Vec<usize> = (0..images.len()).collect();
        for picked in all.chunks(self.config.batch.max(128)).skip(rank).step_by(ranks.max(1)) {
            let (x, labels) = plain(&self.classifier.scaling, at, images, picked)?;
            let (loss, found) = no_grad(|| {
                let logits = self.classifier.network.forward(&x, false)?;
                let loss = cross_entropy(&logits, &labels, CrossEntropy::default())?.item()?;
                Ok::<_, Error>((loss, logits.argmax(-1)?.to_u32()?))
            })?;
            sum += f64::from(loss) * picked.len() as f64;
            for (image, class) in picked.iter().zip(found) {
                let row = &mut confusion[images.labels[*image] as usize];
                if let Some(count) = row.get_mut(class as usize) {
                    *count += 1;
                }
            }
        }
        Ok((sum / images.len().max(1) as f64, confusion))
    }
}
