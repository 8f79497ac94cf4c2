//! Transposed convolutions: the gradient of an image as a separate operation.

use super::super::prelude::*;
use super::compute::{self, channels_first, channels_last};
use super::geometry::{Conv2dOptions, Geometry, Side};
use super::{check_sizes, four, options, taps};

/// Options of a transposed convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvTranspose2dOptions {
    /// Options of the convolution whose transpose this is.
    pub of: Conv2dOptions,
    /// Rows and columns added to the result; less than the stride or the dilation.
    pub output_padding: [usize; 2],
}

/// Computes a transposed convolution: x `(N, G C, H, W)`, w `(G C, O, I, J)`, bias `(G O)` → `(N, G O, H', W')` with
/// `H' = (H - 1) stride - 2 padding + dilation (I - 1) + output_padding + 1`, like PyTorch's `conv_transpose2d`. The result is stored with channels
/// last.
///
/// # Errors
/// `Shape` if channels, groups or options do not fit; `DType` if the operands are not floats of one type.
pub fn conv_transpose2d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    options: ConvTranspose2dOptions,
) -> Result<Tensor> {
    let op = ConvTranspose2d { options, bias: bias.is_some() };
    op.geometry(x, w, bias)?;
    op.apply([x, w, bias.unwrap_or(&w.detach())])
}

/// Operation of [`conv_transpose2d`].
#[derive(Clone)]
pub struct ConvTranspose2d {
    pub(in crate::ops) options: ConvTranspose2dOptions,
    /// Whether the third input is a bias.
    pub(in crate::ops) bias: bool,
}

impl ConvTranspose2d {
    /// Returns the size of the result along axis `i`, or `None` if the sizes do not fit.
    fn size(&self, i: usize, input: usize, taps: usize) -> Option<usize> {
        let Conv2dOptions { stride, padding, dilation, .. } = self.options.of;
        let reach = dilation[i].checked_mul(taps.checked_sub(1)?)?;
        let steps = input.checked_sub(1)?.checked_mul(stride[i])?;
        let whole = steps.checked_add(reach)?.checked_add(self.options.output_padding[i])?.checked_add(1)?;
        whole.checked_sub(padding[i].checked_mul(2)?).filter(|size| *size > 0)
    }

    fn geometry(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Geometry> {
        let op = Self::NAME;
        check::same_float(op, &[("x", x), ("w", w)])?;
        let [n, channels, height, width] = x.dims4().map_err(|e| e.context("conv_transpose2d: x"))?;
        let [inputs, o, taps_h, taps_w] = w.dims4().map_err(|e| e.context("conv_transpose2d: w"))?;
        let Conv2dOptions { stride, padding, dilation, groups } = self.options.of;
        self.options.of.check(op)?;
        if channels != inputs || !inputs.is_multiple_of(groups) {
            return Err(Error::shape(format!(
                "{op}: x {} has {channels} channels and w {} is for {inputs}, expected the same number, a multiple of {}",
                x.shape(),
                w.shape(),
                counted(groups, "group")
            )));
        }
        if let Some(bias) = bias {
            check::same_float(op, &[("x", x), ("bias", bias)])?;
            if bias.dims() != [o * groups] {
                return Err(Error::shape(format!(
                    "{op}: bias has shape {}, expected [{}], the output channels of w {} in {}",
                    bias.shape(),
                    o * groups,
                    w.shape(),
                    counted(groups, "group")
                )));
            }
        }
        let side = |i: usize, places: usize, taps: usize| {
            let extra = self.options.output_padding[i];
            let image = self.size(i, places, taps).filter(|_| extra < stride[i].max(dilation[i]));
            let image = image.ok_or_else(|| {
                Error::shape(format!(
                    "{op}: x {} and w {} with {:?} give an empty result; expected a size above 0 and output_padding below stride or dilation",
                    x.shape(),
                    w.shape(),
                    self.options
                ))
            })?;
            Ok(Side { image, places, taps, stride: stride[i], padding: padding[i], dilation: dilation[i] })
        };
        let sides = [side(0, height, taps_h)?, side(1, width, taps_w)?];
        check_sizes(op, x, &sides)?;
        Ok(Geometry { batch: n, groups, image: o, places: inputs / groups, sides })
    }
}

impl Op<3> for ConvTranspose2d {
    const NAME: &'static str = "conv_transpose2d";
    type Saved = ();
    fn forward(&self, [x, w, bias]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let bias = self.bias.then_some(bias);
        let g = self.geometry(x, w, bias)?;
        Ok((channels_first(&compute::backward(&g, &channels_last(x)?, w, bias)?)?, ()))
    }
    fn backward(&self, [x, w, bias]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let g = self.geometry(x, w, None)?;
        let dy = channels_last(dy)?;
        let dx = match x.requires_grad() {
            true => Some(channels_first(&compute::forward(&g, &dy, w, None)?)?),
            false => None,
        };
        let dw = match w.requires_grad() {
            true => Some(compute::weights(&g, &dy, &channels_last(x)?, w)?),
            false => None,
        };
        let db = match self.bias && bias.requires_grad() {
            true => Some(dy.sum(&[0, 1, 2], false)?),
            false => None,
        };
        Ok([dx, dw, db])
    }
    fn reference(&self, [x, w, bias]: [&Array; 3]) -> Array {
        let [n, inputs, height, width] = four(x);
        let [_, o, taps_h, taps_w] = four(w);
        let Conv2dOptions { stride, padding, dilation, groups } = self.options.of;
        let size = |i, input, taps| self.size(i, input, taps).unwrap_or_default();
        let (rows, columns) = (size(0, height, taps_h), size(1, width, taps_w));
        let each = rows * columns;
        let outputs = o * groups;
        let mut y = Array::from_fn([n, outputs, rows, columns], |at| {
            if self.bias { bias.data[at / each.max(1) % outputs.max(1)] } else { 0.0 }
        });
        for (at, value) in x.data.iter().enumerate() {
            let at = unravel(at, &x.shape);
            let group = at[1] / (inputs / groups);
            for (o_at, i, j) in taps(o, taps_h, taps_w) {
                let h = (at[2] * stride[0] + i * dilation[0]).wrapping_sub(padding[0]);
                let v = (at[3] * stride[1] + j * dilation[1]).wrapping_sub(padding[1]);
                if h < rows && v < columns {
                    let to = ((at[0] * outputs + group * o + o_at) * rows + h) * columns + v;
                    y.data[to] += value * w.data[((at[1] * o + o_at) * taps_h + i) * taps_w + j];
                }
            }
        }
        y
    }
    fn given<'a>(&self, [x, w, bias]: [&'a Tensor; 3]) -> Vec<Option<&'a Tensor>> {
        vec![Some(x), Some(w), self.bias.then_some(bias)]
    }
    fn calls() -> Vec<Call> {
        let doc = "Transposed convolution of images: x `(N, G C, H, W)`, w `(G C, O, I, J)`, bias `(G O)` → `(N, G O, H', W')`, the gradient of \
                   conv2d's image. Stride, padding, dilation and output_padding are one number or one per axis.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "w"]).optional_inputs(&["bias"]);
        let call = call.default("stride", [1]).default("padding", [0]).default("dilation", [1]);
        let call = call.default("groups", 1).default("output_padding", [0]);
        vec![call.run(|a| {
            let [x, w] = a.inputs()?;
            let output_padding = a.pair("output_padding")?;
            let options = ConvTranspose2dOptions { of: options(a)?, output_padding };
            conv_transpose2d(x, w, a.optional("bias"), options)
        })]
    }
    fn attributes(&self) -> Attributes {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options.of;
        vec![
            ("stride", stride.as_slice().into()),
            ("padding", padding.as_slice().into()),
            ("dilation", dilation.as_slice().into()),
            ("groups", groups.into()),
            ("output_padding", self.options.output_padding.as_slice().into()),
        ]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |x: [usize; 4], w: [usize; 4], bias: bool, options: ConvTranspose2dOptions| {
            let outputs = w[1] * options.of.groups;
            let inputs = [SampleInput::normal(&x), SampleInput::normal(&w), SampleInput::normal(&[outputs])];
            Sample::new(Self { options, bias }, inputs).sums((w[0] * w[2] * w[3]).max(32))
        };
        let plain = ConvTranspose2dOptions::default();
        let uneven = ConvTranspose2dOptions {
            of: Conv2dOptions { stride: [2, 3], padding: [1, 0], dilation: [2, 1], groups: 2 },
            output_padding: [1, 2],
        };
        let far = [
            SampleInput::uniform(&[1, 2, 3, 3], -1e15, 1e15),
            SampleInput::uniform(&[2, 2, 2, 2], -1e15, 1e15),
            SampleInput::uniform(&[2], -1e30, 1e30),
        ];
        vec![
            sample([2, 4, 3, 3], [4, 2, 3, 2], true, uneven).in_order(),
            sample([1, 3, 4, 3], [3, 4, 3, 3], false, plain).light(),
            sample([1, 1, 1, 1], [1, 1, 1, 1], true, plain).light(),
            sample([0, 2, 3, 3], [2, 3, 3, 3], true, plain).light(),
            Sample::new(Self { options: plain, bias: true }, far).sums(18).extreme().light(),
        ]
    }
}
