//! Losses composed of other operations. Their elements have the storage type of the inputs; means and sums are computed in f32.

use super::cross_entropy::Reduction;
use super::gather::gather;
use super::map::{Number, map_typed};
use super::prelude::*;

/// Applies the reduction to the elements.
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
    Err(Error::shape(format!(
        "{op}: target has shape {}, expected {}, the shape of x",
        target.shape(),
        x.shape()
    )))
}

/// Computes `(x - target)²`.
///
/// # Errors
/// `Shape` or `DType` if both differ; this applies to all losses.
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("mse_loss", x, target)?;
    reduced(&x.sub(target)?.square()?, reduction)
}

/// Computes `|x - target|`.
///
/// # Errors
/// Errors of [`mse_loss`].
pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("l1_loss", x, target)?;
    reduced(&x.sub(target)?.abs()?, reduction)
}

/// Computes half the square of `x - target` up to `delta`, and a line of the same slope beyond (Huber 1964).
///
/// # Errors
/// Errors of [`mse_loss`].
pub fn huber_loss(x: &Tensor, target: &Tensor, delta: f32, reduction: Reduction) -> Result<Tensor> {
    same_shape("huber_loss", x, target)?;
    let d = x.sub(target)?;
    // With c the difference clamped to -delta .. delta: c d - c² / 2.
    let c = d.clamp(-delta, delta)?;
    reduced(&c.mul(&d)?.sub(&c.square()?.mul_scalar(0.5)?)?, reduction)
}

/// Computes the binary cross entropy of `sigmoid(x)` and targets from 0 to 1: `target · softplus(-x) + (1 - target) · softplus(x)`, which keeps its
/// digits at both ends.
///
/// # Errors
/// Errors of [`mse_loss`].
pub fn bce_with_logits(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("bce_with_logits", x, target)?;
    let (one, other) = (x.neg()?.softplus()?.mul(target)?, x.softplus()?.mul(&target.rsub_scalar(1.0)?)?);
    reduced(&one.add(&other)?, reduction)
}

/// Computes the Kullback-Leibler divergence of log-probabilities x from probabilities `target`: `target · (log target - x)`, 0 if the target is 0.
/// The mean is over all elements.
///
/// # Errors
/// Errors of [`mse_loss`].
pub fn kl_div(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("kl_div", x, target)?;
    // The logarithm of 0 must never be multiplied by 0.
    let log =
        target.maximum(&Tensor::full(target.device(), [1], f32::MIN_POSITIVE, target.dtype())?)?.log()?;
    reduced(&target.mul(&log.sub(x)?)?, reduction)
}

/// Computes the negative log-likelihood: log-probabilities `(.., V)` and class numbers `(..)`, u32 or i32 → `-x` at each row's class. Rows with
/// class `ignore_index` are 0 and do not count in the mean, which is NaN if all rows are ignored. Any other invalid class gives NaN.
///
/// # Errors
/// `Shape` if the targets do not have the shape of x without its last axis; `DType`.
pub fn nll_loss(
    x: &Tensor,
    target: &Tensor,
    ignore_index: Option<i32>,
    reduction: Reduction,
) -> Result<Tensor> {
    check::float("nll_loss", "x", x)?;
    check::indices("nll_loss", "target", target)?;
    if x.dims().split_last().is_none_or(|(_, outer)| *outer != *target.dims()) {
        return Err(Error::shape(format!(
            "nll_loss: target has shape {}, expected that of x {} without its last axis",
            target.shape(),
            x.shape()
        )));
    }
    let rank = target.shape().rank();
    let found = gather(x, -1, &target.unsqueeze(rank)?)?.squeeze(-1)?.neg()?;
    let Some(ignored) = ignore_index else { return reduced(&found, reduction) };
    let number = [Number::Int(ignored.into())];
    let counts = map_typed("(long)x0 != s0", &[target], &number, target.shape(), DType::Bool)?;
    let zeros = Tensor::zeros(x.device(), target.shape(), x.dtype())?;
    let losses = counts.where_cond(&found, &zeros)?;
    match reduction {
        Reduction::Mean => {
            let count = counts.to_dtype(DType::F32)?.sum_f32(&[], false)?;
            losses.sum_f32(&[], false)?.div(&count)
        }
        other => reduced(&losses, other),
    }
}

/// Returns the calls of these functions.
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
        of("kl_div", "Kullback-Leibler divergence of log-probabilities x from probabilities `target`; the mean is over all elements.").run(|a| {
            let [x, target] = a.inputs()?;
            kl_div(x, target, reduction(a)?)
        }),
        of("nll_loss", "Negative log-likelihood of log-probabilities `(.., V)` at class numbers `(..)`. Rows with class `ignore_index` are \
                        ignored.")
            .optional_default("ignore_index", -100)
            .run(|a| {
                let [x, target] = a.inputs()?;
                nll_loss(x, target, a.find("ignore_index")?, reduction(a)?)
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

    /// Compares each element and its gradient with the formula in f64.
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
        let loss = nll_loss(&x, &target, None, Reduction::Mean).unwrap();
        loss.backward().unwrap();
        assert_eq!(loss.item().unwrap(), 2.25);
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, -0.5, 0.0, 0.0, 0.0, -0.5]);
        let message = nll_loss(&x, &Tensor::from_u32(&device, [3], &[0; 3]).unwrap(), None, Reduction::Mean)
            .unwrap_err();
        assert!(message.to_string().contains("nll_loss: target has shape [3], expected that of x [2, 3]"));
    }

    /// Tests PyTorch's rule: the mean is over the rows that are not ignored.
    #[test]
    fn ignored_rows_are_left_out_of_the_mean() {
        let device = crate::suite::test_device().unwrap();
        let x = Tensor::from_f32(&device, [3, 2], &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], DType::F32);
        let x = x.unwrap().parameter("x");
        let target = Tensor::from_i32(&device, [3], &[1, -100, 0]).unwrap();
        let loss = nll_loss(&x, &target, Some(-100), Reduction::Mean).unwrap();
        loss.backward().unwrap();
        assert_eq!(loss.item().unwrap(), 3.5);
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, -0.5, 0.0, 0.0, -0.5, 0.0]);
        let each = nll_loss(&x, &target, Some(-100), Reduction::None).unwrap();
        assert_eq!(each.to_vec().unwrap(), [2.0, 0.0, 5.0]);
        let sum = nll_loss(&x, &target, Some(1), Reduction::Sum).unwrap().item().unwrap();
        assert!(sum.is_nan(), "-100 is not a class here");
        let none = Tensor::from_i32(&device, [3], &[-100; 3]).unwrap();
        assert!(nll_loss(&x, &none, Some(-100), Reduction::Mean).unwrap().item().unwrap().is_nan());
    }

    /// Tests small losses: a subtraction of almost equal numbers left no digits, and the slope at 0 was that of a kink.
    #[test]
    fn cross_entropy_of_sure_logits_keeps_its_digits() {
        let device = crate::suite::test_device().unwrap();
        let given = [(30.0f32, 1.0f32), (-30.0, 0.0), (0.0, 0.25), (0.0, 1.0), (12.0, 1.0)];
        let (x, t): (Vec<f32>, Vec<f32>) = given.into_iter().unzip();
        let x = Tensor::from_f32(&device, [5], &x, DType::F32).unwrap().parameter("x");
        let t = Tensor::from_f32(&device, [5], &t, DType::F32).unwrap();
        let y = bce_with_logits(&x, &t, Reduction::None).unwrap();
        y.sum(&[], false).unwrap().backward().unwrap();
        let (y, dx) = (y.to_vec().unwrap(), x.grad().unwrap().to_vec().unwrap());
        for (i, (x, t)) in given.into_iter().enumerate() {
            let (x, t) = (f64::from(x), f64::from(t));
            let softplus = |v: f64| v.max(0.0) + (-v.abs()).exp().ln_1p();
            let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
            let value = t * softplus(-x) + (1.0 - t) * softplus(x);
            let slope = (1.0 - t) * sigmoid(x) - t * sigmoid(-x);
            assert!((f64::from(y[i]) - value).abs() <= 2e-6 * value, "{i}: {}, expected {value}", y[i]);
            assert!(
                (f64::from(dx[i]) - slope).abs() <= 2e-6 * slope.abs(),
                "{i}: {}, expected {slope}",
                dx[i]
            );
        }
    }
}
