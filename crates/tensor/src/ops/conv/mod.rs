//! Convolutions of images, with strides, zero padding, dilation and groups; transposed convolutions; convolutions of sequences.
//!
//! Images are `(N, C, H, W)` with any strides. The kernels compute on `(N, H, W, C)`, so images stored in this order need no copy, and results are
//! stored so too. The matrix of patches is never stored. Sums are f32 for every storage type.

use super::matmul::Tree;
use super::prelude::*;
use algorithms::CONV;
use compute::{channels_first, channels_last};
pub use geometry::Conv2dOptions;
use geometry::{Geometry, Side};
pub use transposed::{ConvTranspose2d, ConvTranspose2dOptions, conv_transpose2d};

mod algorithms;
mod compute;
mod geometry;
mod transposed;

/// Computes a convolution: x `(N, G C, H, W)`, w `(G O, C, I, J)`, bias `(G O)` → `(N, G O, H', W')`
/// with `H' = (H + 2 padding - dilation (I - 1) - 1) / stride + 1`. It is the cross-correlation of PyTorch's `conv2d`. The result is stored with
/// channels last.
///
/// # Errors
/// `Shape` if channels, groups or the kernel do not fit; `DType` if the operands are not floats of one type.
pub fn conv2d(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, options: Conv2dOptions) -> Result<Tensor> {
    let op = Conv2d { options, bias: bias.is_some() };
    op.geometry("conv2d", x, w, bias)?;
    op.apply([x, w, bias.unwrap_or(&w.detach())])
}

/// Computes x `(N, G C, T)`, w `(G O, C, K)`, bias `(G O)` → `(N, G O, T')`: [`conv2d`] of images with one row.
///
/// # Errors
/// Errors of [`conv2d`].
pub fn conv1d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    (stride, padding, dilation, groups): (usize, usize, usize, usize),
) -> Result<Tensor> {
    x.dims3().map_err(|e| e.context("conv1d: x"))?;
    w.dims3().map_err(|e| e.context("conv1d: w"))?;
    let options =
        Conv2dOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
    let y = conv2d(&x.unsqueeze(2)?, &w.unsqueeze(2)?, bias, options).map_err(|e| e.context("conv1d"))?;
    y.squeeze(2)
}

/// Returns every algorithm for `conv2d(x, w)` with its estimate, or the reason why it does not apply. Nothing runs.
///
/// # Errors
/// Errors of [`conv2d`].
pub fn explain(x: &Tensor, w: &Tensor, options: Conv2dOptions) -> Result<Vec<super::Row>> {
    let g = Conv2d { options, bias: false }.geometry("conv2d", x, w, None)?;
    compute::request(&g, x, w, |request| CONV.explain(request))
}

/// Operation of [`conv2d`].
#[derive(Clone)]
pub struct Conv2d {
    pub(super) options: Conv2dOptions,
    /// Whether the third input is a bias.
    pub(super) bias: bool,
}

impl Conv2d {
    /// Builds a convolution; `bias` says whether the third input is a bias.
    pub(crate) fn new(options: Conv2dOptions, bias: bool) -> Self {
        Self { options, bias }
    }
    /// Returns the shape of its result.
    pub(crate) fn shape(&self, inputs: &[&Tensor]) -> Result<Shape> {
        let [x, w, bias] = *inputs else { return Err(Error::internal("conv2d: not three inputs")) };
        let g = self.geometry(Self::NAME, x, w, self.bias.then_some(bias))?;
        let [h, width] = g.sides;
        Ok([g.batch, g.groups * g.places, h.places, width.places].into())
    }
    /// Computes the result, or an expression of it, into the contiguous y `(N, H', W', G O)`, off the tape.
    pub(crate) fn computed(
        &self,
        y: &Tensor,
        [x, w, bias]: [&Tensor; 3],
        tree: Option<&Tree<'_>>,
    ) -> Result<()> {
        let bias = self.bias.then_some(bias);
        let g = self.geometry(Self::NAME, x, w, bias)?;
        compute::forward_into(&g, (&channels_last(x)?, w, bias), y, tree)
    }

    fn geometry(&self, op: &str, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Geometry> {
        check::same_float(op, &[("x", x), ("w", w)])?;
        let [n, channels, height, width] = x.dims4().map_err(|e| e.context(format!("{op}: x")))?;
        let [outputs, c, taps_h, taps_w] = w.dims4().map_err(|e| e.context(format!("{op}: w")))?;
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        self.options.check(op)?;
        if Some(channels) != c.checked_mul(groups) || !outputs.is_multiple_of(groups) {
            return Err(Error::shape(format!(
                "{op}: x {} has {channels} channels and w {} is for {c} in each of {}, expected the same number, and output channels that are a \
                 multiple of the groups",
                x.shape(),
                w.shape(),
                counted(groups, "group")
            )));
        }
        if let Some(bias) = bias {
            check::same_float(op, &[("x", x), ("bias", bias)])?;
            if bias.dims() != [outputs] {
                return Err(Error::shape(format!(
                    "{op}: bias has shape {}, expected [{outputs}], the output channels of w {}",
                    bias.shape(),
                    w.shape()
                )));
            }
        }
        let side = |i: usize, image: usize, taps: usize| {
            let places = Side::places(image, taps, stride[i], padding[i], dilation[i]).ok_or_else(|| {
                Error::shape(format!(
                    "{op}: w {} with dilation {dilation:?} does not fit x {} with padding {padding:?}; pad more",
                    w.shape(),
                    x.shape()
                ))
            })?;
            Ok(Side { image, places, taps, stride: stride[i], padding: padding[i], dilation: dilation[i] })
        };
        let sides = [side(0, height, taps_h)?, side(1, width, taps_w)?];
        check_sizes(op, x, &sides)?;
        Ok(Geometry { batch: n, groups, image: c, places: outputs / groups, sides })
    }
}

/// Checks that coordinates fit the kernels' 32-bit integers.
fn check_sizes(op: &str, x: &Tensor, sides: &[Side; 2]) -> Result<()> {
    let largest = |s: &Side| s.image.max(s.places).max(s.padding).max(s.taps.saturating_mul(s.dilation));
    match sides.iter().map(largest).max() {
        Some(size) if size >= 1 << 28 => Err(Error::shape(format!(
            "{op}: x {} reaches {size} pixels along an axis, expected less than {}; split it",
            x.shape(),
            1 << 28
        ))),
        _ => Ok(()),
    }
}

impl Op<3> for Conv2d {
    const NAME: &'static str = "conv2d";
    type Saved = ();
    fn forward(&self, [x, w, bias]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let bias = self.bias.then_some(bias);
        let g = self.geometry(Self::NAME, x, w, bias)?;
        Ok((channels_first(&compute::forward(&g, &channels_last(x)?, w, bias)?)?, ()))
    }
    fn term(&self, inputs: [&Tensor; 3]) -> Result<Option<Term>> {
        self.shape(&inputs)?;
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        Ok(Some(Term::Convolution { stride, padding, dilation, groups, bias: self.bias }))
    }
    fn backward(&self, [x, w, bias]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let g = self.geometry(Self::NAME, x, w, None)?;
        let dy = channels_last(dy)?;
        let dx = match x.requires_grad() {
            true => Some(channels_first(&compute::backward(&g, &dy, w, None)?)?),
            false => None,
        };
        let dw = match w.requires_grad() {
            true => Some(compute::weights(&g, &channels_last(x)?, &dy, w)?),
            false => None,
        };
        let db = match self.bias && bias.requires_grad() {
            true => Some(dy.sum(&[0, 1, 2], false)?),
            false => None,
        };
        Ok([dx, dw, db])
    }
    fn reference(&self, [x, w, bias]: [&Array; 3]) -> Array {
        let [n, channels, height, width] = four(x);
        let [outputs, c, taps_h, taps_w] = four(w);
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        let places = |i: usize, image, taps| {
            Side::places(image, taps, stride[i], padding[i], dilation[i]).unwrap_or_default()
        };
        let (rows, columns) = (places(0, height, taps_h), places(1, width, taps_w));
        let mut y = Array::zeros([n, outputs, rows, columns]);
        // Process a row of pixels at a time, tap by tap: central differences evaluate this thousands of times.
        for (at, row) in y.data.chunks_mut(columns.max(1)).enumerate() {
            let (n, o, y) = (at / (outputs * rows), at / rows % outputs, at % rows);
            row.fill(if self.bias { bias.data[o] } else { 0.0 });
            let first = n * channels + o / (outputs / groups) * c;
            for (c_at, i, j) in taps(c, taps_h, taps_w) {
                let h = (y * stride[0] + i * dilation[0]).wrapping_sub(padding[0]);
                if h < height {
                    let pixels = ((first + c_at) * height + h) * width;
                    let tap = w.data[((o * c + c_at) * taps_h + i) * taps_w + j];
                    let places = (stride[1], j * dilation[1], padding[1]);
                    add_tap(row, &x.data[pixels..pixels + width], tap, places);
                }
            }
        }
        y
    }
    fn given<'a>(&self, [x, w, bias]: [&'a Tensor; 3]) -> Vec<Option<&'a Tensor>> {
        vec![Some(x), Some(w), self.bias.then_some(bias)]
    }
    fn calls() -> Vec<Call> {
        let doc = "Cross-correlation of images: x `(N, G C, H, W)`, w `(G O, C, I, J)`, bias `(G O)` → `(N, G O, H', W')`. Stride, padding and \
                   dilation are one number or one per axis; images may have any strides, and the result is stored with channels last.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "w"]).optional_inputs(&["bias"]);
        let call = call.default("stride", [1]).default("padding", [0]).default("dilation", [1]);
        let conv2d = call.default("groups", 1).run(|a| {
            let [x, w] = a.inputs()?;
            conv2d(x, w, a.optional("bias"), options(a)?)
        });
        let doc = "Cross-correlation of sequences: x `(N, G C, T)`, w `(G O, C, K)`, bias `(G O)` → `(N, G O, T')`.";
        let call = Call::new("conv1d", doc).inputs(&["x", "w"]).optional_inputs(&["bias"]);
        let call = call.default("stride", 1).default("padding", 0).default("dilation", 1);
        let conv1d = call.default("groups", 1).run(|a| {
            let [x, w] = a.inputs()?;
            let options = (a.get("stride")?, a.get("padding")?, a.get("dilation")?, a.get("groups")?);
            conv1d(x, w, a.optional("bias"), options)
        });
        vec![conv2d, conv1d]
    }
    fn attributes(&self) -> Attributes {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        vec![
            ("stride", stride.as_slice().into()),
            ("padding", padding.as_slice().into()),
            ("dilation", dilation.as_slice().into()),
            ("groups", groups.into()),
        ]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |x: [usize; 4], w: [usize; 4], bias: bool, options: Conv2dOptions| {
            let inputs = [SampleInput::normal(&x), SampleInput::normal(&w), SampleInput::normal(&[w[0]])];
            Sample::new(Self { options, bias }, inputs).sums((w[1] * w[2] * w[3]).max(32))
        };
        let plain = Conv2dOptions::default();
        let uneven = Conv2dOptions { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 1 };
        let far = [
            SampleInput::uniform(&[1, 2, 4, 4], -1e15, 1e15),
            SampleInput::uniform(&[2, 2, 3, 3], -1e15, 1e15),
            SampleInput::uniform(&[2], -1e30, 1e30),
        ];
        vec![
            sample([2, 3, 5, 4], [4, 3, 3, 3], true, uneven),
            sample([1, 4, 5, 5], [6, 2, 3, 2], false, plain.stride(2).padding(1).groups(2)).light(),
            sample([1, 4, 5, 4], [4, 1, 3, 3], true, plain.padding(1).groups(4)).named("depthwise"),
            // Vectors of channels with a remainder, and dilated rows of taps.
            sample([2, 37, 9, 8], [37, 1, 5, 3], false, plain.stride(2).padding(1).groups(37)).light(),
            sample([3, 132, 4, 5], [132, 1, 3, 3], true, plain.padding(1).groups(132)).light(),
            sample([2, 3, 3, 3], [4, 3, 1, 1], true, plain).named("product").light(),
            sample([1, 2, 5, 5], [3, 2, 1, 1], false, plain.stride(3)).light(),
            sample([1, 1, 9, 7], [2, 1, 3, 3], false, plain.stride(3).dilation(2).padding(2)).light(),
            // A multiple of eight channels, as tensor cores require, and images with few channels.
            sample([2, 16, 6, 5], [24, 16, 3, 3], true, plain.stride(2).padding(1)).in_order(),
            sample([1, 3, 7, 6], [8, 3, 3, 3], true, plain.stride(2).padding(1)).in_order(),
            // Adjacent taps and whole vectors of channels.
            sample([1, 16, 6, 7], [32, 16, 3, 3], true, plain.padding(1)).light(),
            // Whole panels, and channels that the gradient of weights reads in place.
            sample([1, 8, 4, 4], [33, 8, 1, 2], true, plain).light(),
            sample([1, 1, 1, 1], [1, 1, 1, 1], true, plain.padding(1))
                .light()
                .bench(&[&[64, 64, 32, 32], &[64, 64, 3, 3], &[64]])
                .bench(&[&[64, 256, 8, 8], &[256, 256, 3, 3], &[256]]),
            sample([0, 2, 4, 4], [3, 2, 3, 3], true, plain).light(),
            Sample::new(Self { options: plain.padding(1), bias: true }, far).sums(18).extreme().light(),
        ]
    }
}

/// Returns the sizes of a reference's axes.
fn four(x: &Array) -> [usize; 4] {
    x.shape.dims4().unwrap_or_default()
}

/// Adds a tap's products with a row of an image to a row of the result: position i uses pixel i * stride + offset - padding, if it exists.
fn add_tap(row: &mut [f64], pixels: &[f64], tap: f64, (stride, offset, padding): (usize, usize, usize)) {
    let first = padding.saturating_sub(offset).div_ceil(stride);
    let begin = first * stride + offset - padding;
    let inside = row.iter_mut().skip(first).zip(pixels.iter().skip(begin).step_by(stride));
    for (sum, pixel) in inside {
        *sum += pixel * tap;
    }
}

/// Iterates over channels and taps in the order of a sum.
fn taps(c: usize, height: usize, width: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..c).flat_map(move |c| (0..height).flat_map(move |i| (0..width).map(move |j| (c, i, j))))
}

/// Parses the attributes that all convolutions have.
fn options(a: &Args<'_>) -> Result<Conv2dOptions> {
    Ok(Conv2dOptions {
        stride: a.pair("stride")?,
        padding: a.pair("padding")?,
        dilation: a.pair("dilation")?,
        groups: a.get("groups")?,
    })
}
