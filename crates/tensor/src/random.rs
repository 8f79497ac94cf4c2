//! Random numbers: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011). A number is a function of seed and position. Every device therefore draws the same stream, and the backward pass draws a
//! dropout mask again instead of loading a stored one.
//!
//! Element `i` of a tensor takes word `(i % 64) / 16` of draw `(i / 64) * 16 + i % 16`, as `ops/philox.cl` explains.

use crate::ops::prelude::*;
use half::{bf16, f16};
use netcl_kernel::Launch;

/// Table and formula of the normal distribution.
const NORMAL: &str = cl_file!("ops/include/normal.cl");

static RANDOM: Kernel = Kernel::new("random", cl_file!("ops/include/random.cl"))
    .include(&[cl_file!("ops/include/philox.cl"), NORMAL])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Computes the four words of a counter under a key.
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

/// Returns draw `n` of a stream.
pub fn draw(seed: u64, offset: u64, n: u64) -> [u32; 4] {
    let at = offset.wrapping_add(n);
    philox([at as u32, (at >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// Returns the word for element `i` of a tensor.
pub fn element(seed: u64, offset: u64, i: u64) -> u32 {
    draw(seed, offset, i / 64 * 16 + i % 16)[(i % 64 / 16) as usize]
}

/// Returns the words for the elements `0..n` of a tensor, each draw computed once.
fn elements(seed: u64, offset: u64, n: usize) -> Vec<u32> {
    let mut words = vec![0; n];
    for (group, chunk) in words.chunks_mut(64).enumerate() {
        for i in 0..chunk.len().min(16) {
            let drawn = draw(seed, offset, 16 * group as u64 + i as u64);
            chunk[i..].iter_mut().step_by(16).zip(drawn).for_each(|(word, value)| *word = value);
        }
    }
    words
}

/// Converts a word to a uniform number in `[0, 1)`, a multiple of 2⁻²⁴.
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / 16_777_216.0
}

/// A position in a stream. The two numbers are the whole state of the generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generator {
    /// Key of the stream.
    pub seed: u64,
    /// Number of draws used so far.
    pub offset: u64,
}

impl Generator {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, offset: 0 }
    }
    /// Reserves the next `draws` draws and returns the first one.
    pub fn reserve(&mut self, draws: u64) -> u64 {
        let at = self.offset;
        self.offset = at.wrapping_add(draws);
        at
    }
    /// Reserves the draws of a tensor with `elements` elements.
    pub fn reserve_elements(&mut self, elements: usize) -> u64 {
        self.reserve(elements.div_ceil(64) as u64 * 16)
    }
    /// Reserves `draws` draws for a mask that drops elements with `probability`.
    ///
    /// # Errors
    /// `Format` when the probability is not in `0..=1`.
    pub fn mask(&mut self, probability: f32, draws: u64) -> Result<DropMask> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::format(format!("dropout: probability is {probability}, expected 0 to 1")));
        }
        Ok(DropMask { probability, seed: self.seed, offset: self.reserve(draws), counter: None })
    }
    /// Draws `n` f32 in `[low, high)`, with the same bits as [`Tensor::uniform`].
    pub fn uniform(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        let seed = self.seed;
        let offset = self.reserve_elements(n);
        let top = largest_below(low, high, DType::F32);
        elements(seed, offset, n)
            .into_iter()
            .map(|word| unit(word).mul_add(high - low, low).min(top))
            .collect()
    }
    /// Draws `n` integers of the range `low..high`, each from 64 random bits. Their probabilities are equal to within
    /// `(high - low) / 2⁶⁴`. Returns nothing if the range is empty.
    pub fn integers(&mut self, n: usize, low: i64, high: i64) -> Vec<i64> {
        let span = u128::try_from(i128::from(high) - i128::from(low)).unwrap_or(0);
        let (seed, offset) = (self.seed, self.reserve_elements(2 * n));
        let count = if span == 0 { 0 } else { n };
        let one =
            |pair: &[u32]| ((u128::from(u64::from(pair[0]) << 32 | u64::from(pair[1])) * span) >> 64) as i128;
        elements(seed, offset, 2 * count)
            .chunks_exact(2)
            .map(|pair| (i128::from(low) + one(pair)) as i64)
            .collect()
    }
    /// Draws a seed for a separate stream: 63 bits.
    pub fn draw_seed(&mut self) -> i64 {
        let at = self.reserve(1);
        let [a, b, ..] = draw(self.seed, at, 0);
        i64::from(a >> 1) << 32 | i64::from(b)
    }
    /// Returns the numbers below `n` in a random order (Fisher and Yates), with one drawn seed for each place but the first.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.draw_seed().unsigned_abs() as usize % (i + 1));
        }
        order
    }
    /// Draws `n` normally distributed f32, with the same bits as [`Tensor::normal`].
    pub fn normal(&mut self, n: usize, mean: f32, spread: f32) -> Vec<f32> {
        let (seed, offset, pieces) = (self.seed, self.reserve_elements(n), pieces());
        elements(seed, offset, n)
            .into_iter()
            .map(|word| normal_of(&pieces, word).mul_add(spread, mean))
            .collect()
    }
}

/// Returns the largest number of a storage type below `high` and not below `low`; infinity if `high` is below `low`.
fn largest_below(low: f32, high: f32, dtype: DType) -> f32 {
    if high < low {
        return f32::INFINITY;
    }
    let down = |bits: u16| match bits {
        0 => 0x8001,
        _ if bits & 0x8000 == 0 => bits - 1,
        _ => bits + 1,
    };
    // The neighbor below the rounded end is below the end itself.
    let (nearest, before) = match dtype {
        DType::F16 => {
            let nearest = f16::from_f32(high);
            (nearest.to_f32(), f16::from_bits(down(nearest.to_bits())).to_f32())
        }
        DType::Bf16 => {
            let nearest = bf16::from_f32(high);
            (nearest.to_f32(), bf16::from_bits(down(nearest.to_bits())).to_f32())
        }
        _ => (high, high.next_down()),
    };
    let top = if nearest < high { nearest } else { before };
    top.max(low)
}

/// Returns the coefficients in `ops/normal.cl`, four per piece.
fn pieces() -> Vec<[f32; 4]> {
    let words = NORMAL.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(|word| word.strip_prefix("0x"));
    let bits: Vec<u32> = words.filter_map(|digits| u32::from_str_radix(digits, 16).ok()).collect();
    bits.as_chunks().0.iter().map(|piece| piece.map(f32::from_bits)).collect()
}

/// Converts a word to its normally distributed number, as in `ops/normal.cl`.
fn normal_of(pieces: &[[f32; 4]], word: u32) -> f32 {
    let k = word | 1;
    let octave = k.leading_zeros();
    let from_top = k << octave;
    let [c0, c1, c2, c3] = pieces[(octave * 8 + (from_top >> 28 & 7)) as usize];
    let t = unit(from_top << 4);
    let z = c3.mul_add(t, c2).mul_add(t, c1).mul_add(t, c0);
    if word & 1 == 1 { z } else { -z }
}

/// Selects the elements to drop, by a probability and reproducible draws.
#[derive(Clone, Debug)]
pub struct DropMask {
    /// Probability with which an element becomes 0.
    pub probability: f32,
    /// Key of the random stream.
    pub seed: u64,
    /// First draw.
    pub offset: u64,
    /// Draws that precede it, in device memory: see [`counter`]. A captured step draws other masks when this value changes.
    pub counter: Option<Tensor>,
}

/// Creates a number of draws in device memory, for [`DropMask::counter`].
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
/// Errors of the upload.
pub fn set_counter(counter: &Tensor, draws: u64) -> Result<()> {
    counter.set_bytes(&draws.to_ne_bytes())
}

impl DropMask {
    /// Adds the defines of a launch that draws it.
    pub(crate) fn define<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        if self.counter.is_some() { launch.define("COUNTED", true) } else { launch }
    }
    /// Binds its arguments.
    pub(crate) fn bind<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = match &self.counter {
            Some(counter) => launch.read(counter),
            None => launch,
        };
        launch.scalar(self.seed).scalar(self.offset).scalar(self.threshold()).scalar(self.keep())
    }
    /// Returns the threshold: elements with smaller words are dropped.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 4_294_967_296.0) as u32
    }
    /// Returns the factor for the remaining elements, so that the mean is unchanged.
    pub fn keep(&self) -> f32 {
        if self.probability < 1.0 { 1.0 / (1.0 - self.probability) } else { 0.0 }
    }
    /// Returns the factor for a word.
    pub fn factor(&self, word: u32) -> f64 {
        if word < self.threshold() { 0.0 } else { f64::from(self.keep()) }
    }
}

impl Tensor {
    /// Draws uniform numbers in `[low, high)`, with the same bits on every device.
    pub fn uniform(
        device: &Device,
        shape: impl Into<Shape>,
        low: f32,
        high: f32,
        dtype: DType,
        from: &mut Generator,
    ) -> Result<Self> {
        let range = [low, high - low, largest_below(low, high, dtype)];
        fill("random_uniform", device, shape.into(), &range, dtype, from)
    }
    /// Draws normal numbers with this mean and standard deviation, with the same bits on every device.
    pub fn normal(
        device: &Device,
        shape: impl Into<Shape>,
        mean: f32,
        spread: f32,
        dtype: DType,
        from: &mut Generator,
    ) -> Result<Self> {
        fill("random_normal", device, shape.into(), &[mean, spread], dtype, from)
    }
    /// Overwrites every element on the device with uniform numbers in `[low, high)`: those of [`uniform`](Self::uniform).
    pub fn set_uniform(&self, low: f32, high: f32, from: &mut Generator) -> Result<()> {
        overwrite("random_uniform", self, &[low, high - low, largest_below(low, high, self.dtype())], from)
    }
    /// Overwrites every element on the device with normal numbers of this mean and standard deviation: those of [`normal`](Self::normal).
    pub fn set_normal(&self, mean: f32, spread: f32, from: &mut Generator) -> Result<()> {
        overwrite("random_normal", self, &[mean, spread], from)
    }
}

fn fill(
    entry: &'static str,
    device: &Device,
    shape: Shape,
    range: &[f32],
    dtype: DType,
    from: &mut Generator,
) -> Result<Tensor> {
    let y = Tensor::empty(device, shape, dtype)?;
    overwrite(entry, &y, range, from)?;
    Ok(y)
}

fn overwrite(entry: &'static str, y: &Tensor, range: &[f32], from: &mut Generator) -> Result<()> {
    if !y.dtype().is_float() {
        return Err(Error::dtype(format!("{entry}: the tensor is {}, expected f32, f16 or bf16", y.dtype())));
    }
    if !y.is_dense() {
        return Err(Error::shape(format!(
            "{entry}: {y:?} is a view with gaps; fill the whole tensor instead"
        )));
    }
    if y.count() == 0 {
        return Ok(());
    }
    let offset = from.reserve_elements(y.count());
    let groups = runs(y.device(), &RANDOM, y.count());
    let launch = RANDOM.launch(entry).define("DTYPE", y.dtype().code()).groups(groups);
    let launch = launch.write(y).scalar(y.count()).scalar(from.seed).scalar(offset);
    range.iter().fold(launch, |launch, number| launch.scalar(*number)).run()
}

/// Returns the number of work-groups for a kernel whose work-items process runs of 64 elements.
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

    /// Compares Philox4x32-10 with the test vectors that were published with Random123 (kat_vectors).
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    /// The device draws the same numbers as the host, also if the counter's low word overflows or a run is incomplete.
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

    /// Words of many elements are those of each element, also if the counter overflows or the last group is incomplete.
    #[test]
    fn elements_are_those_of_each_place() {
        for (offset, n) in [(0, 0), (0, 1), (5, 17), (0, 64), (u64::MAX - 9, 700), (u64::from(u32::MAX), 130)]
        {
            let expected: Vec<u32> = (0..n as u64).map(|i| element(77, offset, i)).collect();
            assert_eq!(elements(77, offset, n), expected, "offset {offset}, {n} elements");
        }
    }

    #[test]
    fn permutations_have_every_number_once() {
        for n in [0, 1, 2, 1000] {
            let (mut one, mut other) = (Generator::new(4), Generator::new(4));
            let order = one.permutation(n);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            assert_eq!(order, other.permutation(n));
            assert_eq!(one.offset, n.saturating_sub(1) as u64);
        }
    }

    /// In 16 bits, and if adding `low` rounds up, numbers close to the end must not be rounded to it.
    #[test]
    fn uniform_numbers_stay_below_the_end_of_their_range() {
        for device in
            [test_device().unwrap(), Device::open("sim", &netcl_device::Settings::default()).unwrap()]
        {
            let n = if device.capabilities().simulated { 20_000 } else { 500_000 };
            for dtype in DType::FLOATS {
                for (low, high) in
                    [(0.0, 1.0), (1.0, 2.0), (-1.0, -0.5), (100.0, 101.0), (0.1, 0.3), (3.0, 3.0)]
                {
                    let y = Tensor::uniform(&device, [n], low, high, dtype, &mut Generator::new(3)).unwrap();
                    let y = y.to_vec().unwrap();
                    let lowest = dtype.round(f64::from(low)) as f32;
                    let fits = |v: &f32| *v >= lowest.min(low) && (*v < high || low == high);
                    assert!(
                        y.iter().all(fits),
                        "{low} to {high} in {dtype}: {:?}",
                        y.iter().find(|v| !fits(v))
                    );
                }
            }
        }
        assert_eq!(largest_below(0.0, 1.0, DType::F32), 1.0 - f32::EPSILON / 2.0);
        assert_eq!(largest_below(0.0, 1.0, DType::Bf16), 0.996_093_75);
        assert_eq!(largest_below(0.0, 1.0, DType::F16), 0.999_511_7);
        assert_eq!(largest_below(-1.0, 0.0, DType::F16), -5.960_464_5e-8);
    }

    #[test]
    fn integers_have_all_their_bits() {
        let drawn = Generator::new(5).integers(4000, 0, 1 << 25);
        assert!(drawn.iter().any(|v| v % 2 == 1) && drawn.iter().all(|v| (0..1 << 25).contains(v)));
        let bits = drawn.iter().fold([0; 25], |mut counts, v| {
            counts.iter_mut().enumerate().for_each(|(i, count)| *count += v >> i & 1);
            counts
        });
        assert!(bits.iter().all(|count| (1800..2200).contains(count)), "{bits:?}");
        let signed = Generator::new(5).integers(4000, i64::from(i32::MIN), i64::from(i32::MAX) + 1);
        assert!(signed.iter().any(|v| *v < 0) && signed.iter().all(|v| i32::try_from(*v).is_ok()));
        assert_eq!(Generator::new(5).integers(3, 7, 8), [7; 3]);
        assert_eq!(Generator::new(5).integers(3, 7, 7), [0i64; 0]);
    }

    /// Covers every piece of the table, both signs, and the rounding to every storage type.
    #[test]
    fn normals_of_device_and_host_are_the_same_bits() {
        let device = test_device().unwrap();
        for (offset, n) in [(0, 1), (7, 70_001), (u64::from(u32::MAX) - 9, 333), (u64::MAX - 3, 130)] {
            let start = Generator { seed: 0x1234_5678_9abc_def0, offset };
            for dtype in DType::FLOATS {
                let (mut here, mut there) = (start, start);
                let y = Tensor::normal(&device, [n], 0.25, 0.02, dtype, &mut there).unwrap();
                let expected = crate::tensor::encode(&here.normal(n, 0.25, 0.02), dtype);
                assert!(y.to_bytes().unwrap() == expected, "offset {offset}, {n} elements of {dtype}");
                assert_eq!(here, there);
            }
        }
    }

    /// Checks the bits themselves, so that a change of host and kernel together cannot change a seed's weights unnoticed.
    #[test]
    fn a_seed_stands_for_these_numbers() {
        let bits: Vec<u32> = Generator::new(42).normal(4, 0.0, 1.0).iter().map(|z| z.to_bits()).collect();
        assert_eq!(bits, [0x3f01_7f96, 0x3c7c_32ec, 0x3e61_4924, 0x3eb0_fa2c]);
    }

    #[test]
    fn filling_in_place_gives_the_same_numbers_and_nothing_else() {
        let device = test_device().unwrap();
        let whole = Tensor::zeros(&device, [1024], DType::F32).unwrap();
        let part = whole.window(256, [300]).unwrap();
        part.set_normal(0.0, 1.0, &mut Generator::new(3)).unwrap();
        let mut expected = vec![0.0; 1024];
        expected[256..556].copy_from_slice(&Generator::new(3).normal(300, 0.0, 1.0));
        assert_eq!(whole.to_vec().unwrap(), expected);
        let gaps = Tensor::zeros(&device, [4, 4], DType::F32).unwrap().transpose(0, 1).unwrap();
        let error = gaps.set_normal(0.0, 1.0, &mut Generator::new(3)).unwrap_err();
        assert!(error.message().contains("view with gaps"), "{error}");
    }

    /// The table inverts the distribution: compared with a series for the complementary error function in f64.
    #[test]
    fn the_table_is_the_normal_distribution() {
        let pieces = pieces();
        assert_eq!(pieces.len(), 256);
        // 1 - Φ(z) by the trapezoidal rule, which converges exponentially for this integrand.
        let tail = |z: f64| {
            let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            let step = 1.0 / 512.0;
            let sum: f64 = (1..20 * 512).map(|i| density(z + f64::from(i) * step)).sum();
            // The first terms of the Euler-Maclaurin formula correct the end that is not flat.
            step * (sum + density(z) / 2.0) - step * step / 12.0 * z * density(z)
        };
        for octave in 0..32 {
            for eighth in 0..8u32 {
                for place in [0.0, 0.3, 0.5, 0.8, 0.999] {
                    let from_top = (1 << 31) + (eighth << 28) + (place * f64::from(1 << 28)) as u32;
                    let k = from_top >> octave | 1;
                    let z = f64::from(normal_of(&pieces, k));
                    let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
                    let off = (tail(z) - f64::from(k) / 8_589_934_592.0) / density;
                    assert!(
                        off.abs() < 2e-6,
                        "octave {octave}, eighth {eighth}, {place}: {z} is off by {off:e}"
                    );
                }
            }
        }
        assert_eq!(normal_of(&pieces, 0x8000_0001), -normal_of(&pieces, 0x8000_0000));
    }

    #[test]
    fn normals_have_the_moments() {
        let z = Generator::new(5).normal(400_000, 1.0, 2.0);
        let moment =
            |power| z.iter().map(|v| ((f64::from(*v) - 1.0) / 2.0).powi(power)).sum::<f64>() / z.len() as f64;
        // Standard errors: 0.0016, 0.0022, 0.0061 and 0.015.
        for (power, expected, bound) in [(1, 0.0, 0.007), (2, 1.0, 0.01), (3, 0.0, 0.03), (4, 3.0, 0.07)] {
            assert!((moment(power) - expected).abs() < bound, "moment {power}: {}", moment(power));
        }
    }
}
