//! Matrices as the kernels see them: sizes and strides in a tensor's memory, with batches merged to at most two axes.

use super::super::prelude::*;
use crate::quant::Blocks;

/// A matrix, or a batch of matrices, in a tensor's memory. A transpose moves no data.
#[derive(Clone)]
pub(in crate::ops) struct Matrix {
    pub tensor: Tensor,
    /// Sizes and strides of the axes before the last two.
    pub batch: Vec<(usize, usize)>,
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl Matrix {
    /// Uses the last two axes of `x` as rows and columns.
    pub fn of(op: &str, name: &str, x: &Tensor) -> Result<Self> {
        let (dims, strides) = (x.dims(), &x.layout().strides);
        let [batch @ .., row, col] = dims else {
            return Err(Error::shape(format!(
                "{op}: {name} has shape {}, expected at least two axes; reshape a vector to (1, n) or (n, 1)",
                x.shape()
            )));
        };
        let at = batch.len();
        Ok(Self {
            tensor: x.detach(),
            batch: batch.iter().copied().zip(strides.iter().copied()).collect(),
            rows: *row,
            cols: *col,
            row_stride: strides[at],
            col_stride: strides[at + 1],
        })
    }
    /// Views `(.., K)` as `(R, K)`: all axes but the last become rows. Copies if the rows do not have a common stride.
    pub fn rows_of(x: &Tensor) -> Result<Self> {
        let (rows, cols) = x.shape().rows_cols();
        let even = |x: &Tensor| {
            let outer = x.dims().len().saturating_sub(1);
            let axes: Vec<_> = (0..outer).map(|i| (x.dims()[i], x.layout().strides[i])).collect();
            merge_all(&axes)
        };
        let (tensor, row_stride) = match even(x) {
            Some(stride) => (x.detach(), stride),
            None => (x.detach().contiguous()?, cols),
        };
        let col_stride = tensor.layout().strides.last().copied().unwrap_or(1);
        Ok(Self { tensor, batch: Vec::new(), rows, cols, row_stride, col_stride })
    }
    /// Returns the transpose (K, N) of quantized weights (N, K), as block-quantized products read it; strides are in bytes.
    pub fn of_blocks(w: &Blocks) -> Self {
        let [cols, rows] = w.dims();
        let (tensor, col_stride) = (w.words().clone(), w.row_bytes());
        Self { tensor, batch: Vec::new(), rows, cols, row_stride: 1, col_stride }
    }
    /// Exchanges rows and columns.
    pub fn transposed(self) -> Self {
        let Self { tensor, batch, rows, cols, row_stride, col_stride } = self;
        Self { tensor, batch, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
    /// Returns the position of the first element, in elements from the buffer's start.
    pub fn offset(&self) -> usize {
        self.tensor.layout().offset
    }
    /// Returns the batch strides after broadcasting to `sizes`.
    fn batch_strides(&self, sizes: &[usize]) -> Vec<usize> {
        let new = sizes.len() - self.batch.len();
        let stride = |i: usize| match i.checked_sub(new).map(|i| self.batch[i]) {
            None | Some((1, _)) => 0,
            Some((_, stride)) => stride,
        };
        (0..sizes.len()).map(stride).collect()
    }
    /// Copies the values to batch axes `sizes`, with every element stored.
    pub(super) fn materialised(&self, sizes: &[usize]) -> Result<Self> {
        let shape: Vec<usize> = sizes.iter().copied().chain([self.rows, self.cols]).collect();
        let mut strides = self.batch_strides(sizes);
        strides.extend([self.row_stride, self.col_stride]);
        let layout = Layout { shape: shape.into(), strides, offset: self.offset() };
        Self::of("matmul", "operand", &self.tensor.with_layout(layout).contiguous()?)
    }
}

/// Returns the stride of the axes as one axis, if they have a common stride. Axes of size 1 are ignored.
fn merge_all(axes: &[(usize, usize)]) -> Option<usize> {
    let mut merged: Option<(usize, usize)> = None;
    for (size, stride) in axes.iter().rev().filter(|(size, _)| *size != 1) {
        merged = match merged {
            None => Some((*size, *stride)),
            Some((inner, step)) if *stride == inner * step => Some((inner * size, step)),
            Some(_) => return None,
        };
    }
    Some(merged.map_or(1, |(_, stride)| stride))
}

/// The problem of one launch: `z0 * z1` products of `(m, k)` and `(k, n)`.
#[derive(Clone)]
pub(in crate::ops) struct MatmulProblem {
    pub a: Matrix,
    pub b: Matrix,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Sizes of the two batch axes.
    pub z: [usize; 2],
    pub a_strides: [usize; 2],
    pub b_strides: [usize; 2],
}

/// Returns the sizes of a product's batch axes.
pub(super) fn batch_sizes(op: &str, a: &Matrix, b: &Matrix) -> Result<Vec<usize>> {
    let sizes = |x: &Matrix| Shape::from(x.batch.iter().map(|(size, _)| *size).collect::<Vec<_>>());
    Ok(sizes(a).broadcast(&sizes(b), op)?.dims().to_vec())
}

impl MatmulProblem {
    /// Builds the product of two matrices without batch axes.
    pub(super) fn one(a: Matrix, b: Matrix) -> Self {
        let (m, n, k) = (a.rows, b.cols, a.cols);
        Self { a, b, m, n, k, z: [1; 2], a_strides: [0; 2], b_strides: [0; 2] }
    }
    /// Merges the batches of `a` and `b` over `sizes` into as few axes as the strides allow. A single shared `b` turns the batch of `a` into more
    /// rows. Batches that do not fit in two axes are copied.
    pub fn new(a: Matrix, b: Matrix, sizes: &[usize]) -> Result<Self> {
        let axes = merged(sizes, &a.batch_strides(sizes), &b.batch_strides(sizes));
        let (m, n, k) = (a.rows, b.cols, a.cols);
        if let [(size, step, 0)] = axes[..]
            && (step == m * a.row_stride || m == 1)
        {
            let row_stride = if m == 1 { step } else { a.row_stride };
            return Ok(Self {
                a: Matrix { rows: m * size, row_stride, ..a },
                b,
                m: m * size,
                n,
                k,
                z: [1; 2],
                a_strides: [0; 2],
                b_strides: [0; 2],
            });
        }
        if axes.len() > 2 {
            return Self::new(a.materialised(sizes)?, b.materialised(sizes)?, sizes);
        }
        let pad = 2 - axes.len();
        let at = |i: usize| if i < pad { (1, 0, 0) } else { axes[i - pad] };
        let (outer, inner) = (at(0), at(1));
        Ok(Self {
            a,
            b,
            m,
            n,
            k,
            z: [outer.0, inner.0],
            a_strides: [outer.1, inner.1],
            b_strides: [outer.2, inner.2],
        })
    }
    /// Returns the transposed product: `b` transposed times `a` transposed.
    pub fn transposed(&self) -> Self {
        let Self { a, b, m, n, k, z, a_strides, b_strides } = self.clone();
        Self {
            a: b.transposed(),
            b: a.transposed(),
            m: n,
            n: m,
            k,
            z,
            a_strides: b_strides,
            b_strides: a_strides,
        }
    }
    /// Returns the number of products.
    pub fn batch(&self) -> usize {
        self.z[0] * self.z[1]
    }
}

/// Returns the batch axes as `(size, stride in a, stride in b)`, with adjacent axes merged if both operands have a common stride.
fn merged(sizes: &[usize], a: &[usize], b: &[usize]) -> Vec<(usize, usize, usize)> {
    let mut axes: Vec<(usize, usize, usize)> = Vec::with_capacity(sizes.len());
    for ((size, a), b) in sizes.iter().zip(a).zip(b) {
        if *size == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(last) if last.1 == size * a && last.2 == size * b => *last = (last.0 * size, *a, *b),
            _ => axes.push((*size, *a, *b)),
        }
    }
    axes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_both_lie_evenly() {
        assert_eq!(merged(&[2, 3], &[12, 4], &[0, 0]), [(6, 4, 0)]);
        assert_eq!(merged(&[2, 1, 3], &[12, 0, 4], &[30, 0, 10]), [(6, 4, 10)]);
        assert_eq!(merged(&[2, 3], &[12, 4], &[0, 5]), [(2, 12, 0), (3, 4, 5)]);
        assert_eq!(merge_all(&[(2, 12), (1, 99), (3, 4)]), Some(4));
        assert_eq!(merge_all(&[(2, 13), (3, 4)]), None);
        assert_eq!(merge_all(&[]), Some(1));
    }
}
