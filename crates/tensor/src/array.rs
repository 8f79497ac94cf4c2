//! f64 arrays on the host for reference implementations. They are meant to be clear, not fast.

use crate::Shape;
use smallvec::{SmallVec, smallvec};

/// Contiguous array of f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Shape.
    pub shape: Shape,
    /// Elements in row-major order.
    pub data: Vec<f64>,
}

impl Array {
    /// Builds an array from a shape and its elements. Missing elements are 0, extra elements are dropped.
    pub fn new(shape: impl Into<Shape>, mut data: Vec<f64>) -> Self {
        let shape = shape.into();
        data.resize(shape.count(), 0.0);
        Self { shape, data }
    }
    /// Builds an array of zeros.
    pub fn zeros(shape: impl Into<Shape>) -> Self {
        Self::new(shape, Vec::new())
    }
    /// Builds an array whose element `i` is `f(i)`.
    pub fn from_fn(shape: impl Into<Shape>, f: impl FnMut(usize) -> f64) -> Self {
        let shape = shape.into();
        let data = (0..shape.count()).map(f).collect();
        Self { shape, data }
    }
    /// Applies `f` elementwise.
    pub fn map(&self, f: impl FnMut(f64) -> f64) -> Self {
        Self { shape: self.shape.clone(), data: self.data.iter().copied().map(f).collect() }
    }
    /// Applies `f` elementwise to both arrays, broadcast to `shape`, which both must fit.
    pub fn zip(&self, other: &Self, shape: &Shape, mut f: impl FnMut(f64, f64) -> f64) -> Self {
        let (a, b) = (self.expand(shape), other.expand(shape));
        let data = a.data.iter().zip(&b.data).map(|(a, b)| f(*a, *b)).collect();
        Self { shape: shape.clone(), data }
    }
    /// Broadcasts to `shape`.
    pub fn expand(&self, shape: &Shape) -> Self {
        if self.shape == *shape {
            return self.clone();
        }
        let mut strides = vec![0; shape.rank() - self.shape.rank()];
        let own = self.shape.dims().iter().zip(self.shape.strides());
        strides.extend(own.map(|(n, stride)| if *n == 1 { 0 } else { stride }));
        self.strided(shape, &strides)
    }
    /// Gathers an array of `shape` whose strides in this array are `strides`.
    fn strided(&self, shape: &Shape, strides: &[usize]) -> Self {
        let mut data = Vec::with_capacity(shape.count());
        let mut at = vec![0; shape.rank()];
        let mut from = 0;
        while data.len() < shape.count() {
            data.push(self.data[from]);
            for (d, n) in shape.dims().iter().enumerate().rev() {
                at[d] += 1;
                from += strides[d];
                if at[d] < *n {
                    break;
                }
                from -= n * strides[d];
                at[d] = 0;
            }
        }
        Self { shape: shape.clone(), data }
    }
    /// Iterates over the rows along the last axis.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let (rows, n) = self.shape.rows_cols();
        (0..rows).map(move |r| &self.data[r * n..(r + 1) * n])
    }
    /// Reorders the axes.
    pub fn permute(&self, axes: &[usize]) -> Self {
        let dims: Vec<usize> = axes.iter().map(|a| self.shape.dims()[*a]).collect();
        let strides = self.shape.strides();
        let strides: Vec<usize> = axes.iter().map(|a| strides[*a]).collect();
        self.strided(&Shape::from(dims), &strides)
    }
}

/// Returns the index on each axis of flat position `i`.
pub fn unravel(mut i: usize, shape: &Shape) -> SmallVec<[usize; 6]> {
    let mut at = smallvec![0; shape.rank()];
    for (d, n) in shape.dims().iter().enumerate().rev() {
        at[d] = i % n.max(&1);
        i /= n.max(&1);
    }
    at
}
