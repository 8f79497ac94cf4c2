//! Windows of pooling, and their launches.

use super::super::map::row_grid;
use super::super::prelude::*;
use netcl_kernel::Launch;

pub(super) static KERNEL: Kernel =
    Kernel::new("pool", cl_file!("pool.cl")).tune(&[("WG", &[128]), ("VW", &[4])]).tune_cpu(&[("VW", &[0])]);

/// The pixels of each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Windows of one size, at each multiple of a stride.
    Sliding {
        /// Rows and columns of a window.
        size: [usize; 2],
        /// Pixels between two windows.
        stride: [usize; 2],
        /// Pixels around the image that are ignored, or count as zeros in averages.
        padding: [usize; 2],
        /// Distance between pixels of a window; 1 for averages.
        dilation: [usize; 2],
    },
    /// One window per pixel of the result, as equal in size as possible.
    Adaptive {
        /// Rows and columns of the result.
        output: [usize; 2],
    },
}

impl Windows {
    /// Returns windows of `size` that do not overlap.
    pub fn of(size: usize) -> Self {
        Self::sliding(size, size, 0)
    }
    /// Returns square windows.
    pub fn sliding(size: usize, stride: usize, padding: usize) -> Self {
        Self::Sliding { size: [size; 2], stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] }
    }

    /// Returns the rows and columns of the result for an image `(H, W)`.
    pub(super) fn output(&self, op: &str, x: &Shape, image: [usize; 2]) -> Result<[usize; 2]> {
        match *self {
            Self::Adaptive { output } if output.contains(&0) || image.contains(&0) => {
                Err(Error::shape(format!("{op}: {output:?} windows on x {x}, expected at least one of each")))
            }
            Self::Adaptive { output } => Ok(output),
            Self::Sliding { size, stride, padding, dilation } => {
                let along = |i: usize| {
                    let reach = dilation[i].checked_mul(size[i].checked_sub(1)?)?.checked_add(1)?;
                    let room = image[i].checked_add(padding[i].checked_mul(2)?)?.checked_sub(reach)?;
                    let fits = dilation[i] > 0 && padding[i] <= size[i] / 2 && image[i] < 1 << 28;
                    room.checked_div(stride[i]).filter(|_| fits).map(|n| n + 1)
                };
                let output = along(0).zip(along(1)).map(|(h, w)| [h, w]);
                output.ok_or_else(|| {
                    Error::shape(format!(
                        "{op}: {self:?} do not fit x {x}, expected a window within the padded image, steps of at least 1 and at most half a \
                         window of padding"
                    ))
                })
            }
        }
    }

    /// Returns the first pixel of window `o` and one past its last; both may be outside of the image. For references.
    pub(super) fn range(&self, axis: usize, o: usize, input: usize) -> (isize, isize) {
        match *self {
            Self::Adaptive { output } => {
                let (first, end) = (o * input / output[axis], ((o + 1) * input).div_ceil(output[axis]));
                (first.cast_signed(), end.cast_signed())
            }
            Self::Sliding { size, stride, padding, dilation } => {
                let first = (o * stride[axis]).cast_signed() - padding[axis].cast_signed();
                (first, first + (dilation[axis] * (size[axis] - 1) + 1).cast_signed())
            }
        }
    }
    /// Returns the distance between pixels of a window.
    pub(super) fn step(&self) -> [usize; 2] {
        match *self {
            Self::Adaptive { .. } => [1; 2],
            Self::Sliding { dilation, .. } => dilation,
        }
    }
}

/// Sizes of a pooling: images `(N, H, W, C)`, results `(N, h, w, C)`.
pub(super) struct PoolSizes {
    pub windows: Windows,
    pub batch: usize,
    pub channels: usize,
    pub image: [usize; 2],
    pub output: [usize; 2],
    pub include_pad: bool,
}

impl PoolSizes {
    /// Returns the sizes for x `(N, C, H, W)`.
    pub fn of(op: &str, x: &Tensor, windows: Windows, include_pad: bool) -> Result<Self> {
        check::float(op, "x", x)?;
        let [batch, channels, height, width] = x.dims4().map_err(|e| e.context(format!("{op}: x")))?;
        let output = windows.output(op, x.shape(), [height, width])?;
        Ok(Self { windows, batch, channels, image: [height, width], output, include_pad })
    }
    /// Allocates the result.
    pub fn result(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let [h, w] = self.output;
        Tensor::empty(x.device(), [self.batch, h, w, self.channels], dtype)
    }
    /// Allocates a gradient of the image.
    pub fn gradient(&self, dy: &Tensor) -> Result<Tensor> {
        let [h, w] = self.image;
        Tensor::empty(dy.device(), [self.batch, h, w, self.channels], dy.dtype())
    }
    /// Runs a kernel with bound memory, over the pixels of its output `written`.
    pub fn run(&self, launch: Launch<'static>, written: &Tensor, dtype: DType) -> Result<()> {
        if written.count() == 0 {
            return Ok(());
        }
        let device = written.device();
        let value = |name| Tuning::value(device, &KERNEL, 0, name);
        let pixels = written.count() / self.channels;
        let (local, groups) = row_grid(device, value("WG"), value("VW"), pixels, self.channels);
        let (size, stride, padding, dilation, adaptive) = match self.windows {
            Windows::Sliding { size, stride, padding, dilation } => (size, stride, padding, dilation, 0),
            Windows::Adaptive { .. } => ([1; 2], [1; 2], [0; 2], [1; 2], 1),
        };
        let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
        let launch = launch.define("DTYPE", dtype.code()).local(local).groups3(groups);
        let launch = launch.scalar(pixels).scalar(int(self.channels));
        let pairs = [self.image, self.output, size, stride, padding, dilation];
        let launch = pairs.into_iter().flatten().fold(launch, |launch, v| launch.scalar(int(v)));
        launch.scalar(adaptive).scalar(i32::from(self.include_pad)).run()
    }
}
