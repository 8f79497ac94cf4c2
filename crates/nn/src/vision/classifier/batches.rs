//! Batches of images on the device: normalised, moved and mirrored while training.

use super::super::data::Images;
use super::ClassifierConfig;
use crate::data::random::below;
use netcl_tensor::ops::rearrange::flip;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Kinds of draws.
const ORDER: u64 = 0;
const DOWN: u64 = 1;
const ACROSS: u64 = 2;
const MIRROR: u64 = 3;
const MIX: u64 = 4;

/// How images become numbers: less the mean of their channel, by its deviation.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// Factor and summand of a channel's bytes.
    channels: Vec<[f32; 2]>,
}

impl Scaling {
    /// By mean and deviation of each channel, of values from 0 to 1.
    pub fn new(statistics: &[[f32; 2]]) -> Self {
        let of = |[mean, deviation]: &[f32; 2]| [1.0 / 255.0 / deviation, -mean / deviation];
        Self { channels: statistics.iter().map(of).collect() }
    }

    /// Images on the device as `(N, C, H, W)`, of which channels are neighbours in memory. `place` says of image `i` of the batch how far it is
    /// moved down and to the right, and whether it is mirrored; what comes in from outside is black.
    ///
    /// # Errors
    /// Of the device.
    pub fn upload(
        &self,
        device: &Device,
        [channels, height, width]: [usize; 3],
        images: &[&[u8]],
        place: impl Fn(usize) -> (isize, isize, bool),
    ) -> Result<Tensor> {
        let mut values = Vec::with_capacity(images.len() * channels * height * width);
        for (i, image) in images.iter().enumerate() {
            let (down, right, mirrored) = place(i);
            for y in 0..height.cast_signed() {
                for x in 0..width.cast_signed() {
                    let (from_y, moved) = (y - down, x - right);
                    let from_x = if mirrored { width.cast_signed() - 1 - moved } else { moved };
                    let inside = (0..height.cast_signed()).contains(&from_y)
                        && (0..width.cast_signed()).contains(&from_x);
                    let at = from_y.cast_unsigned().wrapping_mul(width).wrapping_add(from_x.cast_unsigned());
                    for (c, [scale, shift]) in self.channels.iter().enumerate() {
                        let byte = if inside { image[c * height * width + at] } else { 0 };
                        values.push(f32::from(byte) * scale + shift);
                    }
                }
            }
        }
        let dims = [images.len(), height, width, channels];
        Tensor::from_f32(device, dims, &values, DType::F32)?.permute(&[0, 3, 1, 2])
    }
}

/// The order of an epoch: a permutation by the seed and its number (Fisher and Yates).
pub(super) fn order(seed: u64, epoch: u64, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, below(seed, [ORDER, epoch, i as u64], i as u64 + 1) as usize);
    }
    order
}

/// What is done to image `i` in an epoch.
pub(super) fn place(config: &ClassifierConfig, epoch: u64, i: usize) -> (isize, isize, bool) {
    let draw = |kind, limit| below(config.seed, [kind, epoch, i as u64], limit);
    let moved = |kind| draw(kind, 2 * config.shift as u64 + 1) as isize - config.shift.cast_signed();
    (moved(DOWN), moved(ACROSS), config.mirror && draw(MIRROR, 2) == 1)
}

/// How much of an image is left where those of step `step` are mixed in pairs (Zhang et al. 2017): a number of the distribution Beta(a, a) with
/// a = `mixup`, drawn by the seed. `None` where nothing is mixed.
pub(super) fn mixed(config: &ClassifierConfig, step: u64) -> Option<f32> {
    const FINE: u64 = 1 << 32;
    let draw = |i: u64| {
        let uniform = (below(config.seed, [MIX, step, i], FINE) as f64 + 0.5) / FINE as f64;
        uniform.powf(1.0 / config.mixup)
    };
    // Of pairs of powers those whose sum is below 1 give it (Johnk 1964), for a up to 1 at least every second.
    let pairs = (0..64).map(|i| (draw(2 * i), draw(2 * i + 1)));
    let share =
        |(a, b): (f64, f64)| if a + b > 0.0 && a + b <= 1.0 { Some((a / (a + b)) as f32) } else { None };
    (config.mixup > 0.0).then(|| pairs.into_iter().find_map(share).unwrap_or(1.0))
}

/// Every image of a batch `(N, C, H, W)` mixed with that at the same place from the end, of which `1 - share` is taken.
pub(super) fn mix(x: &Tensor, share: f32) -> Result<Tensor> {
    let dims = x.dims4()?;
    let count = dims[0];
    // Channels are neighbours, and stay so.
    let rows = x.permute(&[0, 2, 3, 1])?.reshape([count, x.count() / count.max(1)])?;
    let mixed = rows.mul_scalar(share)?.add(&flip(&rows, &[0])?.mul_scalar(1.0 - share)?)?;
    let [n, c, h, w] = dims;
    mixed.reshape([n, h, w, c])?.permute(&[0, 3, 1, 2])
}

/// Images `picked` of a set on the device, as they are, and their labels.
pub(super) fn plain(
    scaling: &Scaling,
    device: &Device,
    images: &Images,
    picked: &[usize],
) -> Result<(Tensor, Tensor)> {
    placed(scaling, device, images, picked, |_| (0, 0, false))
}

/// The same with `place` of each image of the set.
pub(super) fn placed(
    scaling: &Scaling,
    device: &Device,
    images: &Images,
    picked: &[usize],
    place: impl Fn(usize) -> (isize, isize, bool),
) -> Result<(Tensor, Tensor)> {
    let bytes: Vec<&[u8]> = picked.iter().map(|i| images.image(*i)).collect();
    let labels: Vec<u32> = picked.iter().map(|i| images.labels[*i]).collect();
    let x = scaling.upload(device, images.size, &bytes, |i| place(picked[i]))?;
    Ok((x, Tensor::from_u32(device, [labels.len()], &labels)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_moved_and_mirrored() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let scaling = Scaling::new(&[[0.0, 1.0 / 255.0]]);
        let image = [1u8, 2, 3, 4, 5, 6]; // 2 x 3
        let at = |place| {
            let x = scaling.upload(&device, [1, 2, 3], &[&image], |_| place).unwrap();
            x.to_vec().unwrap().iter().map(|v| v.round() as u8).collect::<Vec<_>>()
        };
        assert_eq!(at((0, 0, false)), image);
        assert_eq!(at((1, 0, false)), [0, 0, 0, 1, 2, 3]);
        assert_eq!(at((0, -1, false)), [2, 3, 0, 5, 6, 0]);
        assert_eq!(at((0, 0, true)), [3, 2, 1, 6, 5, 4]);
        let two = Scaling::new(&[[0.5, 0.25], [0.0, 1.0]]);
        let x = two.upload(&device, [2, 1, 2], &[&[0, 255, 51, 102]], |_| (0, 0, false)).unwrap();
        let expected = [-2.0, 2.0, 0.2, 0.4];
        assert!(x.to_vec().unwrap().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn pairs_of_images_are_mixed() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let x = Tensor::from_f32(&device, [3, 1, 1, 2], &[0.0, 4.0, 1.0, 1.0, 8.0, 0.0], DType::F32).unwrap();
        let x = mix(&x, 0.75).unwrap();
        assert_eq!(x.to_vec().unwrap(), [2.0, 3.0, 1.0, 1.0, 6.0, 1.0]);
        let mut config = ClassifierConfig::preset("cifar10-mobilenet").unwrap();
        let shares: Vec<f32> = (0..2000).filter_map(|step| mixed(&config, step)).collect();
        assert!(shares.len() == 2000 && shares.iter().all(|s| (0.0..=1.0).contains(s)));
        assert_eq!(mixed(&config, 7), Some(shares[7]));
        // Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)); a is 0.2.
        let mean = shares.iter().sum::<f32>() / 2000.0;
        let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f32>() / 2000.0;
        assert!((mean - 0.5).abs() < 0.04 && (variance - 1.0 / 5.6).abs() < 0.015, "{mean} {variance}");
        config.mixup = 0.0;
        assert_eq!(mixed(&config, 7), None);
    }

    #[test]
    fn an_order_is_a_permutation_of_its_epoch() {
        let mut first = order(1, 0, 100);
        assert!(first != order(1, 1, 100) && first != order(2, 0, 100) && first == order(1, 0, 100));
        first.sort_unstable();
        assert!(first.into_iter().eq(0..100));
    }
}
