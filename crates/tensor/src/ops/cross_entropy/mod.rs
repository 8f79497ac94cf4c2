//! Cross entropy between logits and class numbers, with one pass over the logits in the forward and one in the backward.
//!
//! The forward stores one value per row, the logarithm of the sum of exponentials. Probabilities are never stored, and the host reads nothing. If a
//! GPU's work-group can hold a row, the forward also computes the gradient, and the logits are read only once (`held`).

use super::prelude::*;
use crate::tape::detects_anomaly;
use netcl_kernel::Launch;

mod registers;
use registers::RegisterPlan;

static KERNEL: Kernel = Kernel::new("cross_entropy", cl_file!("cross_entropy.cl"))
    .tune(&[("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Reduction of the rows' losses to the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Mean over the rows that are not ignored; NaN if all are ignored.
    #[default]
    Mean,
    /// Sum.
    Sum,
    /// One loss per row, 0 if ignored.
    None,
}

impl Reduction {
    pub(super) const NAMES: [&'static str; 3] = ["mean", "sum", "none"];

    pub(super) fn named(name: &str) -> Self {
        match name {
            "sum" => Self::Sum,
            "none" => Self::None,
            _ => Self::Mean,
        }
    }
}

/// Options of [`cross_entropy`]; the defaults are PyTorch's.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Rows with this target are ignored.
    pub ignore_index: Option<i32>,
    /// Share of the target's probability that is spread over all classes, from 0 to 1.
    pub label_smoothing: f32,
    /// Reduction of the rows' losses.
    pub reduction: Reduction,
    /// Whether the caller no longer needs the values of the logits after the call, so that their gradient may overwrite them. This happens only for
    /// logits that an operation made and that need a gradient, if no other tensor shares their memory: no clone, no view, no operation that saved
    /// them.
    pub overwrite_logits: bool,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        Self {
            ignore_index: Some(-100),
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
            overwrite_logits: false,
        }
    }
}

/// Computes the cross entropy of logits `(.., V)` and targets `(..)` u32 or i32 → a scalar, or `(..)` without reduction. The result is f32 for
/// every dtype. An invalid target makes its row's loss and gradient NaN; nothing outside the row is read.
///
/// # Errors
/// `Shape` if the targets do not have the shape of the logits without its last axis; `DType` if the logits are not floats or the targets are not
/// integers.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor> {
    check::float("cross_entropy", "logits", logits)?;
    check::indices("cross_entropy", "targets", targets)?;
    let Some((_, outer)) = logits.dims().split_last() else {
        return Err(Error::shape("cross_entropy: logits is a scalar, expected (.., V)"));
    };
    if targets.dims() != outer {
        return Err(Error::shape(format!(
            "cross_entropy: targets has shape {}, expected {outer:?}, the shape of logits {} without its last axis",
            targets.shape(),
            logits.shape()
        )));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        return Err(Error::shape(format!(
            "cross_entropy: label_smoothing is {}, expected 0 to 1",
            options.label_smoothing
        )));
    }
    options.apply([logits, targets])
}

/// Work-items that add the rows' losses on a GPU, in one group.
const MEAN_GROUP: usize = 1024;

impl CrossEntropy {
    /// Returns `ignore_index` for kernels; a value that no target can have stands for `None`.
    fn ignored(&self) -> i64 {
        self.ignore_index.map_or(i64::MIN, i64::from)
    }
}

/// Values that the forward saves.
pub enum CrossEntropySaved {
    /// Maximum, and logarithm of the sum of exponentials relative to it (R, 2); factor of the gradient (1).
    Rows(Tensor, Tensor),
    /// The gradient for `dy` 1, and the plan that computed it.
    Gradient(Tensor, RegisterPlan),
}

impl CrossEntropy {
    /// Computes loss and gradient by `plan`.
    fn in_registers(
        &self,
        plan: RegisterPlan,
        logits: &Tensor,
        targets: &Tensor,
    ) -> Result<(Tensor, CrossEntropySaved)> {
        // Checked for the original logits, since tensors made from them below share their memory.
        let overwrite =
            self.overwrite_logits && logits.is_dense() && logits.is_unseen() && !detects_anomaly();
        let (y, dx) =
            registers::forward(self, plan, &logits.contiguous()?, &targets.contiguous()?, overwrite)?;
        Ok((y, CrossEntropySaved::Gradient(dx, plan)))
    }
    /// Computes the loss, and the values from which a second pass computes the gradient.
    fn rows(&self, logits: &Tensor, targets: &Tensor) -> Result<(Tensor, CrossEntropySaved)> {
        let (x, targets) = (logits.contiguous()?, targets.contiguous()?);
        let rows = x.shape().rows_cols().0; // x seen as (R, V)
        let device = x.device();
        let (lse, loss) = (x.empty_f32([rows, 2])?, x.empty_f32(targets.shape())?);
        self.losses([&x, &targets], [&lse, &loss], x.shape().last())?;
        match self.reduction {
            Reduction::None => {
                Ok((loss, CrossEntropySaved::Rows(lse, Tensor::ones(device, [1], DType::F32)?)))
            }
            Reduction::Sum => {
                let y = loss.sum(&[], false)?.reshape([])?;
                Ok((y, CrossEntropySaved::Rows(lse, Tensor::ones(device, [1], DType::F32)?)))
            }
            Reduction::Mean => {
                let (y, scale) = self.mean(&loss, &targets, x.dtype())?;
                Ok((y, CrossEntropySaved::Rows(lse, scale)))
            }
        }
    }
    /// Computes lse (R, 2) and loss (R) of contiguous x `(R, V)`; valid targets are below `classes`.
    fn losses(&self, [x, targets]: [&Tensor; 2], [lse, loss]: [&Tensor; 2], classes: usize) -> Result<()> {
        let n = x.shape().last();
        let launch = start("cross_entropy_fwd", x).read(x).read(targets).write(lse).write(loss);
        launch.scalar(n).scalar(self.ignored()).scalar(self.label_smoothing).scalar(classes).run()
    }
    /// Computes the gradients of contiguous x `(R, V)` for `dy`, one or (R), times `scale` (1), into dx, which may be x.
    fn gradients(
        &self,
        [x, targets, lse]: [&Tensor; 3],
        [scale, dy]: [&Tensor; 2],
        dx: &Tensor,
        classes: usize,
    ) -> Result<()> {
        let launch =
            start("cross_entropy_bwd", x).read(x).read(targets).read(lse).read(scale).read(dy).write(dx);
        let step = usize::from(self.reduction == Reduction::None);
        let launch = launch.scalar(x.shape().last()).scalar(self.ignored());
        launch.scalar(self.label_smoothing).scalar(step).scalar(classes).run()
    }
    /// Returns the mean of the losses (R) that are not ignored, and the inverse of their number (1). `dtype` is that of the logits, whose kernels
    /// are compiled anyway.
    pub(super) fn mean(&self, loss: &Tensor, targets: &Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
        let (y, scale) = (loss.empty_f32([])?, loss.empty_f32([1])?);
        let device = loss.device();
        let wg = if device.capabilities().is_cpu() { 1 } else { MEAN_GROUP.min(largest_group(device)) };
        let launch =
            KERNEL.launch("cross_entropy_mean").define("DTYPE", dtype.code()).define("WG", wg).groups(1);
        let launch = launch.read(loss).read(targets).write(&y).write(&scale);
        launch.scalar(loss.count()).scalar(self.ignored()).run()?;
        Ok((y, scale))
    }
    /// Replaces contiguous logits `(R, V)` by the gradients of the rows' losses, times `dy` (R).
    pub(super) fn gradients_of_rows(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        [one, dy]: [&Tensor; 2],
        classes: usize,
    ) -> Result<()> {
        let op = Self { reduction: Reduction::None, ..*self };
        let rows = targets.count();
        let (lse, loss) = (logits.empty_f32([rows, 2])?, logits.empty_f32([rows])?);
        op.losses([logits, targets], [&lse, &loss], classes)?;
        op.gradients([logits, targets, &lse], [one, dy], logits, classes)
    }
    /// Computes the losses (R) of the rows of contiguous logits `(R, V)` into `loss`. With `one`, a tensor of 1, it also computes the gradients of
    /// the losses' sum into the logits' memory. The first `classes` of V may be targets.
    pub(super) fn over_logits(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        loss: &Tensor,
        one: Option<&Tensor>,
        classes: usize,
    ) -> Result<()> {
        let op = Self { reduction: Reduction::Sum, ..*self };
        let in_registers = RegisterPlan::new(logits).filter(|_| !logits.device().capabilities().is_cpu());
        if let (Some(one), Some(plan)) = (one, in_registers) {
            return registers::rows_into(&op, plan, [logits, targets, one], [loss, logits], classes);
        }
        let lse = logits.empty_f32([loss.count(), 2])?;
        op.losses([logits, targets], [&lse, loss], classes)?;
        one.map_or(Ok(()), |one| op.gradients([logits, targets, &lse], [one, one], logits, classes))
    }
}

/// Starts a launch with one work-group per row of x `(R, V)`.
fn start(entry: &'static str, x: &Tensor) -> Launch<'static> {
    let (rows, n) = x.shape().rows_cols();
    let wg = row_group(&KERNEL, x.device(), n);
    let launch = KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("WG", wg).groups(rows);
    vectors_of_16_bytes(launch, x, n)
}

impl Op<2> for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
    type Saved = CrossEntropySaved;
    fn forward(&self, [logits, targets]: [&Tensor; 2]) -> Result<(Tensor, CrossEntropySaved)> {
        match RegisterPlan::of(self, logits) {
            Some(plan) => self.in_registers(plan, logits, targets),
            None => self.rows(logits, targets),
        }
    }
    fn backward(
        &self,
        [logits, targets]: [&Tensor; 2],
        saved: &CrossEntropySaved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 2]> {
        let (lse, scale) = match saved {
            CrossEntropySaved::Gradient(dx, plan) => {
                return Ok([Some(registers::backward(*plan, dx, dy)?), None]);
            }
            CrossEntropySaved::Rows(lse, scale) => (lse, scale),
        };
        let (x, targets, dy) = (logits.contiguous()?, targets.contiguous()?, dy.contiguous()?);
        let dx = x.empty_like()?;
        self.gradients([&x, &targets, lse], [scale, &dy], &dx, x.shape().last())?;
        Ok([Some(dx), None])
    }
    fn reference(&self, [logits, targets]: [&Array; 2]) -> Array {
        let mut losses = Array::zeros(targets.shape.clone());
        let (mut kept, s) = (0.0, f64::from(self.label_smoothing));
        for (r, row) in logits.rows().enumerate() {
            let target = targets.data[r];
            if self.ignore_index.map(f64::from) == Some(target) {
                continue;
            }
            kept += 1.0;
            let top = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let rest = row.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
            let mean = row.iter().map(|v| v - top).sum::<f64>() / row.len() as f64;
            let class = (target >= 0.0 && target < row.len() as f64).then(|| row[target as usize]);
            // Without smoothing, an infinite mean must not contribute.
            let even = if s > 0.0 { s * (rest - mean) } else { 0.0 };
            losses.data[r] = class.map_or(f64::NAN, |x| (1.0 - s) * (top - x + rest) + even);
        }
        let sum = losses.data.iter().sum::<f64>();
        match self.reduction {
            Reduction::None => losses,
            Reduction::Sum => Array::new([], vec![sum]),
            Reduction::Mean => Array::new([], vec![sum / kept]),
        }
    }
    fn calls() -> Vec<Call> {
        let doc = "Cross entropy of logits `(.., V)` and class numbers `(..)`, u32 or i32: the mean over rows, their sum, or each row's with \
                   `reduction` \"none\". Rows with target `ignore_index` are ignored; `label_smoothing` is the share of the target's probability \
                   spread over all classes. The result is f32 for every type. With `overwrite_logits` the gradient may overwrite the logits.";
        let call = Call::new("cross_entropy", doc).inputs(&["logits", "targets"]);
        let call = call.optional_default("ignore_index", -100).default("label_smoothing", 0.0);
        vec![call.choice("reduction", &Reduction::NAMES).default("overwrite_logits", false).run(|a| {
            let ([logits, targets], reduction) = (a.inputs()?, a.get::<String>("reduction")?);
            let options = CrossEntropy {
                ignore_index: a.find("ignore_index")?,
                label_smoothing: a.get("label_smoothing")?,
                reduction: Reduction::named(&reduction),
                overwrite_logits: a.get("overwrite_logits")?,
            };
            cross_entropy(logits, targets, options)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![
            ("ignore_index", self.ignore_index.into()),
            ("label_smoothing", self.label_smoothing.into()),
            ("reduction", Reduction::NAMES[self.reduction as usize].into()),
            ("overwrite_logits", self.overwrite_logits.into()),
        ]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let op = |label_smoothing, reduction| Self { label_smoothing, reduction, ..Self::default() };
        let sample = |op, shape: &[usize]| {
            let n = shape[shape.len() - 1];
            Sample::new(
                op,
                [SampleInput::normal(shape), SampleInput::indices(&shape[..shape.len() - 1], n as u32)],
            )
            .sums(4)
        };
        let masked = |op, values: &[f64]| {
            let targets = SampleInput::values(&[2, 4], values, Some(DType::I32));
            Sample::new(op, [SampleInput::normal(&[2, 4, 70]), targets]).sums(4)
        };
        let far = |op, x| {
            Sample::new(op, [x, SampleInput::indices(&[5], 65)]).sums(4).extreme().step(1e-3).in_order()
        };
        let vocabulary: &[&[usize]] = &[&[4096, 50_304], &[4096]];
        vec![
            sample(op(0.0, Reduction::Mean), &[5, 65]).bench(vocabulary),
            sample(op(0.1, Reduction::Mean), &[2, 3, 37]),
            sample(op(0.0, Reduction::None), &[3, 300]),
            sample(op(0.2, Reduction::Sum), &[4, 9]).light(),
            sample(op(0.1, Reduction::Sum), &[3, 104]),
            masked(op(0.0, Reduction::Mean), &[3.0, -100.0, 69.0, 0.0, -100.0]),
            masked(Self { ignore_index: Some(0), ..op(0.1, Reduction::None) }, &[3.0, 0.0, 69.0]).light(),
            masked(Self { ignore_index: None, ..op(0.0, Reduction::Sum) }, &[1.0, 2.0]).light(),
            far(op(0.0, Reduction::Mean), SampleInput::uniform(&[5, 65], -300.0, 300.0)),
            far(op(0.0, Reduction::Mean), SampleInput::uniform(&[5, 65], -1e4, 1e4)),
            far(op(0.0, Reduction::Mean), SampleInput::shifted(&[5, 65], -1e4)).named("far from zero"),
            sample(op(0.0, Reduction::Mean), &[1, 1]).light(),
            sample(op(0.0, Reduction::None), &[0, 5]).light(),
            sample(op(0.0, Reduction::Sum), &[0, 5]).light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the kernel for GPUs: rows only in registers and partly in local memory, smoothing or none, ignored rows and NaN, a separate buffer and
    /// in place.
    #[test]
    fn held_rows_agree_with_two_passes() {
        let device = crate::suite::test_device().unwrap();
        let cases = [
            (DType::Bf16, 2056, 0.0, RegisterPlan { wg: 32, in_registers: 8, kept: 1 }, Reduction::Mean),
            (DType::F32, 1000, 0.1, RegisterPlan { wg: 64, in_registers: 4, kept: 0 }, Reduction::Sum),
            (DType::Bf16, 72, 0.1, RegisterPlan { wg: 32, in_registers: 1, kept: 0 }, Reduction::Mean),
        ];
        for (dtype, n, label_smoothing, plan, reduction) in cases {
            let hosts = SampleInput::normal(&[5, n]).draw(7, dtype);
            let mut values: Vec<f32> = hosts.data.iter().map(|v| 3.0 * *v as f32).collect();
            values[4 * n + 3] = f32::NAN;
            let source = Tensor::from_f32(&device, [5, n], &values, dtype).unwrap().parameter("logits");
            let last = i32::try_from(n).unwrap() - 1;
            for (targets, finite) in [([0, last, -100, 17, -100], true), ([n as i32, 1, -100, -1, 5], false)]
            {
                let targets = Tensor::from_i32(&device, [5], &targets).unwrap();
                let op = CrossEntropy { label_smoothing, reduction, ..CrossEntropy::default() };
                let dy = Tensor::full(&device, [], 0.5, DType::F32).unwrap();
                let (y, saved) = op.rows(&source, &targets).unwrap();
                let [expected, _] = op.backward([&source, &targets], &saved, &dy).unwrap();
                let (expected, y) = (expected.unwrap().to_vec().unwrap(), y.item().unwrap());
                assert_eq!(y.is_finite(), finite);
                for overwrite in [false, true] {
                    let logits = source.mul_scalar(1.0).unwrap();
                    let x = logits.detach();
                    let (loss, dx) = registers::forward(&op, plan, &x, &targets, overwrite).unwrap();
                    assert_eq!(dx.storage().same(x.storage()), overwrite);
                    let loss = loss.item().unwrap();
                    assert!(
                        (loss - y).abs() <= 1e-5 * y.abs() || (loss.is_nan() && y.is_nan()),
                        "{dtype} {n} {overwrite}: {loss}, expected {y}"
                    );
                    let dx = registers::backward(plan, &dx, &dy).unwrap().to_vec().unwrap();
                    let unit = if dtype == DType::F32 { 1e-6 } else { 1.0 / 128.0 };
                    for (i, (got, want)) in dx.iter().zip(&expected).enumerate() {
                        let near =
                            (got - want).abs() <= unit * want.abs() + 1e-9 || (got.is_nan() && want.is_nan());
                        assert!(near, "{dtype} {n}: element {i} is {got}, expected {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_usual_vocabularies_stay_in_registers() {
        let device = crate::suite::test_device().unwrap();
        let plan = |n: usize, dtype| RegisterPlan::new(&Tensor::empty(&device, [1, n], dtype).unwrap());
        if device.capabilities().max_group >= 1024 && device.capabilities().local_mem >= 48 << 10 {
            assert_eq!(plan(50_304, DType::Bf16), Some(RegisterPlan { wg: 512, in_registers: 8, kept: 5 }));
            assert_eq!(plan(65_536, DType::Bf16), Some(RegisterPlan { wg: 1024, in_registers: 8, kept: 0 }));
        }
        assert_eq!(plan(256, DType::F32), Some(RegisterPlan { wg: 32, in_registers: 2, kept: 0 }));
        assert_eq!(plan(50_257, DType::Bf16), None, "rows do not start at multiples of a vector");
        assert_eq!(plan(256, DType::F16), None);
        assert_eq!(plan(1 << 20, DType::Bf16), None);
    }

    #[test]
    fn logits_that_others_see_are_not_overwritten() {
        let device = crate::suite::test_device().unwrap();
        let leaf = Tensor::ones(&device, [4, 8], DType::F32).unwrap().parameter("leaf");
        let made = leaf.mul_scalar(2.0).unwrap();
        assert!(!leaf.is_unseen() && made.is_unseen());
        let clone = made.clone();
        assert!(!made.is_unseen() && !clone.is_unseen());
        drop(clone);
        let view = made.reshape([8, 4]).unwrap();
        assert!(!made.is_unseen() && !view.is_unseen());
        drop(view);
        let detached = made.detach();
        assert!(!made.is_unseen());
        drop(detached);
        let saved = made.softmax(-1).unwrap();
        assert!(!made.is_unseen() || saved.requires_grad());
        drop(saved);
        assert!(made.is_unseen());
        assert!(!leaf.window(0, [4, 8]).unwrap().is_unseen());
    }

    #[test]
    fn a_target_outside_the_classes_is_nan_in_its_row_alone() {
        let device = crate::suite::test_device().unwrap();
        let logits = Tensor::from_f32(&device, [3, 4], &[0.5; 12], DType::F32).unwrap().parameter("logits");
        let options = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
        for bad in [4, -1, i32::MAX, i32::MIN] {
            logits.set_grad(None);
            let targets = Tensor::from_i32(&device, [3], &[1, bad, -100]).unwrap();
            let loss = cross_entropy(&logits, &targets, options).unwrap();
            let values = loss.to_vec().unwrap();
            assert!(
                (values[0] - 4f32.ln()).abs() < 1e-6 && values[1].is_nan() && values[2] == 0.0,
                "{values:?}"
            );
            loss.backward_with(&Tensor::ones(&device, [3], DType::F32).unwrap()).unwrap();
            let grad = logits.grad().unwrap().to_vec().unwrap();
            assert!(
                grad[..4].iter().all(|g| g.is_finite()) && grad[4..8].iter().all(|g| g.is_nan()),
                "{grad:?}"
            );
            assert_eq!(grad[8..], [0.0; 4]);
        }
    }
}
