//! Pooling of images: maxima and averages of windows, of a fixed size or with a fixed size of the result.

use super::prelude::*;
pub use window::Windows;
use window::{KERNEL, PoolSizes};

mod window;

/// Computes the maximum of each window: x `(N, C, H, W)` → `(N, C, H', W')`, with `H' = (H + 2 padding - dilation (size - 1) - 1) / stride + 1`. It
/// is NaN if the window contains one. The gradient goes to the first of equal pixels. The result is stored with channels last.
///
/// # Errors
/// `Shape` if windows do not fit, or the padding is above half a window; `DType` if x does not have a float type.
pub fn max_pool2d(x: &Tensor, windows: Windows) -> Result<Tensor> {
    MaxPool2d { windows }.apply([x])
}

/// Computes the mean of each window: x `(N, C, H, W)` → `(N, C, H', W')`. Pixels of the padding count as zeros if `include_pad`, otherwise not at
/// all.
///
/// # Errors
/// Errors of [`max_pool2d`]; `Shape` for windows with a dilation.
pub fn avg_pool2d(x: &Tensor, windows: Windows, include_pad: bool) -> Result<Tensor> {
    if windows.step() != [1; 2] {
        return Err(Error::shape(format!("avg_pool2d: {windows:?}, expected a dilation of 1")));
    }
    AvgPool2d { windows, include_pad }.apply([x])
}

/// Returns x `(N, C, H, W)` of any strides as `(N, H, W, C)`.
fn channels_last(x: &Tensor) -> Result<Tensor> {
    x.detach().permute(&[0, 2, 3, 1])?.contiguous()
}

fn channels_first(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 3, 1, 2])
}

/// Applies `f` to each window: the indices within x of the pixels inside, and the number of pixels including the padding.
fn windows_of(x: &Array, windows: &Windows, mut f: impl FnMut(&[usize], usize) -> f64) -> Array {
    let [n, c, h, w] = x.shape.dims4().unwrap_or_default();
    let [rows, columns] = windows.output("", &x.shape, [h, w]).unwrap_or_default();
    let shape = Shape::from([n, c, rows, columns]);
    let [down, across] = windows.step();
    Array::from_fn(shape.clone(), |at| {
        let at = unravel(at, &shape);
        let (h0, h1) = windows.range(0, at[2], h);
        let (w0, w1) = windows.range(1, at[3], w);
        let mut inside = Vec::new();
        let mut count = 0;
        for i in (h0..h1).step_by(down) {
            for j in (w0..w1).step_by(across) {
                count += 1;
                if (0..h.cast_signed()).contains(&i) && (0..w.cast_signed()).contains(&j) {
                    let row = (at[0] * c + at[1]) * h + i.cast_unsigned();
                    inside.push(row * w + j.cast_unsigned());
                }
            }
        }
        f(&inside, count)
    })
}

/// Returns the attributes of windows.
fn attributes(windows: &Windows) -> Attributes {
    match windows {
        Windows::Adaptive { output } => vec![("output", output.as_slice().into())],
        Windows::Sliding { size, stride, padding, .. } => vec![
            ("size", size.as_slice().into()),
            ("stride", stride.as_slice().into()),
            ("padding", padding.as_slice().into()),
        ],
    }
}

/// Parses sliding windows from a call's attributes [default stride: the size].
fn sliding(a: &Args<'_>, dilation: [usize; 2]) -> Result<Windows> {
    let size = a.pair("size")?;
    let stride = if a.get::<Vec<usize>>("stride")?.is_empty() { size } else { a.pair("stride")? };
    Ok(Windows::Sliding { size, stride, padding: a.pair("padding")?, dilation })
}

/// Builds a call with sliding windows.
fn sliding_call(name: &'static str, doc: &'static str) -> Call {
    let call = Call::new(name, doc).inputs(&["x"]).required("size", AttributeKind::Ints);
    call.default("stride", []).default("padding", [0])
}

/// Operation of [`max_pool2d`].
#[derive(Clone)]
pub struct MaxPool2d {
    pub(super) windows: Windows,
}

impl Op<1> for MaxPool2d {
    const NAME: &'static str = "max_pool2d";
    /// Row times columns plus column of each maximum, i32.
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        let sizes = PoolSizes::of(self.called(), x, self.windows, false)?;
        let x = channels_last(x)?;
        let (y, index) = (sizes.result(&x, x.dtype())?, sizes.result(&x, DType::I32)?);
        sizes.run(KERNEL.launch("pool_max_fwd").read(&x).write(&y).write(&index), &y, x.dtype())?;
        Ok((channels_first(&y)?, index))
    }
    fn backward(&self, [x]: [&Tensor; 1], index: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let sizes = PoolSizes::of(self.called(), x, self.windows, false)?;
        let dy = channels_last(dy)?;
        let dx = sizes.gradient(&dy)?;
        sizes.run(KERNEL.launch("pool_max_bwd").read(index).read(&dy).write(&dx), &dx, dy.dtype())?;
        Ok([Some(channels_first(&dx)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        windows_of(x, &self.windows, |inside, _| {
            inside.iter().fold(f64::NEG_INFINITY, |top, i| {
                let v = x.data[*i];
                if v > top || v.is_nan() { v } else { top }
            })
        })
    }
    fn called(&self) -> &'static str {
        if matches!(self.windows, Windows::Adaptive { .. }) { "adaptive_max_pool2d" } else { Self::NAME }
    }
    fn calls() -> Vec<Call> {
        let doc = "Maxima of windows: x `(N, C, H, W)` → `(N, C, H', W')`. Size, stride (by default the size), padding and dilation are one \
                   number or one per axis. A window with a NaN gives NaN; the first of equal pixels gets the gradient.";
        let max = sliding_call(Self::NAME, doc).default("dilation", [1]);
        let max = max.run(|a| max_pool2d(a.inputs::<1>()?[0], sliding(a, a.pair("dilation")?)?));
        let doc = "Maxima of `output` windows, one number or one per axis, as equal in size as possible: x `(N, C, H, W)` → `(N, C, H', W')`.";
        let adaptive =
            Call::new("adaptive_max_pool2d", doc).inputs(&["x"]).required("output", AttributeKind::Ints);
        let adaptive = adaptive
            .run(|a| max_pool2d(a.inputs::<1>()?[0], Windows::Adaptive { output: a.pair("output")? }));
        vec![max, adaptive]
    }
    fn attributes(&self) -> Attributes {
        let mut attributes = attributes(&self.windows);
        if let Windows::Sliding { dilation, .. } = &self.windows {
            attributes.push(("dilation", dilation.as_slice().into()));
        }
        attributes
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], windows| Sample::new(Self { windows }, [SampleInput::distinct(shape)]);
        let uneven = Windows::Sliding { size: [3, 2], stride: [2, 1], padding: [1, 1], dilation: [1, 2] };
        let far = SampleInput::uniform(&[1, 3, 4, 4], -3e38, -1e38);
        vec![
            sample(&[2, 3, 5, 4], uneven),
            sample(&[1, 17, 4, 4], Windows::of(2)).light(),
            sample(&[1, 2, 5, 4], Windows::Adaptive { output: [2, 3] }).light(),
            sample(&[1, 1, 1, 1], Windows::of(1)).light(),
            sample(&[0, 2, 4, 4], Windows::of(2)).light(),
            Sample::new(Self { windows: Windows::of(2) }, [far]).extreme().light(),
        ]
    }
}

/// Operation of [`avg_pool2d`].
#[derive(Clone)]
pub struct AvgPool2d {
    pub(super) windows: Windows,
    pub(super) include_pad: bool,
}

impl Op<1> for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let sizes = PoolSizes::of(self.called(), x, self.windows, self.include_pad)?;
        let x = channels_last(x)?;
        let y = sizes.result(&x, x.dtype())?;
        sizes.run(KERNEL.launch("pool_avg_fwd").read(&x).write(&y), &y, x.dtype())?;
        Ok((channels_first(&y)?, ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let sizes = PoolSizes::of(self.called(), x, self.windows, self.include_pad)?;
        let dy = channels_last(dy)?;
        let dx = sizes.gradient(&dy)?;
        sizes.run(KERNEL.launch("pool_avg_bwd").read(&dy).write(&dx), &dx, dy.dtype())?;
        Ok([Some(channels_first(&dx)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        windows_of(x, &self.windows, |inside, count| {
            let sum: f64 = inside.iter().map(|i| x.data[*i]).sum();
            sum / if self.include_pad { count } else { inside.len() } as f64
        })
    }
    fn called(&self) -> &'static str {
        if matches!(self.windows, Windows::Adaptive { .. }) { "adaptive_avg_pool2d" } else { Self::NAME }
    }
    fn calls() -> Vec<Call> {
        let doc = "Means of windows: x `(N, C, H, W)` → `(N, C, H', W')`. Size, stride (by default the size) and padding are one number or one \
                   per axis; pixels of the padding count as zeros unless `include_pad` is false.";
        let avg = sliding_call(Self::NAME, doc).default("include_pad", true);
        let avg = avg.run(|a| avg_pool2d(a.inputs::<1>()?[0], sliding(a, [1; 2])?, a.get("include_pad")?));
        let doc = "Means of `output` windows, one number or one per axis, as equal in size as possible: x `(N, C, H, W)` → `(N, C, H', W')`.";
        let adaptive =
            Call::new("adaptive_avg_pool2d", doc).inputs(&["x"]).required("output", AttributeKind::Ints);
        let adaptive = adaptive
            .run(|a| avg_pool2d(a.inputs::<1>()?[0], Windows::Adaptive { output: a.pair("output")? }, false));
        vec![avg, adaptive]
    }
    fn attributes(&self) -> Attributes {
        let mut attributes = attributes(&self.windows);
        if let Windows::Sliding { .. } = &self.windows {
            attributes.push(("include_pad", self.include_pad.into()));
        }
        attributes
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], windows, include_pad| {
            Sample::new(Self { windows, include_pad }, [SampleInput::normal(shape)])
        };
        let uneven = Windows::Sliding { size: [3, 2], stride: [2, 1], padding: [1, 1], dilation: [1; 2] };
        let far = SampleInput::uniform(&[1, 3, 4, 4], -1e37, 1e37);
        vec![
            sample(&[2, 3, 5, 4], uneven, false),
            sample(&[1, 17, 5, 4], uneven, true).light().bench(&[&[64, 64, 32, 32]]),
            sample(&[1, 2, 5, 4], Windows::Adaptive { output: [2, 3] }, false).light(),
            sample(&[1, 1, 1, 1], Windows::of(1), true).light(),
            sample(&[0, 2, 4, 4], Windows::of(2), true).light(),
            Sample::new(Self { windows: Windows::of(2), include_pad: true }, [far]).extreme().light(),
        ]
    }
}
