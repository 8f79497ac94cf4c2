//! The loss that balances the load of a mixture's experts (Fedus et al. 2021, equations 4 to 6), over the routers of all layers.

use super::prelude::*;
use super::route::{KERNEL, check_router, chosen, groups, launch};

/// Computes the balance loss of logits `(.., E)` of all layers → `E * Σ f_e p_e`, an f32 scalar. `f_e` is the share of rows whose K largest logits
/// include expert e, and `p_e` the mean of its softmax over all rows. The loss is K if all experts are equally busy. Gradients flow only through
/// `p_e`. Without rows it is 0.
///
/// # Errors
/// Errors of [`route`](super::route::route()).
pub fn balance_loss(logits: &Tensor, k: usize) -> Result<Tensor> {
    check_router("balance_loss", logits, k)?;
    BalanceLoss { k }.apply([logits])
}

/// Operation of [`balance_loss()`].
#[derive(Clone)]
pub struct BalanceLoss {
    pub(super) k: usize,
}

impl Op<1> for BalanceLoss {
    const NAME: &'static str = "balance_loss";
    /// Share of the rows that chose each expert, f32 (E).
    type Saved = Tensor;
    fn forward(&self, [logits]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        let x = logits.contiguous()?;
        let (device, (rows, e)) = (x.device(), x.shape().rows_cols());
        let (share, loss) = (x.empty_f32([e])?, x.empty_f32([])?);
        if rows == 0 {
            return Ok((Tensor::zeros(device, [], DType::F32)?, share));
        }
        let (launch, high) = launch("balance_count", &x, self.k);
        let per = rows.div_ceil(sum_parts(device, rows * e)).next_multiple_of(high);
        let parts = rows.div_ceil(per);
        let part = x.empty_f32([parts, 2, e])?;
        launch.groups(parts).read(&x).write(&part).scalar(rows).scalar(per).run()?;
        let launch = KERNEL.launch("balance_sum").define("E", e).groups(1);
        launch.read(&part).write(&share).write(&loss).scalar(parts).scalar(rows).run()?;
        Ok((loss, share))
    }
    fn backward(&self, [logits]: [&Tensor; 1], share: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let (x, dy) = (logits.contiguous()?, dy.to_dtype(DType::F32)?.contiguous()?);
        let (rows, _) = x.shape().rows_cols();
        let dlogits = Tensor::empty(x.device(), x.shape(), x.dtype())?;
        if rows > 0 {
            let (launch, high) = launch("balance_bwd", &x, self.k);
            let launch = launch.groups(groups(&x, rows, high));
            launch.read(&x).read(share).read(&dy).write(&dlogits).scalar(rows).run()?;
        }
        Ok([Some(dlogits)])
    }
    fn reference(&self, [logits]: [&Array; 1]) -> Array {
        let (rows, e) = logits.shape.rows_cols();
        let (mut counts, mut masses) = (vec![0.0; e], vec![0.0; e]);
        for row in logits.rows() {
            let (chosen, shares) = chosen(row, self.k);
            chosen.into_iter().for_each(|e| counts[e] += 1.0);
            masses.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
        }
        let n = rows.max(1) as f64;
        let sum: f64 = counts.iter().zip(&masses).map(|(c, m)| c / n * (m / n)).sum();
        Array::new([], vec![e as f64 * sum])
    }
    fn calls() -> Vec<Call> {
        let doc = "The loss that balances the load of experts (Fedus et al. 2021): router logits `(.., E)` of all layers, of which the k largest \
                   choose → an f32 scalar, which is k if all experts are equally busy.";
        let call = Call::new(Self::NAME, doc).inputs(&["logits"]).required("k", AttributeKind::Int);
        vec![call.run(|a| balance_loss(a.inputs::<1>()?[0], a.get("k")?))]
    }
    fn attributes(&self) -> Attributes {
        vec![("k", self.k.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |k, shape: &[usize]| Sample::new(Self { k }, [SampleInput::distinct(shape)]);
        vec![
            sample(2, &[3, 7, 8]).bench(&[&[32, 4096, 8]]),
            sample(3, &[12, 19]).bench(&[&[131_072, 128]]),
            sample(2, &[2, 70]).light(),
            // More rows than fit in one part of the sums.
            sample(2, &[300, 4]).light(),
            Sample::new(Self { k: 2 }, [SampleInput::uniform(&[6, 9], -200.0, 200.0)]).extreme().light(),
            sample(1, &[1, 1]).light(),
            sample(2, &[0, 4]).light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    #[test]
    fn equally_busy_experts_have_a_loss_of_k() {
        let device = test_device().unwrap();
        // Each expert is first in a quarter of the rows, and second in another.
        let data: Vec<f32> = (0..400).map(|i| [3.0, 2.0, 0.0, 0.0][(i % 4 + i / 4) % 4]).collect();
        let logits = Tensor::from_f32(&device, [100, 4], &data, DType::F32).unwrap();
        let loss = balance_loss(&logits, 2).unwrap().item().unwrap();
        assert!((loss - 2.0).abs() < 1e-6, "{loss}");
    }
}
