//! Layer normalization over the last axis: `y = (x - mean) * rstd * gamma + beta` (Ba, Kiros and Hinton 2016).

use super::norm::{self, NormRows};
use super::prelude::*;
use netcl_kernel::Variants;

static STREAMED: Kernel = Kernel::new("layer_norm", cl_file!("norm/norm.cl"))
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static PLAIN: Kernel = Kernel::new("layer_norm_plain", cl_file!("norm/norm.cl"))
    .requires(|device| !device.is_cpu())
    .tune(&[("WG", &[128, 64, 256]), ("VW", &[4])]);
pub(super) static VARIANTS: Variants = Variants::new("layer_norm_variant", &[&STREAMED, &norm::ROWS, &PLAIN]);

/// Normalizes x `(.., N)` with gamma `(N)` and beta `(N)` → `(.., N)`. Sums are f32 for every dtype.
pub fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    check::same_float("layer_norm", &[("x", x), ("gamma", gamma), ("beta", beta)])?;
    check::last_dim("layer_norm", x, gamma, "gamma")?;
    check::last_dim("layer_norm", x, beta, "beta")?;
    LayerNorm { eps }.apply([x, gamma, beta])
}

/// Operation of [`layer_norm`].
#[derive(Clone)]
pub struct LayerNorm {
    pub(super) eps: f32,
}

impl Op<3> for LayerNorm {
    const NAME: &'static str = "layer_norm";
    /// mean (R), rstd (R).
    type Saved = (Option<Tensor>, Tensor);
    fn forward(&self, [x, gamma, beta]: [&Tensor; 3]) -> Result<(Tensor, Self::Saved)> {
        let (x, gamma, beta) = (x.contiguous()?, gamma.contiguous()?, beta.contiguous()?);
        let rows = NormRows { x: &x, gamma: &gamma, center: true };
        let (y, mean, rstd) = rows.forward(&VARIANTS, Some(&beta), self.eps)?;
        Ok((y, (mean, rstd)))
    }
    fn backward(
        &self,
        [x, gamma, _]: [&Tensor; 3],
        (mean, rstd): &Self::Saved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (x, gamma, dy) = (x.contiguous()?, gamma.contiguous()?, dy.contiguous()?);
        let rows = NormRows { x: &x, gamma: &gamma, center: true };
        let (dx, dgamma, dbeta) = rows.backward(&VARIANTS, (mean.as_ref(), rstd), &dy, None)?;
        Ok([Some(dx), Some(dgamma), dbeta])
    }
    fn reference(&self, inputs: [&Array; 3]) -> Array {
        reference(self.eps, inputs)
    }
    fn calls() -> Vec<Call> {
        let doc = "Layer normalization over the last axis (Ba, Kiros and Hinton 2016). Takes x `(.., N)`, gamma `(N)` and beta `(N)`. Returns `(x \
                   - mean) / sqrt(variance + eps) * gamma + beta`. Sums are f32 for every type.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "gamma", "beta"]).default("eps", 1e-5);
        vec![call.run(|a| {
            let [x, gamma, beta] = a.inputs()?;
            layer_norm(x, gamma, beta, a.get("eps")?)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("eps", self.eps.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |shape: &[usize]| {
            let n = &shape[shape.len() - 1..];
            Sample::new(
                Self { eps: 1e-5 },
                [SampleInput::normal(shape), SampleInput::normal(n), SampleInput::normal(n)],
            )
            .sums(16)
        };
        vec![
            sample(&[2, 8]).bench(&[&[16_384, 768], &[768], &[768]]),
            sample(&[3, 2, 37]),
            sample(&[40, 20]),
            sample(&[5, 75]),
            sample(&[1, 1]),
            sample(&[0, 8]),
            Sample::new(
                Self { eps: 1e-5 },
                [
                    SampleInput::uniform(&[3, 2, 37], -1e4, 1e4),
                    SampleInput::normal(&[37]),
                    SampleInput::normal(&[37]),
                ],
            )
            .sums(16)
            .extreme()
            .in_order(),
            // Rows far from zero: a variance by E[x²] - mean² would be lost in rounding.
            Sample::new(
                Self { eps: 1e-5 },
                [
                    SampleInput::shifted(&[2, 40], 1000.0),
                    SampleInput::normal(&[40]),
                    SampleInput::normal(&[40]),
                ],
            )
            .only(DType::F32)
            // The mean itself is rounded to 1 part in 2^24 of 1000, which is 6e-5 of the spread.
            .looser(1000.0),
        ]
    }
}

/// Computes the norm by its definition.
pub(super) fn reference(eps: f32, [x, gamma, beta]: [&Array; 3]) -> Array {
    let n = x.shape.last() as f64;
    let mut out = Array::zeros(x.shape.clone());
    for (r, row) in x.rows().enumerate() {
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let rstd = 1.0 / (variance + f64::from(eps)).sqrt();
        for (i, v) in row.iter().enumerate() {
            out.data[r * row.len() + i] = (v - mean) * rstd * gamma.data[i] + beta.data[i];
        }
    }
    out
}
