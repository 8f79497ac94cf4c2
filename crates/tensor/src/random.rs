//! Random numbers: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011). A number is a function of seed and position, so every device draws the same stream and a dropout mask is drawn
//! again in the backward pass instead of being stored.
//!
//! Element `i` of a tensor takes word `(i % 64) / 16` of draw `(i / 64) * 16 + i % 16`, as `ops/philox.cl` explains.

use crate::ops::prelude::*;
use netcl_kernel::Launch;

static RANDOM: Kernel = Kernel::new("random", include_str!("ops/random.cl"))
    .include(&[include_str!("ops/philox.cl")])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// The four words of one counter under a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = wide(counter[0], 0xD251_1F53);
        let (high1, low1) = wide(counter[2], 0xCD9E_8D57);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Draw `n` of a stream.
pub fn draw(seed: u64, offset: u64, n: u64) -> [u32; 4] {
    let at = offset.wrapping_add(n);
    philox([at as u32, (at >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// The word that element `i` of a tensor takes.
pub fn element(seed: u64, offset: u64, i: u64) -> u32 {
    draw(seed, offset, i / 64 * 16 + i % 16)[(i % 64 / 16) as usize]
}

/// Uniform in `[0, 1)`, a multiple of 2⁻²⁴.
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / 16_777_216.0
}

/// A stream and how far it was used. Saving the two numbers saves the generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generator {
    /// The key.
    pub seed: u64,
    /// Draws used so far.
    pub offset: u64,
}

impl Generator {
    /// The beginning of the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, offset: 0 }
    }
    /// Takes the next `draws` draws and returns where they begin.
    pub fn reserve(&mut self, draws: u64) -> u64 {
        let at = self.offset;
        self.offset = at.wrapping_add(draws);
        at
    }
    /// Takes what a tensor of `elements` uses.
    pub fn reserve_elements(&mut self, elements: usize) -> u64 {
        self.reserve(elements.div_ceil(64) as u64 * 16)
    }
    /// What to drop with `probability` among things that use `draws` draws.
    ///
    /// # Errors
    /// `Format` when the probability is not in `0..=1`.
    pub fn mask(&mut self, probability: f32, draws: u64) -> Result<DropMask> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::format(format!(
                "dropout: probability {probability}, expected one from 0 to 1"
            )));
        }
        Ok(DropMask { probability, seed: self.seed, offset: self.reserve(draws), counter: None })
    }
    /// `n` f32 in `[low, high)`, the same bits as [`Tensor::uniform`].
    pub fn uniform(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        let (seed, offset) = (self.seed, self.reserve_elements(n));
        (0..n as u64).map(|i| unit(element(seed, offset, i)).mul_add(high - low, low)).collect()
    }
    /// `n` normal f32; [`Tensor::normal`] agrees within rounding.
    pub fn normal(&mut self, n: usize, mean: f32, spread: f32) -> Vec<f32> {
        let (seed, offset) = (self.seed, self.reserve_elements(n));
        let one = |i: u64| {
            let (words, slot) = (draw(seed, offset, i / 64 * 16 + i % 16), (i % 64 / 16) as usize);
            let (u, turn) = (unit(words[slot & 2]), unit(words[slot | 1]));
            let r = (-2.0 * (1.0 - f64::from(u)).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * f64::from(turn)).sin_cos();
            (f64::from(mean) + f64::from(spread) * r * if slot & 1 == 0 { cos } else { sin }) as f32
        };
        (0..n as u64).map(one).collect()
    }
}

/// Which elements to drop: a probability and the draws that decide, so that the mask can be made again.
#[derive(Clone, Debug)]
pub struct DropMask {
    /// Share of the elements that become 0.
    pub probability: f32,
    /// Key of the stream.
    pub seed: u64,
    /// First draw.
    pub offset: u64,
    /// Draws that come before it, in device memory: see [`counter`]. A captured step draws other masks as this changes.
    pub counter: Option<Tensor>,
}

/// A number of draws in device memory, for [`DropMask::counter`].
///
/// # Errors
/// `Memory`.
pub fn counter(device: &Device, draws: u64) -> Result<Tensor> {
    let counter = Tensor::empty(device, [2], DType::U32)?;
    set_counter(&counter, draws)?;
    Ok(counter)
}

/// Overwrites a [`counter`], in order with kernels.
///
/// # Errors
/// Whatever the upload answers.
pub fn set_counter(counter: &Tensor, draws: u64) -> Result<()> {
    counter.set_bytes(&draws.to_ne_bytes())
}

impl DropMask {
    /// The defines of a launch that draws it.
    pub(crate) fn define<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        if self.counter.is_some() { launch.define("COUNTED", true) } else { launch }
    }
    /// Its arguments.
    pub(crate) fn bind<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = match &self.counter {
            Some(counter) => launch.read(counter),
            None => launch,
        };
        launch.scalar(self.seed).scalar(self.offset).scalar(self.threshold()).scalar(self.keep())
    }
    /// Words below this drop their element.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 4_294_967_296.0) as u32
    }
    /// What the others are multiplied with, so that the mean stays.
    pub fn keep(&self) -> f32 {
        if self.probability < 1.0 { 1.0 / (1.0 - self.probability) } else { 0.0 }
    }
    /// The factor that a word stands for.
    pub fn factor(&self, word: u32) -> f64 {
        if word < self.threshold() { 0.0 } else { f64::from(self.keep()) }
    }
}

impl Tensor {
    /// Uniform in `[low, high)`; the same bits on every device.
    pub fn uniform(
        device: &Device,
        shape: impl Into<Shape>,
        low: f32,
        high: f32,
        dtype: DType,
        from: &mut Generator,
    ) -> Result<Self> {
        fill("random_uniform", device, shape.into(), [low, high - low], dtype, from)
    }
    /// Normal with this mean and standard deviation.
    pub fn normal(
        device: &Device,
        shape: impl Into<Shape>,
        mean: f32,
        spread: f32,
        dtype: DType,
        from: &mut Generator,
    ) -> Result<Self> {
        fill("random_normal", device, shape.into(), [mean, spread], dtype, from)
    }
}

fn fill(
    entry: &'static str,
    device: &Device,
    shape: Shape,
    [a, b]: [f32; 2],
    dtype: DType,
    from: &mut Generator,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtype(format!("{entry}: a tensor of {dtype}, expected f32, f16 or bf16")));
    }
    let y = Tensor::empty(device, shape, dtype)?;
    if y.count() > 0 {
        let offset = from.reserve_elements(y.count());
        let launch =
            RANDOM.launch(entry).define("DTYPE", dtype.code()).groups(runs(device, &RANDOM, y.count()));
        launch.write(&y).scalar(y.count()).scalar(from.seed).scalar(offset).scalar(a).scalar(b).run()?;
    }
    Ok(y)
}

/// Work-groups for a kernel whose items take runs of 64 elements.
pub(crate) fn runs(device: &Device, kernel: &Kernel, count: usize) -> usize {
    let units = device.capabilities().compute_units.max(1) as usize;
    let runs = count.div_ceil(64);
    if device.capabilities().is_cpu() {
        return runs.div_ceil(64).min(units * 4);
    }
    runs.div_ceil(Tuning::value(device, kernel, 0, "WG")).min(units * 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    /// Known answers of Philox4x32-10 published with Random123 (kat_vectors).
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    /// The device draws what the host draws, also where the counter's low word overflows and where a run is cut short.
    #[test]
    fn device_and_host_draw_the_same_bits() {
        let device = test_device().unwrap();
        for (offset, n) in [(0, 1), (0, 64), (7, 1000), (u64::from(u32::MAX) - 9, 333), (u64::MAX - 3, 130)] {
            let start = Generator { seed: 0x1234_5678_9abc_def0, offset };
            let (mut here, mut there) = (start, start);
            let y =
                Tensor::uniform(&device, [n], -0.5, 2.0, DType::F32, &mut there).unwrap().to_vec().unwrap();
            assert_eq!(y, here.uniform(n, -0.5, 2.0), "offset {offset}, {n} elements");
            assert_eq!(here, there);
        }
    }

    #[test]
    fn normals_agree_and_have_the_moments() {
        let device = test_device().unwrap();
        let (mut here, mut there) = (Generator::new(5), Generator::new(5));
        let y =
            Tensor::normal(&device, [100_000], 1.0, 2.0, DType::F32, &mut there).unwrap().to_vec().unwrap();
        let z = here.normal(y.len(), 1.0, 2.0);
        let far = y.iter().zip(&z).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-5, "{far}");
        let mean = z.iter().map(|v| f64::from(*v)).sum::<f64>() / z.len() as f64;
        let variance = z.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / z.len() as f64;
        // Standard errors: 0.006 for the mean, 0.018 for the variance.
        assert!((mean - 1.0).abs() < 0.03 && (variance - 4.0).abs() < 0.1, "{mean} {variance}");
    }
}
