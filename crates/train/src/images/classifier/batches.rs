//! Batches of images: normalized, moved and mirrored while training, in the device's memory order.

use super::super::data::Images;
use super::ClassifierConfig;
use crate::data::random::below;
use half::{bf16, f16};
use netcl_tensor::ops::map::map;
use netcl_tensor::ops::rearrange::flip;
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// Kinds of random draws.
const ORDER: u64 = 0;
const DOWN: u64 = 1;
const ACROSS: u64 = 2;
const MIRROR: u64 = 3;
const MIX: u64 = 4;

/// Minimum number of values per thread.
const PER_THREAD: usize = 1 << 18;

/// The normalization of images: subtract the channel's mean and divide by its deviation.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// Factor and summand for a channel's bytes.
    channels: Vec<[f32; 2]>,
}

/// Shift of an image down and to the right, and whether it is mirrored. Pixels from outside the image are black.
pub(super) type Placed = (isize, isize, bool);

impl Scaling {
    /// Creates it from the mean and deviation of each channel, for values from 0 to 1.
    pub fn new(statistics: &[[f32; 2]]) -> Self {
        let of = |[mean, deviation]: &[f32; 2]| [1.0 / 255.0 / deviation, -mean / deviation];
        Self { channels: statistics.iter().map(of).collect() }
    }

    /// Returns the bytes of `dtype` for each byte of each channel.
    fn table<const N: usize>(&self, store: impl Fn(f32) -> [u8; N]) -> Vec<[[u8; N]; 256]> {
        let of = |[scale, shift]: &[f32; 2]| std::array::from_fn(|byte| store(byte as f32 * scale + shift));
        self.channels.iter().map(of).collect()
    }

    /// Encodes images as bytes of a float type `(N, H, W, C)`, with image `i` placed as `place(i)` says, on up to `threads` threads.
    ///
    /// # Errors
    /// `DType` for a type that is not a float.
    pub(super) fn encoded(
        &self,
        dtype: DType,
        size: [usize; 3],
        images: &[&[u8]],
        place: impl Fn(usize) -> Placed + Sync,
        threads: usize,
    ) -> Result<Vec<u8>> {
        Ok(match dtype {
            DType::F32 => fill(&self.table(f32::to_le_bytes), size, images, place, threads),
            DType::F16 => fill(&self.table(|v| f16::from_f32(v).to_le_bytes()), size, images, place, threads),
            DType::Bf16 => {
                fill(&self.table(|v| bf16::from_f32(v).to_le_bytes()), size, images, place, threads)
            }
            other => return Err(Error::dtype(format!("images as {other}, expected a float type"))),
        })
    }

    /// Uploads images as `(N, C, H, W)`, with channels adjacent in memory. `place(i)` returns the shift of image `i` down and to the right, and
    /// whether it is mirrored; pixels from outside are black.
    ///
    /// # Errors
    /// `DType` for a type that is not a float; errors of the device.
    pub fn upload(
        &self,
        device: &Device,
        dtype: DType,
        size: [usize; 3],
        images: &[&[u8]],
        place: impl Fn(usize) -> (isize, isize, bool) + Sync,
    ) -> Result<Tensor> {
        let [channels, height, width] = size;
        let bytes = self.encoded(dtype, size, images, place, 1)?;
        let dims = [images.len(), height, width, channels];
        Tensor::from_bytes(device, dims, &bytes, dtype)?.permute(&[0, 3, 1, 2])
    }
}

fn fill<const N: usize>(
    table: &[[[u8; N]; 256]],
    [channels, height, width]: [usize; 3],
    images: &[&[u8]],
    place: impl Fn(usize) -> Placed + Sync,
    threads: usize,
) -> Vec<u8> {
    let each = channels * height * width;
    let mut out = vec![[0; N]; images.len() * each];
    let one = |i: usize, to: &mut [[u8; N]]| {
        let (down, right, mirrored) = place(i);
        let inside = |v: isize, limit: usize| usize::try_from(v).ok().filter(|v| *v < limit);
        for (y, line) in to.chunks_mut((width * channels).max(1)).enumerate() {
            let from_y = inside(y.cast_signed() - down, height);
            for (x, pixel) in line.chunks_mut(channels.max(1)).enumerate() {
                let moved = x.cast_signed() - right;
                let from_x = if mirrored { width.cast_signed() - 1 - moved } else { moved };
                let at = from_y.zip(inside(from_x, width)).map(|(y, x)| y * width + x);
                for (c, (value, table)) in pixel.iter_mut().zip(table).enumerate() {
                    let byte = at.map_or(0, |at| images[i][c * height * width + at]);
                    *value = table[usize::from(byte)];
                }
            }
        }
    };
    let threads = threads.min(out.len() / PER_THREAD).max(1);
    let share = images.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, to) in out.chunks_mut((share * each).max(1)).enumerate() {
            let mut work = move || {
                for (i, to) in to.chunks_mut(each.max(1)).enumerate() {
                    one(part * share + i, to);
                }
            };
            if threads == 1 {
                work();
            } else {
                scope.spawn(work);
            }
        }
    });
    out.into_flattened()
}

/// Returns the order of an epoch: a permutation determined by the seed and the epoch (Fisher and Yates).
pub(super) fn order(seed: u64, epoch: u64, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, below(seed, [ORDER, epoch, i as u64], i as u64 + 1) as usize);
    }
    order
}

/// Returns the placement of image `i` in an epoch.
pub(super) fn place(config: &ClassifierConfig, epoch: u64, i: usize) -> Placed {
    let draw = |kind, limit| below(config.seed, [kind, epoch, i as u64], limit);
    let moved = |kind| draw(kind, 2 * config.shift as u64 + 1) as isize - config.shift.cast_signed();
    (moved(DOWN), moved(ACROSS), config.mirror && draw(MIRROR, 2) == 1)
}

/// Returns an image's own share if the images of step `step` are mixed in pairs (Zhang et al. 2017): a sample of Beta(a, a) with a = `mixup`, drawn
/// from the seed. `None` without mixing.
pub(super) fn mixed(config: &ClassifierConfig, step: u64) -> Option<f32> {
    const FINE: u64 = 1 << 32;
    let draw = |i: u64| {
        let uniform = (below(config.seed, [MIX, step, i], FINE) as f64 + 0.5) / FINE as f64;
        uniform.powf(1.0 / config.mixup)
    };
    // Pairs of powers whose sum is below 1 give a sample (Johnk 1964); for a up to 1, at least every second pair is accepted.
    let pairs = (0..64).map(|i| (draw(2 * i), draw(2 * i + 1)));
    let share =
        |(a, b): (f64, f64)| if a + b > 0.0 && a + b <= 1.0 { Some((a / (a + b)) as f32) } else { None };
    (config.mixup > 0.0).then(|| pairs.into_iter().find_map(share).unwrap_or(1.0))
}

/// Mixes every image of a batch `(N, C, H, W)` with the image at the same distance from the end, with weights `share` and `1 - share`; `share` is an
/// f32 scalar on the device. No gradient.
pub(super) fn mix(x: &Tensor, share: &Tensor) -> Result<Tensor> {
    let [n, c, h, w] = x.dims4()?;
    // Channels are adjacent in memory and stay so.
    let rows = x.permute(&[0, 2, 3, 1])?.reshape([n, x.count() / n.max(1)])?;
    let mixed = map(
        "x0 * x2 + x1 * (1.0f - x2)",
        &[&rows, &flip(&rows, &[0])?, share],
        &[],
        rows.shape(),
        x.dtype(),
    )?;
    mixed.reshape([n, h, w, c])?.permute(&[0, 3, 1, 2])
}

/// Uploads the images `picked` of a set without changes, and their labels.
pub(super) fn plain(
    scaling: &Scaling,
    (device, dtype): (&Device, DType),
    images: &Images,
    picked: &[usize],
) -> Result<(Tensor, Tensor)> {
    let bytes: Vec<&[u8]> = picked.iter().map(|i| images.image(*i)).collect();
    let labels: Vec<u32> = picked.iter().map(|i| images.labels[*i]).collect();
    let x = scaling.upload(device, dtype, images.size, &bytes, |_| (0, 0, false))?;
    Ok((x, Tensor::from_u32(device, [labels.len()], &labels)?))
}

/// The data of a training step, in host memory.
#[derive(Debug, PartialEq)]
pub(super) struct ImageBatch {
    /// Number of its epoch, and its number within the epoch.
    pub at: (u64, u64),
    /// `(N, H, W, C)` in the storage type.
    pub images: Vec<u8>,
    pub labels: Vec<u32>,
    /// Label of each image's partner if images are mixed, and an image's own share.
    pub mixed: Option<(Vec<u32>, f32)>,
}

/// All batches of a training run, epoch after epoch.
#[derive(Clone)]
pub(super) struct Batches<'a> {
    pub config: &'a ClassifierConfig,
    pub scaling: &'a Scaling,
    pub images: &'a Images,
    /// Number of threads that compute a batch together.
    pub threads: usize,
    /// Places of a batch to compute; `None` for all.
    pub rows: Option<Vec<usize>>,
}

impl<'a> Batches<'a> {
    /// Returns the number of images per step.
    pub fn each(&self) -> usize {
        self.config.batch.min(self.images.len()).max(1)
    }
    /// Returns the number of whole batches in an epoch.
    pub fn of_epoch(&self) -> u64 {
        self.config.steps_of_epoch(self.images.len())
    }
    /// Returns the batches from step `done` on, computed on demand.
    pub fn from(self, done: u64) -> impl Iterator<Item = Result<ImageBatch>> + use<'a> {
        let (first, within) = (done / self.of_epoch().max(1), done % self.of_epoch().max(1));
        let epochs = first..self.config.epochs;
        let batches = move |epoch| {
            let (each, count) = (self.each(), self.of_epoch());
            let Self { config, scaling, images, threads, rows } = self.clone();
            let order = order(config.seed, epoch, images.len());
            let start = if epoch == first { within } else { 0 };
            (start..count).map(move |i| {
                let from = i as usize * each;
                let whole = &order[from..from + each];
                let batch = Batches { config, scaling, images, threads, rows: rows.clone() };
                match &rows {
                    None => batch.one((epoch, i), epoch * count + i, whole),
                    Some(rows) => {
                        let picked: Vec<usize> = rows.iter().map(|row| whole[*row]).collect();
                        batch.one((epoch, i), epoch * count + i, &picked)
                    }
                }
            })
        };
        epochs.flat_map(batches)
    }

    fn one(&self, at: (u64, u64), step: u64, picked: &[usize]) -> Result<ImageBatch> {
        let Self { config, scaling, images, threads, .. } = self;
        let bytes: Vec<&[u8]> = picked.iter().map(|i| images.image(*i)).collect();
        let labels: Vec<u32> = picked.iter().map(|i| images.labels[*i]).collect();
        let place = |i: usize| place(config, at.0, picked[i]);
        let images = scaling.encoded(config.dtype, images.size, &bytes, place, *threads)?;
        let mixed = mixed(config, step).map(|share| (labels.iter().rev().copied().collect(), share));
        Ok(ImageBatch { at, images, labels, mixed })
    }
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
            let x = scaling.upload(&device, DType::F32, [1, 2, 3], &[&image], |_| place).unwrap();
            x.to_vec().unwrap().iter().map(|v| v.round() as u8).collect::<Vec<_>>()
        };
        assert_eq!(at((0, 0, false)), image);
        assert_eq!(at((1, 0, false)), [0, 0, 0, 1, 2, 3]);
        assert_eq!(at((0, -1, false)), [2, 3, 0, 5, 6, 0]);
        assert_eq!(at((0, 0, true)), [3, 2, 1, 6, 5, 4]);
        let two = Scaling::new(&[[0.5, 0.25], [0.0, 1.0]]);
        let x = two.upload(&device, DType::F32, [2, 1, 2], &[&[0, 255, 51, 102]], |_| (0, 0, false)).unwrap();
        let expected = [-2.0, 2.0, 0.2, 0.4];
        assert!(x.to_vec().unwrap().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn pairs_of_images_are_mixed() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let x = Tensor::from_f32(&device, [3, 1, 1, 2], &[0.0, 4.0, 1.0, 1.0, 8.0, 0.0], DType::F32).unwrap();
        let share = Tensor::from_f32(&device, [], &[0.75], DType::F32).unwrap();
        let x = mix(&x, &share).unwrap();
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

    /// A batch is the same for any number of threads, and whichever thread it comes from.
    #[test]
    fn batches_made_ahead_on_threads_are_those_made_at_once() {
        let size = [3, 64, 64];
        let count = 96;
        let pixels = (0..count * 3 * 64 * 64).map(|i| (i * 31 % 251) as u8).collect();
        let images = Images { size, pixels, labels: (0..count as u32).map(|i| i % 10).collect() };
        let scaling = Scaling::new(&images.statistics());
        let mut config = ClassifierConfig::preset("cifar10-mobilenet").unwrap();
        (config.epochs, config.batch) = (2, 40);
        for dtype in [DType::F32, DType::Bf16] {
            config.dtype = dtype;
            let of = |threads| Batches {
                config: &config,
                scaling: &scaling,
                images: &images,
                threads,
                rows: None,
            };
            let alone: Vec<ImageBatch> = of(1).from(0).map(Result::unwrap).collect();
            assert_eq!(alone.iter().map(|b| b.at).collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
            let shared = crate::data::ahead(of(3).from(0), 2, |all| all.collect::<Result<Vec<_>>>()).unwrap();
            assert!(alone == shared, "{dtype}");
            for done in 0..=4 {
                let rest: Vec<ImageBatch> = of(1).from(done).map(Result::unwrap).collect();
                assert!(rest == alone[done as usize..], "from step {done}");
            }
        }
    }
}
