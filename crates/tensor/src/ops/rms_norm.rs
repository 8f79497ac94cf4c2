//! Root-mean-square normalization over the last axis: `y = x / sqrt(mean(x²) + eps) * gamma` (Zhang and Sennrich 2019).

use super::norm::{self, NormRows};
use super::prelude::*;
use netcl_kernel::Variants;

static STREAMED: Kernel = Kernel::new("rms_norm", cl_file!("norm/norm.cl"))
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static PLAIN: Kernel = Kernel::new("rms_norm_plain", cl_file!("norm/norm.cl"))
    .requires(|device| !device.is_cpu())
    .tune(&[("WG", &[128, 64, 256]), ("VW", &[4])]);
pub(super) static VARIANTS: Variants =
    Variants::new("rms_norm_variant", &[&STREAMED, &norm::RMS_ROWS, &PLAIN]);

/// Normalizes x `(.., N)` with gamma `(N)` → `(.., N)`. Sums are f32 for every dtype.
pub fn rms_norm(x: &Tensor, gamma: &Tensor, eps: f32) -> Result<Tensor> {
    check::same_float("rms_norm", &[("x", x), ("gamma", gamma)])?;
    check::last_dim("rms_norm", x, gamma, "gamma")?;
    RmsNorm { eps }.apply([x, gamma])
}

/// Operation of [`rms_norm`].
#[derive(Clone)]
pub struct RmsNorm {
    pub(super) eps: f32,
}

impl Op<2> for RmsNorm {
    const NAME: &'static str = "rms_norm";
    /// rstd (R).
    type Saved = Tensor;
    fn forward(&self, [x, gamma]: [&Tensor; 2]) -> Result<(Tensor, Tensor)> {
        let (x, gamma) = (x.contiguous()?, gamma.contiguous()?);
        let (y, _, rstd) =
            NormRows { x: &x, gamma: &gamma, center: false }.forward(&VARIANTS, None, self.eps)?;
        Ok((y, rstd))
    }
    fn backward(&self, [x, gamma]: [&Tensor; 2], rstd: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, gamma, dy) = (x.contiguous()?, gamma.contiguous()?, dy.contiguous()?);
        let rows = NormRows { x: &x, gamma: &gamma, center: false };
        let (dx, dgamma, _) = rows.backward(&VARIANTS, (None, rstd), &dy, None)?;
        Ok([Some(dx), Some(dgamma)])
    }
    fn reference(&self, inputs: [&Array; 2]) -> Array {
        reference(self.eps, inputs)
    }
    fn calls() -> Vec<Call> {
        let doc = "Root-mean-square normalization over the last axis (Zhang and Sennrich 2019): x `(.., N)`, gamma `(N)` → `x / sqrt(mean(x²) + \
                   eps) * gamma` `(.., N)`.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "gamma"]).default("eps", 1e-5);
        vec![call.run(|a| {
            let [x, gamma] = a.inputs()?;
            rms_norm(x, gamma, a.get("eps")?)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("eps", self.eps.into())]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |shape: &[usize]| {
            let n = &shape[shape.len() - 1..];
            Sample::new(Self { eps: 1e-5 }, [SampleInput::normal(shape), SampleInput::normal(n)]).sums(16)
        };
        vec![
            sample(&[2, 8]).bench(&[&[16_384, 768], &[768]]),
            sample(&[3, 2, 37]),
            sample(&[40, 20]).light(),
            sample(&[1, 1]).light(),
            sample(&[0, 8]).light(),
            Sample::new(
                Self { eps: 1e-5 },
                [SampleInput::uniform(&[3, 2, 37], -1e4, 1e4), SampleInput::normal(&[37])],
            )
            .sums(16)
            .extreme()
            .in_order(),
            // Rows that are small compared with eps.
            Sample::new(
                Self { eps: 1e-5 },
                [SampleInput::uniform(&[3, 2, 37], -1e-4, 1e-4), SampleInput::normal(&[37])],
            )
            .sums(16)
            .extreme()
            .step(1e-7)
            .light(),
        ]
    }
}

/// Computes the norm by its definition.
pub(super) fn reference(eps: f32, [x, gamma]: [&Array; 2]) -> Array {
    let n = x.shape.last();
    let mut out = Array::zeros(x.shape.clone());
    for (r, row) in x.rows().enumerate() {
        let square = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
        for (i, v) in row.iter().enumerate() {
            out.data[r * n + i] = v / (square + f64::from(eps)).sqrt() * gamma.data[i];
        }
    }
    out
}
