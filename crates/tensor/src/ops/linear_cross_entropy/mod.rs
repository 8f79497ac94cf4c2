//! A linear map to classes followed by the cross entropy, without storing the logits of all rows at once.
//!
//! The rows are processed in chunks. A chunk's logits are computed, replaced in place by their gradient, and multiplied into the gradients of rows
//! and weight. They are freed before the next chunk. For a vocabulary of 50304 and 65536 rows this takes 0.8 GB instead of 6.6 (Hsu et al. 2024
//! describe the same for one GPU kernel). The forward computes everything; the backward multiplies by `dy` and by the inverse of the number of
//! rows, or by 1 for a sum. Both are on the device. f16 gradients keep their digits, because the loss scale is applied before they are divided by that
//! number.
//!
//! Without a reduction the gradient of each row's loss is known only in the backward, which computes the logits of each chunk again.

mod of_blocks;

pub use of_blocks::{linear_cross_entropy_of_blocks, rows_of_head};

use super::cross_entropy::{CrossEntropy, Reduction};
use super::join::cat;
use super::matmul::{Epilogue, MatmulProblem, Matrix, accumulate, product, run};
use super::prelude::*;
use crate::tape;
use netcl_device::Capabilities;

/// Maximum bytes of logits at a time, and their share of the device's memory.
const LOGITS: usize = 1 << 30;
const LOGITS_SHARE: usize = 16;
/// Minimum rows of a chunk. Tensors with one element per row then start at valid offsets of sub-buffers on any device.
const MIN_CHUNK_ROWS: usize = 256;

/// Options of [`linear_cross_entropy`]; the defaults are PyTorch's.
#[derive(Clone, Copy, Debug)]
pub struct LinearCrossEntropy {
    /// Rows with this target are ignored.
    pub ignore_index: Option<i32>,
    /// Share of the target's probability that is spread over all classes, from 0 to 1.
    pub label_smoothing: f32,
    /// Mean or sum of the rows' losses, or the loss of each row.
    pub reduction: Reduction,
    /// Rows per chunk, a power of two of at least 256 [default: chosen by the memory of their logits].
    pub chunk: Option<usize>,
    /// Whether gradients will be needed. [`linear_cross_entropy`] determines this itself.
    pub(crate) gradients: bool,
}

impl Default for LinearCrossEntropy {
    fn default() -> Self {
        Self {
            ignore_index: Some(-100),
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
            chunk: None,
            gradients: true,
        }
    }
}

/// Computes the mean cross entropy of `x weightᵀ` over the rows that are not ignored, or the sum. Takes x `(.., C)`, weight `(V, C)`, targets `(..)`
/// u32 or i32 → an f32 scalar for every dtype. Without reduction the result is `(..)`, 0 for ignored rows. If all rows are ignored, the mean is NaN and the sum is 0. An
/// invalid target makes the loss NaN.
///
/// # Errors
/// `Shape` if C differs, targets do not have the shape of x without its last axis, or `label_smoothing` is not from 0 to 1. Also `Shape` if the chunk
/// is not a power of two of at least 256; `DType` if x and weight are not floats of one type or targets are not integers.
pub fn linear_cross_entropy(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    options: LinearCrossEntropy,
) -> Result<Tensor> {
    let op = LinearCrossEntropy::NAME;
    check::same_float(op, &[("x", x), ("weight", weight)])?;
    check::indices(op, "targets", targets)?;
    let [v, c] = weight.dims2().map_err(|e| e.context(format!("{op}: weight")))?;
    let Some((last, outer)) = x.dims().split_last() else {
        return Err(Error::shape(format!("{op}: x is a scalar, expected (.., C)")));
    };
    if *last != c {
        return Err(Error::shape(format!(
            "{op}: the last axis of x {} is {last}, expected {c}, the last axis of weight [{v}, {c}]",
            x.shape()
        )));
    }
    if targets.dims() != outer {
        return Err(Error::shape(format!(
            "{op}: targets has shape {}, expected {outer:?}, the shape of x {} without its last axis",
            targets.shape(),
            x.shape()
        )));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        return Err(Error::shape(format!(
            "{op}: label_smoothing is {}, expected 0 to 1",
            options.label_smoothing
        )));
    }
    if let Some(chunk) = options.chunk.filter(|chunk| *chunk < MIN_CHUNK_ROWS || !chunk.is_power_of_two()) {
        return Err(Error::shape(format!(
            "{op}: chunk is {chunk}, expected a power of two of at least {MIN_CHUNK_ROWS}"
        )));
    }
    LinearCrossEntropy { gradients: tape::records(&[x, weight]), ..options }.apply([x, weight, targets])
}

/// Values saved by the forward: gradients of the sum of all rows' losses, and the factor that makes it a mean.
pub struct LinearCrossEntropySaved {
    /// Gradient of x (R, C).
    dx: Option<Tensor>,
    /// Gradient of the weight (V, C); f32 if it was summed over several chunks.
    dweight: Option<Tensor>,
    /// Factor (1).
    scale: Tensor,
}

impl LinearCrossEntropy {
    /// Returns the default options with another reduction.
    pub fn with(reduction: Reduction) -> Self {
        Self { reduction, ..Self::default() }
    }
    /// Returns the rows per chunk for a vocabulary of `v` on a device with these capabilities, which limit the logits in memory.
    pub fn rows(&self, device: &Capabilities, v: usize, dtype: DType) -> usize {
        let memory = usize::try_from(device.global_mem).unwrap_or(usize::MAX);
        let fit = LOGITS.min(memory / LOGITS_SHARE) / v.saturating_mul(dtype.size()).max(1);
        self.chunk.unwrap_or_else(|| (1 << fit.max(1).ilog2()).max(MIN_CHUNK_ROWS))
    }
    fn loss(&self) -> CrossEntropy {
        let Self { ignore_index, label_smoothing, reduction, .. } = *self;
        CrossEntropy { ignore_index, label_smoothing, reduction, overwrite_logits: false }
    }
}

impl LinearCrossEntropy {
    /// Computes the gradients of the rows' losses for `dy` `(..)`: the logits of each chunk again, and their gradients.
    fn backward_of_rows(
        &self,
        [x, weight, targets]: [&Tensor; 3],
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (rows, c) = x.shape().rows_cols();
        let (device, classes) = (x.device(), weight.dims2()?[0]);
        let padded = padded(weight, self.label_smoothing)?;
        let (weight_even, bias) =
            padded.as_ref().map_or((weight, None), |(weight, bias)| (weight, Some(bias)));
        let v = weight_even.dims2()?[0];
        let (targets, dy) = (targets.contiguous()?.reshape([rows])?, dy.contiguous()?.reshape([rows])?);
        let flat = x.detach().contiguous()?.reshape([rows, c])?;
        let dx = x.requires_grad().then(|| flat.empty_like()).transpose()?;
        let dweight =
            weight.requires_grad().then(|| Tensor::zeros(device, [v, c], DType::F32)).transpose()?;
        let one = Tensor::ones(device, [1], DType::F32)?;
        let w = Matrix::of(Self::NAME, "weight", weight_even)?;
        let epilogue = Epilogue { bias, ..Epilogue::NONE };
        let chunk = self.rows(device.capabilities(), v, x.dtype());
        for first in (0..rows).step_by(chunk) {
            let n = chunk.min(rows - first);
            let part = Matrix::rows_of(&flat.slice(0, first..first + n)?)?;
            let logits = product(part.clone(), w.clone().transposed(), &epilogue)?;
            let (targets, dy) = (rows_of(&targets, first, n)?, rows_of(&dy, first, n)?);
            self.loss().gradients_of_rows(&logits, &targets, [&one, &dy], classes)?;
            let dlogits = Matrix::rows_of(&logits)?;
            if let Some(dx) = &dx {
                let problem = MatmulProblem::new(dlogits.clone(), w.clone(), &[])?;
                run(&rows_of(dx, first, n)?, &problem, &Epilogue::NONE, false)?;
            }
            if let Some(dweight) = &dweight {
                accumulate(dweight, &MatmulProblem::new(dlogits.transposed(), part, &[])?, first == 0)?;
            }
        }
        let typed = |gradient: Tensor, of: &Tensor| gradient.to_dtype(of.dtype())?.reshape(of.shape());
        let dweight = dweight.map(|dweight| dweight.slice(0, 0..classes)).transpose()?;
        Ok([dx.map(|dx| typed(dx, x)).transpose()?, dweight.map(|dw| typed(dw, weight)).transpose()?, None])
    }
}

/// The number of classes is padded to a multiple of this. Rows of 16-bit logits then start at multiples of 16 bytes, as fast products require.
/// With fewer classes than [`MIN_ROWS_FOR_COPY`], the padded copy of the weight is not worthwhile.
const ALIGNED_CLASSES: usize = 8;
const MIN_ROWS_FOR_COPY: usize = 1024;

/// Pads the weight to a multiple of [`ALIGNED_CLASSES`] classes, with a bias that excludes the added ones: their logits are -infinity, their
/// gradients zero. Returns `None` if the classes are aligned, or few, or used by label smoothing.
fn padded(weight: &Tensor, smoothing: f32) -> Result<Option<(Tensor, Tensor)>> {
    let ([v, c], dtype) = (weight.dims2()?, weight.dtype());
    if dtype == DType::F32 || v.is_multiple_of(ALIGNED_CLASSES) || v < MIN_ROWS_FOR_COPY || smoothing > 0.0 {
        return Ok(None);
    }
    let (device, more) = (weight.device(), v.next_multiple_of(ALIGNED_CLASSES) - v);
    let rows = cat(&[&weight.detach(), &Tensor::zeros(device, [more, c], dtype)?], 0)?;
    let never = Tensor::full(device, [more], f32::NEG_INFINITY, dtype)?;
    Ok(Some((rows, cat(&[&Tensor::zeros(device, [v], dtype)?, &never], 0)?)))
}

/// Returns rows `first..first + n` of contiguous x, as a tensor that kernels can bind from its first element.
fn rows_of(x: &Tensor, first: usize, n: usize) -> Result<Tensor> {
    if n == x.dims()[0] {
        return Ok(x.clone());
    }
    let row: usize = x.dims()[1..].iter().product();
    x.window(first * row, [&[n], &x.dims()[1..]].concat())
}

impl Op<3> for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";
    type Saved = LinearCrossEntropySaved;
    fn forward(&self, [x, weight, targets]: [&Tensor; 3]) -> Result<(Tensor, LinearCrossEntropySaved)> {
        let (rows, c) = x.shape().rows_cols(); // x seen as (R, C)
        let (device, classes) = (x.device(), weight.dims2()?[0]);
        let padded = padded(weight, self.label_smoothing)?;
        let (weight_even, bias) =
            padded.as_ref().map_or((weight, None), |(weight, bias)| (weight, Some(bias)));
        let v = weight_even.dims2()?[0];
        let (targets, loss) = (targets.contiguous()?.reshape([rows])?, x.empty_f32([rows])?);
        let flat = x.detach().contiguous()?.reshape([rows, c])?;
        let chunk = self.rows(device.capabilities(), v, x.dtype());
        let later = self.reduction == Reduction::None;
        let wants = |input: &Tensor| self.gradients && !later && input.requires_grad();
        let dx = if wants(x) { Some(flat.empty_like()?) } else { None };
        let dweight = match wants(weight) {
            true if rows > chunk => Some(Tensor::empty(device, [v, c], DType::F32)?),
            // Zeros, because the inputs are empty.
            true if rows == 0 => Some(Tensor::zeros(device, [v, c], x.dtype())?),
            true => Some(Tensor::empty(device, [v, c], x.dtype())?),
            false => None,
        };
        let one = match dx.is_some() || dweight.is_some() {
            true => Some(Tensor::ones(device, [1], DType::F32)?),
            false => None,
        };
        let w = Matrix::of(Self::NAME, "weight", weight_even)?;
        let epilogue = Epilogue { bias, ..Epilogue::NONE };
        for first in (0..rows).step_by(chunk) {
            let n = chunk.min(rows - first);
            let part = Matrix::rows_of(&flat.slice(0, first..first + n)?)?; // (n, C)
            let logits = product(part.clone(), w.clone().transposed(), &epilogue)?; // (n, V)
            let (targets, loss) = (rows_of(&targets, first, n)?, rows_of(&loss, first, n)?);
            self.loss().over_logits(&logits, &targets, &loss, one.as_ref(), classes)?;
            let dlogits = Matrix::rows_of(&logits)?;
            if let Some(dx) = &dx {
                let problem = MatmulProblem::new(dlogits.clone(), w.clone(), &[])?;
                run(&rows_of(dx, first, n)?, &problem, &Epilogue::NONE, false)?;
            }
            if let Some(dweight) = &dweight {
                let problem = MatmulProblem::new(dlogits.transposed(), part, &[])?;
                match rows > chunk {
                    true => accumulate(dweight, &problem, first == 0)?,
                    false => run(dweight, &problem, &Epilogue::NONE, false).map(drop)?,
                }
            }
        }
        let dweight = dweight.map(|dweight| dweight.slice(0, 0..classes)).transpose()?;
        let (y, scale) = match self.reduction {
            Reduction::Mean => self.loss().mean(&loss, &targets, x.dtype())?,
            Reduction::None => {
                let (_, outer) = x.dims().split_last().unwrap_or((&0, &[]));
                (loss.reshape(outer)?, Tensor::ones(device, [1], DType::F32)?)
            }
            Reduction::Sum => (loss.sum(&[], false)?.reshape([])?, Tensor::ones(device, [1], DType::F32)?),
        };
        Ok((y, LinearCrossEntropySaved { dx, dweight, scale }))
    }
    fn backward(
        &self,
        [x, weight, targets]: [&Tensor; 3],
        saved: &LinearCrossEntropySaved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        if !self.gradients {
            return Err(Error::internal(format!("{}: the forward did not compute gradients", Self::NAME)));
        }
        if self.reduction == Reduction::None {
            return self.backward_of_rows([x, weight, targets], dy);
        }
        let factor = map("x0 * x1", &[&saved.scale, dy], &[], saved.scale.shape(), DType::F32)?;
        let scaled = |gradient: &Option<Tensor>, of: &Tensor| {
            let times =
                |g: &Tensor| map("x0 * x1", &[g, &factor], &[], g.shape(), of.dtype())?.reshape(of.shape());
            gradient.as_ref().map(times).transpose()
        };
        Ok([scaled(&saved.dx, x)?, scaled(&saved.dweight, weight)?, None])
    }
    fn reference(&self, [x, weight, targets]: [&Array; 3]) -> Array {
        let (rows, c) = x.shape.rows_cols();
        let v = weight.shape.dims()[0];
        let dot = |i: usize| {
            let (row, class) = (i / v, i % v);
            (0..c).map(|j| x.data[row * c + j] * weight.data[class * c + j]).sum()
        };
        let flat = Array::new([rows], targets.data.clone());
        if self.reduction == Reduction::None {
            let losses = self.loss().reference([&Array::from_fn([rows, v], dot), &flat]);
            return Array::new(targets.shape.clone(), losses.data);
        }
        self.loss().reference([&Array::from_fn([rows, v], dot), &flat])
    }
    fn calls() -> Vec<Call> {
        let doc = "Mean cross entropy of `x weightᵀ` with x `(.., C)`, weight `(V, C)` and class numbers `(..)`, or the sum. The logits are never in \
                   memory all at once: they are computed `chunk` rows at a time, a power of two of at least 256, by default chosen automatically.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "weight", "targets"]);
        let call = call.optional_default("ignore_index", -100).default("label_smoothing", 0.0);
        let call = call.optional("chunk", AttributeKind::Int).choice("reduction", &Reduction::NAMES);
        vec![call.run(|a| {
            let ([x, weight, targets], reduction) = (a.inputs()?, a.get::<String>("reduction")?);
            let options = LinearCrossEntropy {
                ignore_index: a.find("ignore_index")?,
                label_smoothing: a.get("label_smoothing")?,
                reduction: Reduction::named(&reduction),
                chunk: a.find("chunk")?,
                ..LinearCrossEntropy::default()
            };
            linear_cross_entropy(x, weight, targets, options)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![
            ("ignore_index", self.ignore_index.into()),
            ("label_smoothing", self.label_smoothing.into()),
            ("chunk", self.chunk.into()),
            ("reduction", Reduction::NAMES[self.reduction as usize].into()),
        ]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |op: Self, x: &[usize], v: usize, targets: SampleInput| {
            let c = x[x.len() - 1];
            Sample::new(op, [SampleInput::normal(x), SampleInput::normal(&[v, c]), targets])
                .sums(4 * c.max(v))
        };
        let plain = |x: &[usize], v: usize| {
            sample(Self::default(), x, v, SampleInput::indices(&x[..x.len() - 1], v as u32))
        };
        let chunked =
            |label_smoothing| Self { label_smoothing, chunk: Some(MIN_CHUNK_ROWS), ..Self::default() };
        let masked = SampleInput::values(&[2, 301], &[3.0, -100.0, 1.0, 0.0, -100.0], Some(DType::I32));
        vec![
            plain(&[5, 7], 9).bench(&[&[16_384, 768], &[50_304, 768], &[16_384]]),
            // Sizes that tensor cores accept, and that a GPU's groups can hold.
            sample(
                Self { label_smoothing: 0.1, ..Self::default() },
                &[2, 12, 16],
                40,
                SampleInput::indices(&[2, 12], 40),
            ),
            // Several chunks, the last one shorter.
            sample(chunked(0.0), &[600, 3], 5, SampleInput::indices(&[600], 5)).in_order(),
            sample(chunked(0.1), &[2, 301, 2], 4, masked.clone()).light(),
            sample(Self { reduction: Reduction::Sum, ..chunked(0.0) }, &[2, 301, 2], 4, masked.clone())
                .in_order()
                .light(),
            sample(Self { reduction: Reduction::None, ..chunked(0.0) }, &[2, 301, 2], 4, masked).in_order(),
            // All rows ignored: the sum is 0, and so are the gradients.
            sample(
                Self { reduction: Reduction::Sum, ..Self::default() },
                &[3, 2],
                4,
                SampleInput::values(&[3], &[-100.0], Some(DType::I32)),
            )
            .light(),
            Sample::new(
                Self::default(),
                [
                    SampleInput::uniform(&[5, 7], -300.0, 300.0),
                    SampleInput::normal(&[9, 7]),
                    SampleInput::indices(&[5], 9),
                ],
            )
            .sums(4 * 9)
            .extreme()
            .step(1e-4)
            .light(),
            plain(&[1, 1], 1).light(),
            plain(&[4, 0], 3).light(),
        ]
    }
}

#[cfg(test)]
mod tests;
