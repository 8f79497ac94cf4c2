//! Dropout: elements become 0 with a given probability, and the others are scaled up to keep the mean (Srivastava et al. 2014).

use super::prelude::*;
use crate::random::{self, DropMask, Generator};

static KERNEL: Kernel = Kernel::new("dropout", cl_file!("dropout.cl"))
    .include(&[cl_file!("../include/vector16.cl"), cl_file!("../include/philox.cl")])
    .tune(&[("WG", &[128, 256])])
    .tune_cpu(&[("VW", &[0])]);

/// Applies dropout to x of any shape. The mask is drawn from `generator`, and drawn again in the backward pass.
///
/// # Errors
/// `Format` if the probability is not in `0..=1`.
pub fn dropout(x: &Tensor, probability: f32, generator: &mut Generator) -> Result<Tensor> {
    check::float("dropout", "x", x)?;
    let mask = generator.mask(probability, x.count().div_ceil(64) as u64 * 16)?;
    masked(x, mask)
}

/// Applies dropout with an existing mask.
///
/// # Errors
/// `DType` if x does not have a float type.
pub fn masked(x: &Tensor, mask: DropMask) -> Result<Tensor> {
    check::float("dropout", "x", x)?;
    if mask.probability == 0.0 {
        return Ok(x.clone());
    }
    Dropout { mask }.apply([x])
}

/// Operation of [`dropout`].
#[derive(Clone)]
pub struct Dropout {
    pub(super) mask: DropMask,
}

impl Dropout {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        let y = x.empty_like()?;
        if y.count() > 0 {
            let launch = KERNEL.launch("dropout").define("DTYPE", x.dtype().code()).read(&x).write(&y);
            let capabilities = x.device().capabilities();
            let launch = if capabilities.is_cpu() {
                launch.groups(random::runs(x.device(), &KERNEL, x.count()))
            } else {
                // Items of 16 bytes for each of a draw's four words.
                let lanes = 16 / x.dtype().size();
                let wg = Tuning::value(x.device(), &KERNEL, 0, "WG");
                let groups = x.count().div_ceil(64).saturating_mul(16 / lanes).div_ceil(wg);
                launch.define("VW", lanes).groups(groups.min(capabilities.compute_units.max(1) as usize * 64))
            };
            self.mask.bind(self.mask.define(launch).scalar(x.count())).run()?;
        }
        Ok(y)
    }
}

impl Op<1> for Dropout {
    const NAME: &'static str = "dropout";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        Ok((self.run(x)?, ()))
    }
    fn backward(&self, [_]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.run(dy)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let factor = |i| self.mask.factor(random::element(self.mask.seed, self.mask.offset, i as u64));
        Array::from_fn(x.shape.clone(), |i| x.data[i] * factor(i))
    }
    fn calls() -> Vec<Call> {
        let doc = "Sets elements to 0 with a given probability, and scales the others to keep the mean (Srivastava et al. 2014). The backward \
                   draws the same mask again.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("probability", 0.5).random();
        vec![call.run(|a| dropout(a.inputs::<1>()?[0], a.get("probability")?, &mut a.generator()?))]
    }
    fn attributes(&self) -> Attributes {
        let DropMask { probability, seed, offset, .. } = self.mask;
        vec![("probability", probability.into()), ("seed", seed.into()), ("offset", offset.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], probability, offset| {
            let mask = DropMask { probability, seed: 42, offset, counter: None };
            Sample::new(Self { mask }, [SampleInput::normal(shape)])
        };
        vec![
            sample(&[5, 67], 0.3, 0).bench(&[&[4096, 4096]]),
            sample(&[3, 64], 0.5, u64::from(u32::MAX) - 5),
            Sample::new(
                Self { mask: DropMask { probability: 0.3, seed: 42, offset: 0, counter: None } },
                [SampleInput::values(&[5, 67], &[1e38, -1e30, 1e-30, 65_504.0], None)],
            )
            .extreme()
            .pointwise()
            .light(),
            sample(&[20], 1.0, 3),
            sample(&[1], 0.1, 0),
            sample(&[0, 8], 0.1, 0),
        ]
    }
}
