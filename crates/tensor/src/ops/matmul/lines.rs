//! Operand layouts that tensor maps (TMA) can copy, and copies of operands with other layouts.

use super::super::prelude::*;
use super::algorithms::mma::lanes;
use super::arguments::Unused;
use super::tiles::BLOCK_K;
use super::view::Matrix;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::nvidia::{TensorMap, address};

static ALIGNED_LINES: Kernel = Kernel::new("matmul_aligned_lines", cl_file!("matmul_aligned_lines.cl"));

/// Bytes of one line of a block along k.
const LINE: usize = 128;

/// A matrix as tensor maps describe it, with its contiguous axis first.
pub(super) struct Aligned {
    pub along_k: bool,
    dims: [u64; 2],
    stride: usize,
}

impl Aligned {
    /// Describes `x` with k columns (A) or, transposed, k columns (B). Returns `None` if neither axis has the alignment that the hardware needs.
    pub(super) fn of(x: &Matrix) -> Option<Self> {
        let (rows, cols) = (x.rows as u64, x.cols as u64);
        let lanes = lanes(x.tensor.dtype());
        let aligned = |stride: usize, inner: usize| stride.is_multiple_of(lanes) && stride >= inner;
        if !x.offset().is_multiple_of(lanes) {
            return None;
        }
        // A single line needs no aligned stride.
        let one = |count: usize, inner: usize, stride: usize, other: usize| match (count, other) {
            (1, 1) => inner.next_multiple_of(lanes),
            (1, _) => 1,
            _ => stride,
        };
        let row_stride = one(x.rows, x.cols, x.row_stride, x.col_stride);
        match (row_stride, one(x.cols, x.rows, x.col_stride, x.row_stride)) {
            (stride, 1) if aligned(stride, x.cols) => {
                Some(Self { along_k: true, dims: [cols, rows], stride })
            }
            (1, stride) if aligned(stride, x.rows) => {
                Some(Self { along_k: false, dims: [rows, cols], stride })
            }
            _ => None,
        }
    }
    /// Builds the tensor map: blocks of `lines` lines along k, or of 64 columns across it.
    pub(super) fn map(&self, x: &Matrix, lines: usize) -> Result<TensorMap> {
        let size = x.tensor.dtype().size();
        let block = if self.along_k { [(LINE / size) as u32, lines as u32] } else { [64, BLOCK_K as u32] };
        Ok(TensorMap {
            dtype: x.tensor.dtype(),
            address: address(x.tensor.storage())? + (x.offset() * size) as u64,
            dims: self.dims,
            stride: (self.stride * size) as u64,
            block,
        })
    }
}

/// A matrix as lines that [`aligned`] copies.
struct Lines {
    count: usize,
    length: usize,
    stride: usize,
    along_k: bool,
}

impl Lines {
    /// Describes a matrix whose elements are contiguous along one axis.
    fn of(x: &Matrix) -> Option<Self> {
        let (along, across) = ((x.rows, x.cols, x.row_stride, true), (x.cols, x.rows, x.col_stride, false));
        let (count, length, stride, along_k) = match (x.row_stride, x.col_stride) {
            (_, 1) => along,
            (1, _) => across,
            _ => return None,
        };
        Some(Self { count, length, stride, along_k })
    }
    /// Returns the number of 16-byte chunks.
    fn chunks(&self) -> usize {
        self.count * self.length.div_ceil(8)
    }
}

/// Returns the bytes of those matrices that [`aligned`] would copy, or `None` if it cannot copy one.
pub(super) fn uneven(matrices: [&Matrix; 2]) -> Option<usize> {
    let bytes = |x: &Matrix| match Aligned::of(x) {
        Some(_) => Some(0),
        None => Lines::of(x)
            .map(|lines| lines.chunks())
            .filter(|chunks| *chunks < 1 << 31)
            .map(|chunks| 16 * chunks),
    };
    let [a, b] = matrices.map(bytes);
    Some(a? + b?)
}

pub(super) static MODEL: Model = Model {
    name: "matmul_aligned_lines",
    constants: &[
        Constant::new("launch_us", "a launch that copies operands", 8.0).cpu(15.0),
        Constant::new("bytes_per_us", "bytes that it reads and writes", 2e5).cpu(2e4),
    ],
};

/// Returns the estimated microseconds of copying `bytes` bytes.
pub(super) fn cost(device: &Device, bytes: usize) -> f64 {
    let [launch, speed] = MODEL.on(device);
    if bytes == 0 { 0.0 } else { launch + 2.0 * bytes as f64 / speed }
}

/// Returns the same matrices of 16-bit elements in layouts that [`Aligned`] accepts. One launch copies those that need it.
pub(super) fn aligned(matrices: [Matrix; 2]) -> Result<[Matrix; 2]> {
    if matrices.iter().all(|x| Aligned::of(x).is_some()) {
        return Ok(matrices);
    }
    let [x, y] = &matrices;
    let (x_to, y_to) = (copied(x)?, copied(y)?);
    let chunks = [&x_to, &y_to].map(|to| to.as_ref().map_or(0, |(lines, _)| lines.chunks()));
    let launch = ALIGNED_LINES.launch("aligned_lines").read_base(&x.tensor).read_base(&y.tensor);
    let write = |launch: netcl_kernel::Launch<'static>, to: &Option<(Lines, Matrix)>, other: &Matrix| match to
    {
        Some((_, to)) => launch.write(&to.tensor),
        None => launch.write_base(&Unused(&other.tensor)),
    };
    let launch = write(write(launch, &x_to, x), &y_to, y);
    let int = |v: usize| u32::try_from(v).unwrap_or(u32::MAX);
    let sizes =
        [&x_to, &y_to].map(|to| to.as_ref().map_or((1, 1), |(lines, _)| (lines.stride, int(lines.length))));
    let launch = launch.scalar(x.offset()).scalar(y.offset()).scalar(sizes[0].0).scalar(sizes[1].0);
    let launch = launch.scalar(sizes[0].1).scalar(sizes[1].1).scalar(int(chunks[0])).scalar(int(chunks[1]));
    launch.local([256, 1, 1]).items(chunks[0] + chunks[1]).run()?;
    let kept = |x: &Matrix, to: Option<(Lines, Matrix)>| to.map_or_else(|| x.clone(), |(_, to)| to);
    Ok([kept(x, x_to), kept(y, y_to)])
}

/// Allocates an aligned copy of a matrix, if its own layout is not aligned.
fn copied(x: &Matrix) -> Result<Option<(Lines, Matrix)>> {
    if Aligned::of(x).is_some() {
        return Ok(None);
    }
    let Some(lines) = Lines::of(x) else {
        return Err(Error::internal("matmul: neither axis of the matrix is contiguous"));
    };
    let pitch = lines.length.next_multiple_of(8);
    let tensor = Tensor::empty(x.tensor.device(), [lines.count, pitch], x.tensor.dtype())?;
    let (row_stride, col_stride) = if lines.along_k { (pitch, 1) } else { (1, pitch) };
    let to = Matrix { tensor, batch: Vec::new(), rows: x.rows, cols: x.cols, row_stride, col_stride };
    Ok(Some((lines, to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    /// Copies both matrices at once and one alone, along k and across it, unaligned views, and repeated lines.
    #[test]
    fn lines_come_out_even_with_the_same_elements() {
        let device = test_device().unwrap();
        if device.capabilities().max_group < 256 {
            println!(
                "skipped: work-groups have at most {} items, the copies need 256",
                device.capabilities().max_group
            );
            return;
        }
        let data: Vec<f32> = (0..2000).map(|i| (i % 251) as f32).collect();
        let x = Tensor::from_f32(&device, [2000], &data, DType::Bf16).unwrap();
        let matrix = |offset: usize, [rows, cols]: [usize; 2], strides: [usize; 2]| {
            let layout = Layout { shape: [rows, cols].into(), strides: strides.to_vec(), offset };
            Matrix::of("matmul", "x", &x.with_layout(layout)).unwrap()
        };
        let uneven = [
            matrix(0, [5, 13], [13, 1]),
            matrix(3, [6, 9], [1, 11]),
            matrix(8, [7, 16], [17, 1]),
            matrix(1, [3, 8], [8, 1]),
            matrix(1901, [9, 11], [11, 1]),
            matrix(5, [4, 21], [0, 1]),
            matrix(7, [1, 1], [1, 1]),
        ];
        let fine = matrix(16, [4, 24], [24, 1]);
        for line in [matrix(8, [1, 13], [1, 1]), matrix(8, [1, 9], [5, 16]), matrix(0, [13, 1], [1, 1])] {
            assert!(Aligned::of(&line).is_some());
        }
        for (i, m) in uneven.iter().enumerate() {
            let next = &uneven[(i + 1) % uneven.len()];
            for pair in [[m, next], [m, &fine], [&fine, m]] {
                let bytes: usize = pair
                    .iter()
                    .map(|x| if Aligned::of(x).is_some() { 0 } else { 16 * Lines::of(x).unwrap().chunks() })
                    .sum();
                assert_eq!(super::uneven(pair), Some(bytes));
                for (was, is) in pair.iter().zip(aligned(pair.map(Clone::clone)).unwrap()) {
                    assert!(Aligned::of(&is).is_some() && [is.rows, is.cols] == [was.rows, was.cols]);
                    let values = |x: &Matrix| x.materialised(&[]).unwrap().tensor.to_vec().unwrap();
                    assert_eq!(values(&is), values(was));
                }
            }
        }
        assert_eq!(super::uneven([&matrix(0, [4, 4], [2, 3]), &fine]), None);
    }
}
