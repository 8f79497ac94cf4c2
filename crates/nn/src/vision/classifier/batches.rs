//! Batches of images on the device: normalised, moved and mirrored while training.

use super::super::data::Images;
use super::ClassifierConfig;
use crate::data::random::below;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Kinds of draws.
const ORDER: u64 = 0;
const DOWN: u64 = 1;
const ACROSS: u64 = 2;
const MIRROR: u64 = 3;

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
    fn an_order_is_a_permutation_of_its_epoch() {
        let mut first = order(1, 0, 100);
        assert!(first != order(1, 1, 100) && first != order(2, 0, 100) && first == order(1, 0, 100));
        first.sort_unstable();
        assert!(first.into_iter().eq(0..100));
    }
}
