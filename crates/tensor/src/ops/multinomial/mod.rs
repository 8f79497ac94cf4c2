//! Indices drawn with given probabilities.

use super::prelude::*;
use crate::random::{self, Generator};

static KERNEL: Kernel = Kernel::new("multinomial", cl_file!("multinomial.cl"))
    .include(&[cl_file!("../include/philox.cl")])
    .tune(&[("WG", &[256])])
    .tune_cpu(&[("WG", &[1])]);

/// Operation over the last axis: weights `(.., N)` → u32 `(.., S)`. No gradient.
#[derive(Clone)]
pub struct Multinomial {
    samples: usize,
    seed: u64,
    offset: u64,
}

impl Op<1> for Multinomial {
    const NAME: &'static str = "multinomial";
    type Saved = ();
    fn forward(&self, [weights]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        check::float("multinomial", "weights", weights)?;
        let (weights, (rows, n)) = (weights.contiguous()?, weights.shape().rows_cols());
        let Some((_, outer)) = weights.dims().split_last().filter(|_| n > 0) else {
            let shape = weights.shape();
            return Err(Error::shape(format!(
                "multinomial: cannot choose from an empty axis of weights {shape}"
            )));
        };
        let y = Tensor::empty(weights.device(), [outer, &[self.samples]].concat(), DType::U32)?;
        if y.count() > 0 {
            let launch = KERNEL.launch("multinomial").define("DTYPE", weights.dtype().code()).groups(rows);
            let launch = launch.read(&weights).write(&y).scalar(n).scalar(self.samples);
            launch.scalar(self.seed).scalar(self.offset).run()?;
        }
        Ok((y, ()))
    }
    fn backward(&self, _: [&Tensor; 1], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([None])
    }
    fn reference(&self, [weights]: [&Array; 1]) -> Array {
        let mut out = Vec::new();
        for (r, row) in weights.rows().enumerate() {
            for s in 0..self.samples {
                let word = random::element(self.seed, self.offset, (r * self.samples + s) as u64);
                let mut left = f64::from(random::unit(word)) * row.iter().sum::<f64>();
                let index = row.iter().position(|w| {
                    left -= w;
                    left < 0.0
                });
                out.push(index.unwrap_or(row.len() - 1) as f64);
            }
        }
        let dims = weights.shape.dims();
        Array::new([&dims[..dims.len() - 1], &[self.samples]].concat(), out)
    }
    fn calls() -> Vec<Call> {
        let doc = "Draws `samples` indices per row of the last axis with replacement, u32 `(.., samples)`. The probability of an index is \
                   proportional to its weight. A row whose sum is 0, infinite or NaN gives 2³² - 1. No gradient.";
        let call =
            Call::new(Self::NAME, doc).inputs(&["weights"]).required("samples", AttributeKind::Int).random();
        vec![call.run(|a| a.inputs::<1>()?[0].multinomial(a.get("samples")?, &mut a.generator()?))]
    }
    fn attributes(&self) -> Attributes {
        vec![("samples", self.samples.into()), ("seed", self.seed.into()), ("offset", self.offset.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |samples, shape: &[usize]| {
            Sample::new(Self { samples, seed: 7, offset: 100 }, [SampleInput::uniform(shape, 0.0, 1.0)])
                .exact()
        };
        let sparse = SampleInput::values(&[2, 300], &[0.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.0], None);
        vec![
            sample(5, &[3, 65]).bench(&[&[64, 50_304]]),
            Sample::new(Self { samples: 40, seed: 3, offset: 0 }, [sparse]).exact().light(),
            Sample::new(
                Self { samples: 5, seed: 7, offset: 100 },
                [SampleInput::values(&[3, 65], &[1e-30, 1e30, 0.0, 3e29, 1e-10], None)],
            )
            .exact()
            .extreme()
            .light(),
            sample(1, &[1]).light(),
            sample(3, &[0, 4]).light(),
            sample(0, &[2, 4]).light(),
        ]
    }
}

impl Tensor {
    /// Draws `samples` indices per row of the last axis with replacement, u32 `(.., samples)`. The probability of an index is proportional to its
    /// weight. Weights are not negative and need not add up to 1. The same stream gives the same indices on every device, except for draws within
    /// rounding of a border between two indices. A row whose sum is 0, infinite or NaN gives `u32::MAX`.
    pub fn multinomial(&self, samples: usize, generator: &mut Generator) -> Result<Self> {
        let (rows, _) = self.shape().rows_cols();
        let (seed, offset) = (generator.seed, generator.reserve_elements(rows * samples));
        Multinomial { samples, seed, offset }.apply([&self.detach()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_weights_and_bad_rows_say_so() {
        let device = crate::suite::test_device().unwrap();
        let weights = [1.0, 0.0, 2.0, 5.0, 0.0, 0.0, 0.0, 0.0, 1.0, f32::NAN, 1.0, 1.0];
        let weights = Tensor::from_f32(&device, [3, 4], &weights, DType::F32).unwrap();
        let mut generator = Generator::new(11);
        let drawn = weights.multinomial(4000, &mut generator).unwrap().to_u32().unwrap();
        let count = |i| drawn[..4000].iter().filter(|d| **d == i).count() as f64 / 4000.0;
        // Three standard deviations of a share of one half are 0.024.
        assert!((count(0) - 0.125).abs() < 0.024 && count(1) == 0.0, "{} {}", count(0), count(1));
        assert!((count(2) - 0.25).abs() < 0.024 && (count(3) - 0.625).abs() < 0.024);
        assert!(drawn[4000..].iter().all(|d| *d == u32::MAX));
        let again = weights.multinomial(4000, &mut Generator::new(11)).unwrap().to_u32().unwrap();
        assert_eq!(drawn, again);
        let next = weights.multinomial(4000, &mut generator).unwrap().to_u32().unwrap();
        assert_ne!(drawn[..4000], next[..4000]);
    }
}
