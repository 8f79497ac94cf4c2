//! Norms at the start of a residual branch: they return x together with its norm.
//!
//! `let (x, h) = residual_layer_norm(&x, …)?; x.add(&branch(&h)?)` computes the same as `layer_norm`. The difference is in the backward: the two
//! gradients of x, directly and through the norm, reach one operation, which adds them in its own pass. This saves a separate pass over memory,
//! which at (65536, 768) in bf16 reads and writes 300 MB.

use super::norm::NormRows;
use super::prelude::*;
use super::{MultiOp, layer_norm, rms_norm};
use netcl_kernel::Variants;

/// Returns x `(.., N)` itself and its [`layer_norm`](layer_norm::layer_norm()) with gamma `(N)` and beta `(N)`.
pub fn residual_layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let op = ResidualLayerNorm::NAME;
    check::same_float(op, &[("x", x), ("gamma", gamma), ("beta", beta)])?;
    check::last_dim(op, x, gamma, "gamma")?;
    check::last_dim(op, x, beta, "beta")?;
    let [x, y] = ResidualLayerNorm { eps }.apply([x, gamma, beta])?;
    Ok((x, y))
}

/// Returns x `(.., N)` itself and its [`rms_norm`](rms_norm::rms_norm()) with gamma `(N)`.
pub fn residual_rms_norm(x: &Tensor, gamma: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let op = ResidualRmsNorm::NAME;
    check::same_float(op, &[("x", x), ("gamma", gamma)])?;
    check::last_dim(op, x, gamma, "gamma")?;
    let [x, y] = ResidualRmsNorm { eps }.apply([x, gamma])?;
    Ok((x, y))
}

/// Computes dx, dgamma, dbeta from the direct gradient of x and the gradient of its norm.
fn backward(
    job: &'static Variants,
    [x, gamma]: [&Tensor; 2],
    (mean, rstd): (Option<&Tensor>, &Tensor),
    [residual_grad, dy]: [Option<&Tensor>; 2],
) -> Result<[Option<Tensor>; 3]> {
    let Some(dy) = dy else { return Ok([residual_grad.cloned(), None, None]) };
    let (x, gamma, dy) = (x.contiguous()?, gamma.contiguous()?, dy.contiguous()?);
    let residual_grad = residual_grad.map(Tensor::contiguous).transpose()?;
    let rows = NormRows { x: &x, gamma: &gamma, center: mean.is_some() };
    let (dx, dgamma, dbeta) = rows.backward(job, (mean, rstd), &dy, residual_grad.as_ref())?;
    Ok([Some(dx), Some(dgamma), dbeta])
}

/// Operation of [`residual_layer_norm`].
#[derive(Clone)]
pub struct ResidualLayerNorm {
    pub(super) eps: f32,
}

impl MultiOp<3, 2> for ResidualLayerNorm {
    const NAME: &'static str = "residual_layer_norm";
    /// mean (R), rstd (R).
    type Saved = (Option<Tensor>, Tensor);
    fn forward(&self, [x, gamma, beta]: [&Tensor; 3]) -> Result<([Tensor; 2], Self::Saved)> {
        let (dense, gamma, beta) = (x.contiguous()?, gamma.contiguous()?, beta.contiguous()?);
        let rows = NormRows { x: &dense, gamma: &gamma, center: true };
        let (y, mean, rstd) = rows.forward(&layer_norm::VARIANTS, Some(&beta), self.eps)?;
        Ok(([x.detach(), y], (mean, rstd)))
    }
    fn backward(
        &self,
        [x, gamma, _]: [&Tensor; 3],
        (mean, rstd): &Self::Saved,
        dys: [Option<&Tensor>; 2],
    ) -> Result<[Option<Tensor>; 3]> {
        backward(&layer_norm::VARIANTS, [x, gamma], (mean.as_ref(), rstd), dys)
    }
    fn reference(&self, inputs: [&Array; 3]) -> [Array; 2] {
        [inputs[0].clone(), layer_norm::reference(self.eps, inputs)]
    }
    fn calls() -> Vec<Call> {
        let doc = "x itself and its layer_norm, for the start of a residual branch: both gradients of x are added in one pass.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "gamma", "beta"]).default("eps", 1e-5);
        vec![call.results(&["residual", "y"]).run_all(|a| {
            let [x, gamma, beta] = a.inputs()?;
            residual_layer_norm(x, gamma, beta, a.get("eps")?).map(|(x, y)| vec![x, y])
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
        let inputs = [
            SampleInput::uniform(&[3, 2, 37], -1e4, 1e4),
            SampleInput::normal(&[37]),
            SampleInput::normal(&[37]),
        ];
        let far = Sample::new(Self { eps: 1e-5 }, inputs).sums(16).extreme().light();
        vec![sample(&[2, 8]), sample(&[3, 2, 37]), sample(&[1, 1]).light(), sample(&[0, 8]).light(), far]
    }
}

/// Operation of [`residual_rms_norm`].
#[derive(Clone)]
pub struct ResidualRmsNorm {
    pub(super) eps: f32,
}

impl MultiOp<2, 2> for ResidualRmsNorm {
    const NAME: &'static str = "residual_rms_norm";
    /// rstd (R).
    type Saved = Tensor;
    fn forward(&self, [x, gamma]: [&Tensor; 2]) -> Result<([Tensor; 2], Tensor)> {
        let (dense, gamma) = (x.contiguous()?, gamma.contiguous()?);
        let rows = NormRows { x: &dense, gamma: &gamma, center: false };
        let (y, _, rstd) = rows.forward(&rms_norm::VARIANTS, None, self.eps)?;
        Ok(([x.detach(), y], rstd))
    }
    fn backward(
        &self,
        [x, gamma]: [&Tensor; 2],
        rstd: &Tensor,
        dys: [Option<&Tensor>; 2],
    ) -> Result<[Option<Tensor>; 2]> {
        let [dx, dgamma, _] = backward(&rms_norm::VARIANTS, [x, gamma], (None, rstd), dys)?;
        Ok([dx, dgamma])
    }
    fn reference(&self, inputs: [&Array; 2]) -> [Array; 2] {
        [inputs[0].clone(), rms_norm::reference(self.eps, inputs)]
    }
    fn calls() -> Vec<Call> {
        let doc = "x itself and its rms_norm, for the start of a residual branch: both gradients of x are added in one pass.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "gamma"]).default("eps", 1e-5);
        vec![call.results(&["residual", "y"]).run_all(|a| {
            let [x, gamma] = a.inputs()?;
            residual_rms_norm(x, gamma, a.get("eps")?).map(|(x, y)| vec![x, y])
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
            sample(&[3, 40]),
            sample(&[2, 37]).light(),
            sample(&[1, 1]).light(),
            sample(&[0, 8]).light(),
            Sample::new(
                Self { eps: 1e-5 },
                [SampleInput::uniform(&[2, 37], -1e4, 1e4), SampleInput::normal(&[37])],
            )
            .sums(16)
            .extreme()
            .light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    fn inputs(device: &Device, n: usize) -> [Tensor; 3] {
        let draw = |shape: &[usize], seed| {
            let data: Vec<f32> =
                SampleInput::normal(shape).draw(seed, DType::F32).data.iter().map(|v| *v as f32).collect();
            Tensor::from_f32(device, shape, &data, DType::F32).unwrap()
        };
        [draw(&[5, n], 1).parameter("x"), draw(&[n], 2).parameter("gamma"), draw(&[n], 3).parameter("beta")]
    }

    fn gradients(inputs: &[Tensor; 3], y: &Tensor) -> Vec<Option<Vec<f32>>> {
        inputs.iter().for_each(|x| x.set_grad(None));
        y.backward_with(&Tensor::ones(y.device(), y.shape(), y.dtype()).unwrap()).unwrap();
        inputs.iter().map(|x| x.grad().map(|g| g.to_vec().unwrap())).collect()
    }

    /// Tests that a block with this operation has the gradients of one with `layer_norm`, and one launch less.
    #[test]
    fn the_gradient_past_the_norm_is_added_on_the_way() {
        let device = test_device().unwrap();
        let all = inputs(&device, 24);
        let [x, gamma, beta] = &all;
        let separate = |x: &Tensor| {
            let h = layer_norm::layer_norm(x, gamma, beta, 1e-5).unwrap();
            x.add(&h.mul(&h).unwrap()).unwrap()
        };
        let joined = |x: &Tensor| {
            let (x, h) = residual_layer_norm(x, gamma, beta, 1e-5).unwrap();
            x.add(&h.mul(&h).unwrap()).unwrap()
        };
        // Two in sequence: the direct gradient of the first one comes from the second one.
        let (a, b) = (separate(&separate(x)), joined(&joined(x)));
        assert_eq!(a.to_vec().unwrap(), b.to_vec().unwrap());
        let expected = gradients(&all, &a);
        let before = device.launches();
        let got = gradients(&all, &b);
        let joined_launches = device.launches() - before;
        for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
            let scale = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
            for (g, e) in got.iter().zip(expected) {
                assert!((g - e).abs() <= 1e-5 * scale, "{g}, expected {e}");
            }
        }
        let a = separate(&separate(x));
        let before = device.launches();
        gradients(&all, &a);
        assert_eq!(device.launches() - before, joined_launches + 2);
    }

    /// Tests that one of the two results may be unused, and that each may keep its gradient.
    #[test]
    fn either_result_may_go_unused() {
        let device = test_device().unwrap();
        let all = inputs(&device, 8);
        let [x, gamma, beta] = &all;
        let (x_again, h) = residual_layer_norm(x, gamma, beta, 1e-5).unwrap();
        drop(x_again);
        let plain = layer_norm::layer_norm(x, gamma, beta, 1e-5).unwrap();
        assert_eq!(gradients(&all, &h), gradients(&all, &plain));
        let (x_again, _) = residual_layer_norm(x, gamma, beta, 1e-5).unwrap();
        assert_eq!(gradients(&all, &x_again), [Some(vec![1.0; 40]), None, None]);
        let (x_again, h) = residual_layer_norm(x, gamma, beta, 1e-5).unwrap();
        x_again.retain_grad();
        h.retain_grad();
        let sum = x_again.add(&h.mul_scalar(3.0).unwrap()).unwrap();
        gradients(&all, &sum);
        assert_eq!(x_again.grad().unwrap().to_vec().unwrap(), vec![1.0; 40]);
        assert_eq!(h.grad().unwrap().to_vec().unwrap(), vec![3.0; 40]);
        let again = sum.backward_with(&sum.detach()).unwrap_err();
        assert!(again.message().contains("already used by a backward"), "{again}");
    }
}
