//! f64 arrays on the host: what references are written in. Clear, not fast.

use crate::Shape;
use smallvec::{SmallVec, smallvec};

/// A contiguous array of f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Shape.
    pub shape: Shape,
    /// Elements, last axis fastest.
    pub data: Vec<f64>,
}

impl Array {
    /// From a shape and its elements; missing ones are 0, extra ones are dropped.
    pub fn new(shape: impl Into<Shape>, mut data: Vec<f64>) -> Self {
        let shape = shape.into();
        data.resize(shape.count(), 0.0);
        Self { shape, data }
    }
    /// All zeros.
    pub fn zeros(shape: impl Into<Shape>) -> Self {
        Self::new(shape, Vec::new())
    }
    /// Element `i` becomes `f(i)`.
    pub fn from_fn(shape: impl Into<Shape>, f: impl FnMut(usize) -> f64) -> Self {
        let shape = shape.into();
        let data = (0..shape.count()).map(f).collect();
        Self { shape, data }
    }
    /// Element by element.
    pub fn map(&self, f: impl FnMut(f64) -> f64) -> Self {
        Self { shape: self.shape.clone(), data: self.data.iter().copied().map(f).collect() }
    }
    /// Element by element over both, broadcast to `shape`, which both must fit.
    pub fn zip(&self, other: &Self, shape: &Shape, mut f: impl FnMut(f64, f64) -> f64) -> Self {
        let (a, b) = (self.expand(shape), other.expand(shape));
        let data = a.data.iter().zip(&b.data).map(|(a, b)| f(*a, *b)).collect();
        Self { shape: shape.clone(), data }
    }
    /// Broadcast to `shape`.
    pub fn expand(&self, shape: &Shape) -> Self {
        if self.shape == *shape {
            return self.clone();
        }
        let mut strides = vec![0; shape.rank() - self.shape.rank()];
        let own = self.shape.dims().iter().zip(self.shape.strides());
        strides.extend(own.map(|(n, stride)| if *n == 1 { 0 } else { stride }));
        self.strided(shape, &strides)
    }
    /// Shaped `shape`, each element from where its index times `strides` says.
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
    /// The rows over the last axis.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let (rows, n) = self.shape.rows_cols();
        (0..rows).map(move |r| &self.data[r * n..(r + 1) * n])
    }
    /// Axes in another order.
    pub fn permute(&self, axes: &[usize]) -> Self {
        let dims: Vec<usize> = axes.iter().map(|a| self.shape.dims()[*a]).collect();
        let strides = self.shape.strides();
        let strides: Vec<usize> = axes.iter().map(|a| strides[*a]).collect();
        self.strided(&Shape::from(dims), &strides)
    }
}

/// Index on each axis of flat position `i`.
pub fn unravel(mut i: usize, shape: &Shape) -> SmallVec<[usize; 6]> {
    let mut at = smallvec![0; shape.rank()];
    for (d, n) in shape.dims().iter().enumerate().rev() {
        at[d] = i % n.max(&1);
        i /= n.max(&1);
    }
    at
}
