//! Shapes, and layouts: how a shape is stored in memory.

use netcl_device::{Error, Result};
use std::fmt;

/// Sizes of the axes, outermost first. A scalar does not have axes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Returns the sizes.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }
    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }
    /// Returns the number of elements, or `usize::MAX` if it is larger, which no tensor can have.
    pub fn count(&self) -> usize {
        product(&self.0)
    }
    /// Returns rows and columns `(R, N)`, where N is the last axis. A scalar is one row of one element.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.0.split_last() {
            Some((n, outer)) => (product(outer), *n),
            None => (1, 1),
        }
    }
    /// Returns the size of the last axis; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }
    fn exactly<const N: usize>(&self) -> Result<[usize; N]> {
        self.0.as_slice().try_into().map_err(|_| {
            let wanted = netcl_device::counted(N, "axis");
            Error::shape(format!("expected {wanted}, got shape {self}"))
        })
    }
    /// Returns the sizes of exactly two axes.
    pub fn dims2(&self) -> Result<[usize; 2]> {
        self.exactly()
    }
    /// Returns the sizes of exactly three axes.
    pub fn dims3(&self) -> Result<[usize; 3]> {
        self.exactly()
    }
    /// Returns the sizes of exactly four axes.
    pub fn dims4(&self) -> Result<[usize; 4]> {
        self.exactly()
    }
    /// Returns the strides of a contiguous tensor of this shape, in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.0.len()];
        for axis in (1..self.0.len()).rev() {
            strides[axis - 1] = usize::saturating_mul(strides[axis], self.0[axis].max(1));
        }
        strides
    }
    /// Resolves an axis. Negative axes count from the end.
    ///
    /// # Errors
    /// `Shape` if the axis does not exist.
    pub fn axis(&self, op: &str, axis: isize) -> Result<usize> {
        let rank = self.rank().cast_signed();
        let at = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&at) {
            return Ok(at.cast_unsigned());
        }
        let axes = if rank == 1 { "axis" } else { "axes" };
        Err(Error::shape(format!(
            "{op}: axis {axis} is out of range for a tensor of shape {self}, which has {rank} {axes}"
        )))
    }
    /// Resolves the place of a new axis; a negative one counts from after the last.
    ///
    /// # Errors
    /// `Shape` with `op` in its message if `axis` is outside of `-rank - 1..=rank`.
    pub fn new_axis(&self, op: &str, axis: isize) -> Result<usize> {
        let rank = self.rank().cast_signed();
        let at = if axis < 0 { axis + rank + 1 } else { axis };
        if (0..=rank).contains(&at) {
            return Ok(at.cast_unsigned());
        }
        Err(Error::shape(format!(
            "{op}: axis {axis} is out of range for a new axis of a tensor of shape {self}, expected {} to {rank}",
            -rank - 1
        )))
    }
    /// Returns the shape that both broadcast to by NumPy's rules.
    ///
    /// # Errors
    /// `Shape` with the axis that does not match.
    pub fn broadcast(&self, other: &Self, op: &str) -> Result<Self> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Self, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |i| s.0[i]);
        let mut out = Vec::with_capacity(rank);
        for i in 0..rank {
            out.push(match (at(self, i), at(other, i)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                (a, b) => {
                    return Err(Error::shape(format!(
                        "{op}: shapes {self} and {other} do not broadcast: sizes {a} and {b} on axis {i} of the result"
                    )));
                }
            });
        }
        Ok(Self(out))
    }
}

/// Multiplies sizes with saturation.
fn product(sizes: &[usize]) -> usize {
    if sizes.contains(&0) { 0 } else { sizes.iter().fold(1, |n: usize, size| n.saturating_mul(*size)) }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self(dims.to_vec())
    }
}
impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self(dims)
    }
}
impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self(dims.to_vec())
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A shape in memory, with strides and offset in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The shape.
    pub shape: Shape,
    /// Elements between neighbors along each axis; 0 repeats one element.
    pub strides: Vec<usize>,
    /// Index of the first element in the buffer.
    pub offset: usize,
}

impl Layout {
    /// Returns the contiguous layout from the start of a buffer.
    pub fn contiguous(shape: Shape) -> Self {
        let strides = shape.strides();
        Self { shape, strides, offset: 0 }
    }
    /// Returns whether the elements are stored in order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (size, stride) in self.shape.dims().iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != expected {
                return self.shape.count() == 0;
            }
            expected = usize::saturating_mul(expected, *size);
        }
        true
    }
    /// Returns the number of elements from the first to the last that is reached, inclusive.
    pub fn span(&self) -> usize {
        if self.shape.count() == 0 {
            return 0;
        }
        let axes = self.shape.dims().iter().zip(&self.strides);
        axes.fold(1, |span, (n, stride)| (n - 1).saturating_mul(*stride).saturating_add(span))
    }
    /// Returns this layout broadcast to a larger shape: new axes and axes of size 1 repeat. `None` if it does not broadcast, or the shape
    /// has more elements than can be counted.
    pub fn expand(&self, shape: &Shape) -> Option<Self> {
        if shape.count() > isize::MAX.cast_unsigned() {
            return None;
        }
        let new = shape.rank().checked_sub(self.shape.rank())?;
        let mut strides = vec![0; shape.rank()];
        for (i, (size, stride)) in self.shape.dims().iter().zip(&self.strides).enumerate() {
            strides[new + i] = match (*size, shape.dims()[new + i]) {
                (a, b) if a == b => *stride,
                (1, _) => 0,
                _ => return None,
            };
        }
        Some(Self { shape: shape.clone(), strides, offset: self.offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let s = |d: &[usize]| Shape::from(d);
        assert_eq!(s(&[4, 1, 3]).broadcast(&s(&[5, 1]), "add").unwrap(), s(&[4, 5, 3]));
        assert_eq!(s(&[]).broadcast(&s(&[2, 0]), "add").unwrap(), s(&[2, 0]));
        let e = s(&[2, 3]).broadcast(&s(&[4, 3]), "mul").unwrap_err();
        assert!(
            e.message().starts_with("mul: shapes [2, 3] and [4, 3] do not broadcast: sizes 2 and 4"),
            "{e}"
        );
    }

    #[test]
    fn a_count_never_wraps() {
        let s = |d: &[usize]| Shape::from(d);
        assert_eq!(s(&[1 << 62, 4]).count(), usize::MAX);
        assert_eq!(s(&[1 << 62, 4, 0]).count(), 0);
        assert_eq!(s(&[4, 1 << 62, 4]).rows_cols(), (usize::MAX, 4));
        let scalar = Layout::contiguous(Shape::from([1]));
        assert!(scalar.expand(&s(&[1 << 62, 4])).is_none() && scalar.expand(&s(&[1 << 40])).is_some());
        let wide = Layout::contiguous(s(&[1 << 62, 4, 0]));
        assert!(wide.is_contiguous() && wide.span() == 0);
    }

    #[test]
    fn contiguity_ignores_axes_of_one() {
        let mut l = Layout::contiguous(Shape::from([2, 1, 3]));
        assert!(l.is_contiguous());
        l.strides[1] = 77;
        assert!(l.is_contiguous());
        l.strides[0] = 4;
        assert!(!l.is_contiguous());
        assert_eq!(Layout::contiguous(Shape::from([0, 3])).span(), 0);
    }
}
