//! Batch normalization (Ioffe and Szegedy 2015): every channel is normalized by its mean and variance over all images and pixels.

use super::map::row_grid;
use super::prelude::*;
use super::{MultiOp, layer_norm};
use netcl_kernel::Launch;
pub use statistics::{BatchStatistics, batch_statistics};
use strips::Strips;

mod statistics;
mod strips;

static KERNEL: Kernel = Kernel::new("batch_norm", cl_file!("batch_norm.cl"))
    .requires(|device| !strips::runs_on(device))
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Computes x `(N, C, ..)`, gamma `(C)`, beta `(C)` → `(x - mean) / sqrt(variance + eps) · gamma + beta`, and the mean and variance (divided by the
/// number of elements) of each channel over x, f32 `(C)`.
///
/// # Errors
/// `Shape` if x has fewer than two axes or no element, or a parameter not one per channel; `DType` if the types are not the same float.
pub fn batch_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f32) -> Result<[Tensor; 3]> {
    batch_norm_activated(x, gamma, beta, eps, Activation::None)
}

/// Activation that [`batch_norm_activated`] applies to the normalized values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// No activation.
    None,
    /// `max(y, 0)`.
    Relu,
    /// `min(max(y, 0), 6)`.
    Relu6,
}

impl Activation {
    const NAMES: [&'static str; 3] = ["none", "relu", "relu6"];
    fn named(name: &str) -> Self {
        match name {
            "relu" => Self::Relu,
            "relu6" => Self::Relu6,
            _ => Self::None,
        }
    }
    /// Returns the expression of y from x, mean, scale and beta.
    fn forward(self) -> &'static str {
        match self {
            Self::None => "fma(x0 - x1, x2, x3)",
            Self::Relu => "fma(x0 - x1, x2, x3) < 0.0f ? (FV)(0.0f) : fma(x0 - x1, x2, x3)",
            Self::Relu6 => {
                "fma(x0 - x1, x2, x3) < 0.0f ? (FV)(0.0f) : fma(x0 - x1, x2, x3) > 6.0f ? (FV)(6.0f) : fma(x0 - x1, x2, x3)"
            }
        }
    }
    /// Returns the expression of dx from dy, the mean of passed dy, scale, x, mean, b, c, beta. The same value of y determines what passes.
    fn backward(self) -> &'static str {
        match self {
            Self::None => "fma(x0 - x1, x2, fma(x3 - x4, x5, x6))",
            Self::Relu => {
                "fma((fma(x3 - x4, x2, x7) <= 0.0f ? (FV)(0.0f) : x0) - x1, x2, fma(x3 - x4, x5, x6))"
            }
            Self::Relu6 => {
                "fma((fma(x3 - x4, x2, x7) > 0.0f && fma(x3 - x4, x2, x7) < 6.0f ? x0 : (FV)(0.0f)) - x1, x2, fma(x3 - x4, x5, x6))"
            }
        }
    }
    fn apply(self, y: f64) -> f64 {
        match self {
            Self::None => y,
            // A NaN stays a NaN.
            Self::Relu => {
                if y < 0.0 {
                    0.0
                } else {
                    y
                }
            }
            Self::Relu6 => {
                if y.is_nan() {
                    y
                } else {
                    y.clamp(0.0, 6.0)
                }
            }
        }
    }
}

/// Computes [`batch_norm`] followed by an activation in the same passes over memory, forward and backward.
///
/// # Errors
/// Errors of [`batch_norm`].
pub fn batch_norm_activated(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    eps: f32,
    activation: Activation,
) -> Result<[Tensor; 3]> {
    check_channels("batch_norm", x, &[("gamma", gamma), ("beta", beta)])?;
    check::same_float("batch_norm", &[("x", x), ("gamma", gamma), ("beta", beta)])?;
    BatchNorm { eps, activation }.apply([x, gamma, beta])
}

/// Running means and variances of channels, which training stores for inference, f32 `(C)`.
#[derive(Clone)]
pub struct Running {
    /// Moving average of the means.
    pub mean: Tensor,
    /// Moving average of the variances, each divided by one less than the number of elements.
    pub variance: Tensor,
}

impl Running {
    /// Updates the averages: `new = old + momentum · (batch - old)`, as in PyTorch. The statistics come from `count` elements per channel. Off the
    /// tape.
    ///
    /// # Errors
    /// Errors of launches.
    pub fn update(&self, mean: &Tensor, variance: &Tensor, count: usize, momentum: f32) -> Result<()> {
        let unbiased = count as f32 / count.saturating_sub(1).max(1) as f32;
        crate::tape::no_grad(|| {
            map_into("fma((FV)(s0), x1 - x0, x0)", &[&self.mean, mean], &[momentum], &self.mean)?;
            let scaled = [&self.variance, variance];
            map_into("fma((FV)(s0), x1 * s1 - x0, x0)", &scaled, &[momentum, unbiased], &self.variance)
        })
    }
}

/// Computes [`batch_norm`] with given means and variances, f32 `(C)`, for inference.
///
/// # Errors
/// Errors of [`batch_norm`].
pub fn batch_norm_inference(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    running: &Running,
    eps: f32,
) -> Result<Tensor> {
    let op = "batch_norm_inference";
    let Running { mean, variance } = running;
    check_channels(op, x, &[("gamma", gamma), ("beta", beta), ("mean", mean), ("variance", variance)])?;
    check::same_float(op, &[("x", x), ("gamma", gamma), ("beta", beta)])?;
    // Reshape the parameters for broadcasting first: after a lazy convolution, this becomes part of its kernel. It is computed in f32, so that
    // 16-bit storage rounds once.
    let mut dims = vec![1; x.shape().rank() - 1];
    dims[0] = x.dims()[1];
    let laid = |of: &Tensor| of.reshape(dims.clone())?.to_dtype(DType::F32);
    let (gamma, variance) = (laid(gamma)?, laid(variance)?);
    let scale = gamma.mul(&variance.add_scalar(eps)?.rsqrt()?)?;
    let y = x.to_dtype(DType::F32)?.sub(&laid(mean)?)?.mul(&scale)?.add(&laid(beta)?)?;
    y.to_dtype(x.dtype())
}

/// Computes group normalization (Wu and He 2018): x `(N, C, ..)` is normalized by mean and variance of each image over `groups` equal runs of
/// channels, times gamma `(C)` plus beta `(C)`. One channel per group is instance normalization.
///
/// # Errors
/// `Shape` if the number of channels is not a multiple of the groups, or a parameter does not have one element per channel; `DType` if the types
/// are not the same float.
pub fn group_norm(x: &Tensor, groups: usize, gamma: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    check_channels("group_norm", x, &[("gamma", gamma), ("beta", beta)])?;
    check::same_float("group_norm", &[("x", x), ("gamma", gamma), ("beta", beta)])?;
    let (n, c) = (x.dims()[0], x.dims()[1]);
    if groups == 0 || !c.is_multiple_of(groups) {
        return Err(Error::shape(format!(
            "group_norm: {groups} groups of {c} channels of x {}, expected a divisor of the channels",
            x.shape()
        )));
    }
    let pixels: usize = x.dims()[2..].iter().product();
    let each = c / groups * pixels;
    let constant = |value| Tensor::full(x.device(), [each], value, x.dtype());
    let rows = x.reshape([n * groups, each])?;
    let y = layer_norm::layer_norm(&rows, &constant(1.0)?, &constant(0.0)?, eps)?;
    let column = |p: &Tensor| p.reshape([c, 1]);
    y.reshape([n, c, pixels])?.mul(&column(gamma)?)?.add(&column(beta)?)?.reshape(x.shape())
}

/// Computes instance normalization (Ulyanov, Vedaldi and Lempitsky 2016): each channel of each image of x `(N, C, ..)` is normalized by its mean
/// and variance, times gamma `(C)` plus beta `(C)`.
///
/// # Errors
/// Errors of [`group_norm`].
pub fn instance_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    check_channels("instance_norm", x, &[("gamma", gamma), ("beta", beta)])?;
    group_norm(x, x.dims()[1].max(1), gamma, beta, eps)
}

fn check_channels(op: &str, x: &Tensor, parameters: &[(&str, &Tensor)]) -> Result<()> {
    let &[_, channels, ..] = x.dims() else {
        return Err(Error::shape(format!("{op}: x has shape {}, expected (N, C, ..)", x.shape())));
    };
    match parameters.iter().find(|(_, p)| p.dims() != [channels]) {
        None => Ok(()),
        Some((name, p)) => Err(Error::shape(format!(
            "{op}: {name} has shape {}, expected [{channels}], one for each channel of x {}",
            p.shape(),
            x.shape()
        ))),
    }
}

fn check_elements(op: &str, x: &Tensor) -> Result<()> {
    if x.count() > 0 {
        return Ok(());
    }
    Err(Error::shape(format!("{op}: x has shape {}, expected at least one element", x.shape())))
}

/// Returns mean and variance of each channel in f64.
fn moments(x: &Array) -> [Array; 2] {
    let dims = x.shape.dims();
    let (n, channels) = (dims[0], dims[1]);
    let pixels: usize = dims[2..].iter().product();
    let planes = |c: usize| (0..n).map(move |i| &x.data[(i * channels + c) * pixels..][..pixels]);
    let count = (n * pixels) as f64;
    let sum = |c: usize, f: &dyn Fn(f64) -> f64| -> f64 {
        planes(c).map(|plane| plane.iter().map(|x| f(*x)).sum::<f64>()).sum()
    };
    let mean = Array::from_fn([channels], |c| sum(c, &|x| x) / count);
    let var = Array::from_fn([channels], |c| sum(c, &|x| (x - mean.data[c]).powi(2)) / count);
    [mean, var]
}

/// Returns the axes with the channels last.
fn last(rank: usize) -> Vec<usize> {
    (0..rank).filter(|axis| *axis != 1).chain([1]).collect()
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, axis)| inverse[*axis] = i);
    inverse
}

/// Returns x `(N, C, ..)` as `(N, .., C)`, contiguous and off the tape. Copies if the strides differ from this.
fn channels_last(x: &Tensor) -> Result<Tensor> {
    x.detach().permute(&last(x.shape().rank()))?.contiguous()
}

fn channels_first(x: &Tensor) -> Result<Tensor> {
    x.permute(&inverse(&last(x.shape().rank())))
}

/// Division of the rows of a matrix `(R, C)` into parts.
struct Parts {
    rows: usize,
    columns: usize,
    parts: usize,
    each: usize,
    /// Rows that are read twice while they are in a core's first-level cache.
    block: usize,
}

/// Number of elements per block on CPUs.
const BLOCK: usize = 4096;

impl Parts {
    fn of(x: &Tensor) -> Self {
        let (rows, columns) = x.shape().rows_cols();
        let parts = super::sum_parts(x.device(), x.count()).min(rows.div_ceil(16)).max(1);
        let each = rows.div_ceil(parts).max(1);
        let block = if x.device().capabilities().is_cpu() { (BLOCK / columns.max(1)).max(8) } else { each };
        Self { rows, columns, parts: rows.div_ceil(each).max(1), each, block }
    }
    fn start(&self, entry: &'static str, x: &Tensor, lines: usize) -> Launch<'static> {
        let device = x.device();
        let value = |name| Tuning::value(device, &KERNEL, 0, name);
        let (local, mut groups) = row_grid(device, value("WG"), value("VW"), lines, self.columns);
        if device.capabilities().is_cpu() {
            groups[1] = lines;
        }
        KERNEL.launch(entry).define("DTYPE", x.dtype().code()).local(local).groups3(groups)
    }
    fn run(&self, launch: Launch<'static>) -> Result<()> {
        let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
        launch
            .scalar(self.rows)
            .scalar(int(self.columns))
            .scalar(int(self.parts))
            .scalar(self.each)
            .scalar(self.block)
            .run()
    }
    fn empty(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        Ok([x.empty_f32([self.parts, self.columns])?, x.empty_f32([self.parts, self.columns])?])
    }

    /// Computes for each part the mean and the squared distances from it.
    fn part_statistics(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let [part_mean, part_m2] = self.empty(x)?;
        let launch = self.start("batch_stats", x, self.parts).read(x).write(&part_mean).write(&part_m2);
        self.run(launch)?;
        Ok([part_mean, part_m2])
    }

    /// Computes mean and variance of the columns of x, (2, C).
    fn moments(&self, x: &Tensor) -> Result<Tensor> {
        let [part_mean, part_m2] = self.part_statistics(x)?;
        let found = x.empty_f32([2, self.columns])?;
        let launch = self.start("batch_moments", x, 1).read(&part_mean).read(&part_m2).write(&found);
        self.run(launch)?;
        Ok(found)
    }

    /// Computes the same as two tensors.
    fn statistics(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let [part_mean, part_m2] = self.part_statistics(x)?;
        let [mean, var] = [x.empty_f32([self.columns])?, x.empty_f32([self.columns])?];
        let launch = self.start("batch_join", x, 1).read(&part_mean).read(&part_m2).write(&mean).write(&var);
        self.run(launch)?;
        Ok([mean, var])
    }

    /// Sums over the rows the passed dy, and passed dy times normalized x. `columns` are mean, rstd, scale and beta.
    fn gradient_sums(
        &self,
        [x, dy]: [&Tensor; 2],
        columns: [&Tensor; 4],
        activation: Activation,
    ) -> Result<[Tensor; 2]> {
        let [part_dy, part_xdy] = self.empty(x)?;
        let launch = self.start("batch_grad_sums", x, self.parts).define("ACT", activation as i64);
        let launch = columns.into_iter().fold(launch.read(x).read(dy), Launch::read);
        self.run(launch.write(&part_dy).write(&part_xdy))?;
        Ok([part_dy.sum(&[0], false)?, part_xdy.sum(&[0], false)?])
    }
}

/// Operation of [`batch_norm_activated`].
#[derive(Clone)]
pub struct BatchNorm {
    pub(super) eps: f32,
    pub(super) activation: Activation,
}

impl BatchNorm {
    /// Computes the gradients on GPUs; x is stored as (.., C).
    fn by_strips(
        &self,
        [x, gamma, beta]: [&Tensor; 3],
        [mean, rstd]: [&Tensor; 2],
        dy: &Tensor,
        statistics: [Option<&Tensor>; 2],
    ) -> Result<[Option<Tensor>; 3]> {
        let (dy, beta) = (channels_last(dy)?, beta.detach().contiguous()?);
        let strips = Strips::of(x, &[&dy, &beta]);
        let scale = map("x0 * x1", &[gamma, rstd], &[], rstd.shape(), DType::F32)?;
        let share = 1.0 / x.shape().rows_cols().0 as f32;
        let extra = match statistics {
            [None, None] => None,
            [dmean, dvar] => {
                let none = Tensor::zeros(mean.device(), mean.shape(), DType::F32)?;
                let slope =
                    map("2.0f * s0 * x0", &[dvar.unwrap_or(&none)], &[share], mean.shape(), DType::F32)?;
                let more = map("s0 * x0", &[dmean.unwrap_or(&none)], &[share], mean.shape(), DType::F32)?;
                Some([slope, more])
            }
        };
        let extra = extra.as_ref().map(|[slope, more]| [slope, more]);
        let [dx, dgamma, dbeta] =
            strips.gradients(&dy, [mean, rstd, &scale, &beta], self.activation, extra)?;
        Ok([Some(channels_first(&dx)?), Some(dgamma), Some(dbeta)])
    }
}

impl MultiOp<3, 3> for BatchNorm {
    const NAME: &'static str = "batch_norm";
    const NO_EMPTY_SAMPLE: Option<&'static str> = Some("the mean of no elements is undefined");
    /// Mean and 1 / sqrt(variance + eps), f32 (C).
    type Saved = [Tensor; 2];
    fn forward(&self, [x, gamma, beta]: [&Tensor; 3]) -> Result<([Tensor; 3], Self::Saved)> {
        check_elements(Self::NAME, x)?;
        let x = channels_last(x)?;
        if strips::runs_on(x.device().capabilities()) {
            let (gamma, beta) = (gamma.detach().contiguous()?, beta.detach().contiguous()?);
            let strips = Strips::of(&x, &[&gamma, &beta]);
            let [mean, var, rstd, scale] = strips.statistics(&gamma, self.eps)?;
            let y = strips.apply([&mean, &scale, &beta], self.activation)?;
            return Ok(([channels_first(&y)?, mean.clone(), var], [mean, rstd]));
        }
        let [mean, var] = Parts::of(&x).statistics(&x)?;
        let rstd = map("1.0f / sqrt(x0 + s0)", &[&var], &[self.eps], var.shape(), DType::F32)?;
        let scale = map("x0 * x1", &[gamma, &rstd], &[], rstd.shape(), DType::F32)?;
        let inputs = [&x, &mean, &scale, beta];
        let y = map(self.activation.forward(), &inputs, &[], x.shape(), x.dtype())?;
        Ok(([channels_first(&y)?, mean.clone(), var], [mean, rstd]))
    }
    fn backward(
        &self,
        [x, gamma, beta]: [&Tensor; 3],
        [mean, rstd]: &Self::Saved,
        [dy, dmean, dvar]: [Option<&Tensor>; 3],
    ) -> Result<[Option<Tensor>; 3]> {
        let x = channels_last(x)?;
        let shape = mean.shape();
        if let (Some(dy), true) = (dy, strips::runs_on(x.device().capabilities())) {
            return self.by_strips([&x, gamma, beta], [mean, rstd], dy, [dmean, dvar]);
        }
        let parts = Parts::of(&x);
        let none = Tensor::zeros(mean.device(), shape, DType::F32)?;
        let share = 1.0 / parts.rows as f32;
        // dx = a (dy - mean of dy) + b (x - mean) + c per column. Differences come first, since they may be small compared with their terms.
        let b = map("2.0f * s0 * x0", &[dvar.unwrap_or(&none)], &[share], shape, DType::F32)?;
        let c = map("s0 * x0", &[dmean.unwrap_or(&none)], &[share], shape, DType::F32)?;
        let Some(dy) = dy else {
            let dx = map("fma(x0 - x1, x2, x3)", &[&x, mean, &b, &c], &[], x.shape(), x.dtype())?;
            return Ok([Some(channels_first(&dx)?), None, None]);
        };
        let dy = channels_last(dy)?;
        let a = map("x0 * x1", &[gamma, rstd], &[], shape, DType::F32)?;
        // A copy, which is aligned wherever beta is.
        let shift = map("x0", &[beta], &[], shape, DType::F32)?;
        let [sum, product] = parts.gradient_sums([&x, &dy], [mean, rstd, &a, &shift], self.activation)?;
        let b = map("fma(-x1 * x2, s0 * x3, x0)", &[&b, &a, rstd, &product], &[share], shape, DType::F32)?;
        let of_dy = map("s0 * x0", &[&sum], &[share], shape, DType::F32)?;
        let inputs = [&dy, &of_dy, &a, &x, mean, &b, &c, &shift];
        let dx = map(self.activation.backward(), &inputs, &[], x.shape(), x.dtype())?;
        let [dgamma, dbeta] = [product.to_dtype(gamma.dtype())?, sum.to_dtype(beta.dtype())?];
        Ok([Some(channels_first(&dx)?), Some(dgamma), Some(dbeta)])
    }
    fn reference(&self, [x, gamma, beta]: [&Array; 3]) -> [Array; 3] {
        let dims = x.shape.dims();
        let (channels, pixels) = (dims[1], dims[2..].iter().product::<usize>());
        let [mean, var] = moments(x);
        let mut y = x.clone();
        for (at, plane) in y.data.chunks_mut(pixels.max(1)).enumerate() {
            let c = at % channels;
            let scale = gamma.data[c] / (var.data[c] + f64::from(self.eps)).sqrt();
            plane
                .iter_mut()
                .for_each(|x| *x = self.activation.apply((*x - mean.data[c]) * scale + beta.data[c]));
        }
        [y, mean, var]
    }
    fn calls() -> Vec<Call> {
        let doc = "Batch normalization: x `(N, C, ..)` by mean and variance of each channel, times gamma `(C)` plus beta `(C)`. Also returns the \
                   mean and the variance (divided by the number of elements), f32 `(C)`. An activation of y costs nothing here.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "gamma", "beta"]).default("eps", 1e-5);
        let call = call.choice("activation", &Activation::NAMES);
        let train = call.results(&["y", "mean", "variance"]).run_all(|a| {
            let [x, gamma, beta] = a.inputs()?;
            let activation = Activation::named(&a.get::<String>("activation")?);
            batch_norm_activated(x, gamma, beta, a.get("eps")?, activation).map(Into::into)
        });
        let doc =
            "Batch normalization with given means and variances `(C)` of the channels, f32, for inference.";
        let call = Call::new("batch_norm_inference", doc);
        let call = call.inputs(&["x", "gamma", "beta", "mean", "variance"]).default("eps", 1e-5);
        let inference = call.run(|a| {
            let [x, gamma, beta, mean, variance] = a.inputs()?;
            let running = Running { mean: mean.clone(), variance: variance.clone() };
            batch_norm_inference(x, gamma, beta, &running, a.get("eps")?)
        });
        let doc = "Group normalization: x `(N, C, ..)` by mean and variance of each image over `groups` equal runs of channels, times gamma `(C)` \
                   plus beta `(C)`. One channel per group is instance normalization.";
        let call = Call::new("group_norm", doc).inputs(&["x", "gamma", "beta"]);
        let group = call.required("groups", AttributeKind::Int).default("eps", 1e-5).run(|a| {
            let [x, gamma, beta] = a.inputs()?;
            group_norm(x, a.get("groups")?, gamma, beta, a.get("eps")?)
        });
        let doc = "Instance normalization: each channel of each image of x `(N, C, ..)` by its mean and variance, times gamma `(C)` plus beta `(C)`.";
        let call = Call::new("instance_norm", doc).inputs(&["x", "gamma", "beta"]).default("eps", 1e-5);
        let instance = call.run(|a| {
            let [x, gamma, beta] = a.inputs()?;
            instance_norm(x, gamma, beta, a.get("eps")?)
        });
        vec![train, inference, group, instance]
    }
    fn attributes(&self) -> Attributes {
        vec![("eps", self.eps.into()), ("activation", Activation::NAMES[self.activation as usize].into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let of = |activation, shape: &[usize]| {
            let c = &shape[1..2];
            let op = Self { eps: 1e-5, activation };
            // Some of the normalized values are above 6.
            let gamma = SampleInput::uniform(c, 2.0, 5.0);
            let gamma = if activation == Activation::None { SampleInput::normal(c) } else { gamma };
            Sample::new(op, [SampleInput::normal(shape), gamma, SampleInput::normal(c)]).sums(16)
        };
        let sample = |shape: &[usize]| of(Activation::None, shape);
        let inputs = [
            SampleInput::uniform(&[5, 3, 7], -1e4, 1e4),
            SampleInput::normal(&[3]),
            SampleInput::normal(&[3]),
        ];
        let far =
            Sample::new(Self { eps: 1e-5, activation: Activation::None }, inputs).sums(16).extreme().light();
        vec![
            sample(&[3, 5, 2, 4]).bench(&[&[64, 64, 32, 32], &[64], &[64]]),
            sample(&[37, 17]).light(),
            of(Activation::Relu, &[3, 5, 2, 4]),
            of(Activation::Relu6, &[40, 3, 5]),
            // Several blocks per part.
            of(Activation::Relu6, &[700, 19]).light(),
            // Several parts and vectors of columns.
            of(Activation::Relu, &[2, 40, 20, 15]).light(),
            sample(&[1, 1]).light(),
            far,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests PyTorch's rule: the running variance is unbiased, and inference is the formula with the stored values.
    #[test]
    fn running_statistics_follow_their_batches() {
        let device = crate::suite::test_device().unwrap();
        let x: Vec<f32> = (0..12).map(|i| (i * i % 7) as f32).collect();
        let tensor =
            |data: &[f32], shape: &[usize]| Tensor::from_f32(&device, shape, data, DType::F32).unwrap();
        let input = tensor(&x, &[3, 2, 2]);
        let (gamma, beta) = (tensor(&[2.0, 0.5], &[2]), tensor(&[0.1, -1.0], &[2]));
        let running = Running { mean: tensor(&[1.0, 2.0], &[2]), variance: tensor(&[3.0, 4.0], &[2]) };
        let [_, mean, var] = batch_norm(&input, &gamma, &beta, 1e-5).unwrap();
        running.update(&mean, &var, 6, 0.25).unwrap();
        for c in 0..2 {
            let of: Vec<f32> = (0..12).filter(|i| i / 2 % 2 == c).map(|i| x[i]).collect();
            let m = of.iter().sum::<f32>() / 6.0;
            let v = of.iter().map(|x| (x - m).powi(2)).sum::<f32>() / 5.0;
            let (kept_m, kept_v) = ([1.0, 2.0][c] * 0.75 + m * 0.25, [3.0, 4.0][c] * 0.75 + v * 0.25);
            assert!((running.mean.to_vec().unwrap()[c] - kept_m).abs() < 1e-5);
            assert!((running.variance.to_vec().unwrap()[c] - kept_v).abs() < 1e-4);
            let y = batch_norm_inference(&input, &gamma, &beta, &running, 1e-5).unwrap().to_vec().unwrap();
            let scale = [2.0, 0.5][c] / (kept_v + 1e-5).sqrt();
            for i in (0..12).filter(|i| i / 2 % 2 == c) {
                let expected = (x[i] - kept_m) * scale + [0.1, -1.0][c];
                assert!((y[i] - expected).abs() < 1e-4, "[{i}]: {} and {expected}", y[i]);
            }
        }
    }

    /// Tests each image and group separately by the formula.
    #[test]
    fn group_norm_is_of_each_image_and_group() {
        let device = crate::suite::test_device().unwrap();
        let x: Vec<f32> = (0..2 * 4 * 3).map(|i| (i * 5 % 11) as f32).collect();
        let tensor =
            |data: &[f32], shape: &[usize]| Tensor::from_f32(&device, shape, data, DType::F32).unwrap();
        let (gamma, beta) = ([1.0, 2.0, -1.0, 0.5], [0.0, 1.0, 2.0, 3.0]);
        let (g, b) = (tensor(&gamma, &[4]), tensor(&beta, &[4]));
        let y = group_norm(&tensor(&x, &[2, 4, 3]), 2, &g, &b, 1e-5).unwrap().to_vec().unwrap();
        for (i, got) in y.iter().enumerate() {
            let of = &x[i / 6 * 6..i / 6 * 6 + 6];
            let m = of.iter().sum::<f32>() / 6.0;
            let v = of.iter().map(|x| (x - m).powi(2)).sum::<f32>() / 6.0;
            let expected = (x[i] - m) / (v + 1e-5).sqrt() * gamma[i / 3 % 4] + beta[i / 3 % 4];
            assert!((got - expected).abs() < 1e-4, "[{i}]: {got} and {expected}");
        }
        let message = group_norm(&tensor(&x, &[2, 4, 3]), 3, &g, &b, 1e-5).unwrap_err().to_string();
        assert!(message.contains("group_norm: 3 groups of 4 channels of x [2, 4, 3]"), "{message}");
    }
}
