//! Losses made of other operations. Their elements have the storage type of the inputs; means and sums are made in f32.

use super::cross_entropy::Reduction;
use super::prelude::*;
use super::rearrange::one_hot;

/// What becomes of the elements.
fn reduced(elements: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(elements.clone()),
        Reduction::Sum => elements.sum_f32(&[], false),
        Reduction::Mean => elements.sum_f32(&[], false)?.mul_scalar(1.0 / elements.count() as f32),
    }
}

fn same_shape(op: &str, x: &Tensor, target: &Tensor) -> Result<()> {
    check::same_float(op, &[("x", x), ("target", target)])?;
    if x.shape() == target.shape() {
        return Ok(());
    }
    Err(Error::shape(format!("{op}: target has shape {}, expected {}, that of x", target.shape(), x.shape())))
}

/// `(x - target)²`.
///
/// # Errors
/// `Shape` or `DType` where both differ; so do all losses.
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("mse_loss", x, target)?;
    reduced(&x.sub(target)?.square()?, reduction)
}

/// `|x - target|`.
///
/// # Errors
/// As [`mse_loss`].
pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("l1_loss", x, target)?;
    reduced(&x.sub(target)?.abs()?, reduction)
}

/// Half the square of `x - target` up to `delta`, and a line of its slope beyond (Huber 1964).
///
/// # Errors
/// As [`mse_loss`].
pub fn huber_loss(x: &Tensor, target: &Tensor, delta: f32, reduction: Reduction) -> Result<Tensor> {
    same_shape("huber_loss", x, target)?;
    let d = x.sub(target)?;
    // With c the difference held between -delta and delta: c d - c² / 2.
    let c = d.clamp(-delta, delta)?;
    reduced(&c.mul(&d)?.sub(&c.square()?.mul_scalar(0.5)?)?, reduction)
}

/// Binary cross entropy of `sigmoid(x)` and targets from 0 to 1: `softplus(x) - x · target`, which keeps its digits.
///
/// # Errors
/// As [`mse_loss`].
pub fn bce_with_logits(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("bce_with_logits", x, target)?;
    reduced(&x.softplus()?.sub(&x.mul(target)?)?, reduction)
}

/// Kullback and Leibler's divergence of log-probabilities x from probabilities `target`: `target · (log target - x)`, 0 where the target is 0.
/// The mean is over all elements.
///
/// # Errors
/// As [`mse_loss`].
pub fn kl_div(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("kl_div", x, target)?;
    // The logarithm of 0 is never multiplied by 0.
    let log =
        target.maximum(&Tensor::full(target.device(), [1], f32::MIN_POSITIVE, target.dtype())?)?.log()?;
    reduced(&target.mul(&log.sub(x)?)?, reduction)
}

/// Negative log-likelihood: log-probabilities `(.., V)` and class numbers `(..)`, u32 or i32 → `-x` at each row's class.
///
/// # Errors
/// `Shape` where the targets have not the shape of x without its last axis; `DType`.
pub fn nll_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    check::float("nll_loss", "x", x)?;
    check::indices("nll_loss", "target", target)?;
    let Some((classes, outer)) = x.dims().split_last().filter(|(_, outer)| *outer == target.dims()) else {
        return Err(Error::shape(format!(
            "nll_loss: target has shape {}, expected that of x {} without its last axis",
            target.shape(),
            x.shape()
        )));
    };
    debug_assert_eq!(outer, target.dims());
    // Only the class's element counts, whatever the others are.
    let mask = one_hot(target, *classes)?;
    let zeros = Tensor::zeros(x.device(), x.shape(), x.dtype())?;
    reduced(&mask.where_cond(x, &zeros)?.sum(&[-1], false)?.neg()?, reduction)
}

/// The calls of these functions.
pub(super) fn calls() -> Vec<Call> {
    let of = |name, doc| Call::new(name, doc).inputs(&["x", "target"]).choice("reduction", &Reduction::NAMES);
    vec![
        of("mse_loss", "`(x - target)²`: the mean, the sum, or each element's.").run(|a| {
            let [x, target] = a.inputs()?;
            mse_loss(x, target, reduction(a)?)
        }),
        of("l1_loss", "`|x - target|`: the mean, the sum, or each element's.").run(|a| {
            let [x, target] = a.inputs()?;
            l1_loss(x, target, reduction(a)?)
        }),
        of("huber_loss", "Half the square of `x - target` up to `delta`, and a line beyond (Huber 1964).").default("delta", 1.0).run(|a| {
            let [x, target] = a.inputs()?;
            huber_loss(x, target, a.get("delta")?, reduction(a)?)
        }),
        of("bce_with_logits", "Binary cross entropy of `sigmoid(x)` and targets from 0 to 1, by a formula that keeps its digits.").run(|a| {
            let [x, target] = a.inputs()?;
            bce_with_logits(x, target, reduction(a)?)
        }),
        of("kl_div", "Kullback and Leibler's divergence of log-probabilities x from probabilities `target`; the mean is over all elements.").run(|a| {
            let [x, target] = a.inputs()?;
            kl_div(x, target, reduction(a)?)
        }),
        of("nll_loss", "Negative log-likelihood of log-probabilities `(.., V)` at class numbers `(..)`.").run(|a| {
            let [x, target] = a.inputs()?;
            nll_loss(x, target, reduction(a)?)
        }),
    ]
}

fn reduction(a: &Args<'_>) -> Result<Reduction> {
    a.get::<String>("reduction").map(|name| Reduction::named(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Formula = fn(f64, f64) -> f64;
    type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

    /// Each element and its gradient against the formula in f64.
    #[test]
    fn losses_are_their_formulas() {
        let device = crate::suite::test_device().unwrap();
        let x = [-30.0f32, -2.5, -0.7, 0.3, 1.2, 2.8, 30.0, -1.1];
        let target = [1.0f32, 0.0, 0.25, 0.9, 0.0, 1.0, 0.5, 0.05];
        let cases: [(&str, Loss, Formula); 5] = [
            ("mse", |x, t| mse_loss(x, t, Reduction::None), |x, t| (x - t).powi(2)),
            ("l1", |x, t| l1_loss(x, t, Reduction::None), |x, t| (x - t).abs()),
            (
                "huber",
                |x, t| huber_loss(x, t, 1.5, Reduction::None),
                |x, t| if (x - t).abs() < 1.5 { (x - t).powi(2) / 2.0 } else { 1.5 * ((x - t).abs() - 0.75) },
            ),
            (
                "bce",
                |x, t| bce_with_logits(x, t, Reduction::None),
                |x, t| x.max(0.0) + (-x.abs()).exp().ln_1p() - x * t,
            ),
            (
                "kl",
                |x, t| kl_div(x, t, Reduction::None),
                |x, t| if t == 0.0 { 0.0 } else { t * (t.ln() - x) },
            ),
        ];
        for (name, loss, formula) in cases {
            let given = Tensor::from_f32(&device, [8], &x, DType::F32).unwrap().parameter("x");
            let y = loss(&given, &Tensor::from_f32(&device, [8], &target, DType::F32).unwrap()).unwrap();
            y.sum(&[], false).unwrap().backward().unwrap();
            let (y, dx) = (y.to_vec().unwrap(), given.grad().unwrap().to_vec().unwrap());
            for (i, (x, t)) in x.iter().zip(&target).enumerate() {
                let (x, t) = (f64::from(*x), f64::from(*t));
                let slope = (formula(x + 1e-6, t) - formula(x - 1e-6, t)) / 2e-6;
                for (what, got, expected) in [("value", y[i], formula(x, t)), ("gradient", dx[i], slope)] {
                    let far = (f64::from(got) - expected).abs() > 2e-6 * (1.0 + expected.abs());
                    assert!(!far, "{name}, {what} {i}: {got}, expected {expected}");
                }
            }
        }
    }

    #[test]
    fn nll_takes_the_class_alone() {
        let device = crate::suite::test_device().unwrap();
        let x =
            Tensor::from_f32(&device, [2, 3], &[f32::NEG_INFINITY, -0.5, -1.0, -2.0, -3.0, -4.0], DType::F32);
        let x = x.unwrap().parameter("x");
        let target = Tensor::from_u32(&device, [2], &[1, 2]).unwrap();
        let loss = nll_loss(&x, &target, Reduction::Mean).unwrap();
        loss.backward().unwrap();
        assert_eq!(loss.item().unwrap(), 2.25);
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, -0.5, 0.0, 0.0, 0.0, -0.5]);
        let message =
            nll_loss(&x, &Tensor::from_u32(&device, [3], &[0; 3]).unwrap(), Reduction::Mean).unwrap_err();
        assert!(message.to_string().contains("nll_loss: target has shape [3], expected that of x [2, 3]"));
    }
}
