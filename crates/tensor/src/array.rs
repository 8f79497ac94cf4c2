//! f64 arrays on the host: what references are written in. Clear, not fast.

use crate::Shape;

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
        let new = shape.rank() - self.shape.rank();
        let strides = self.shape.strides();
        Self::from_fn(shape.clone(), |i| {
            let at = unravel(i, shape);
            let index = self
                .shape
                .dims()
                .iter()
                .enumerate()
                .map(|(d, n)| if *n == 1 { 0 } else { at[new + d] * strides[d] });
            self.data[index.sum::<usize>()]
        })
    }
    /// The rows over the last axis.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let (rows, n) = self.shape.rows_cols();
        (0..rows).map(move |r| &self.data[r * n..(r + 1) * n])
    }
    /// Axes in another order.
    pub fn permute(&self, axes: &[usize]) -> Self {
        let dims: Vec<usize> = axes.iter().map(|a| self.shape.dims()[*a]).collect();
        let shape = Shape::from(dims);
        let strides = self.shape.strides();
        Self::from_fn(shape.clone(), |i| {
            let at = unravel(i, &shape);
            self.data[axes.iter().zip(&at).map(|(a, i)| strides[*a] * i).sum::<usize>()]
        })
    }
}

/// Index on each axis of flat position `i`.
pub fn unravel(mut i: usize, shape: &Shape) -> Vec<usize> {
    let mut at = vec![0; shape.rank()];
    for (d, n) in shape.dims().iter().enumerate().rev() {
        at[d] = i % n.max(&1);
        i /= n.max(&1);
    }
    at
}
