//! Expressions, as users write them.

use super::node::{NodeKind, Nodes, ReductionKind, binary_row, unary_of, unary_row};
use super::show;
use crate::{DType, Error, Result, Shape};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A deferred tensor: a node of an expression tree. Its methods are those of [`Tensor`](crate::Tensor), and shapes are broadcast.
#[derive(Clone)]
pub struct Expr {
    nodes: Rc<RefCell<Nodes>>,
    id: usize,
}

macro_rules! unary {
    ($($name:ident),+; $($of_scalar:ident),+) => {
        $(#[doc = concat!("As [`Tensor::", stringify!($name), "`](crate::Tensor::", stringify!($name), ").")]
        pub fn $name(&self) -> Result<Self> { self.unary(stringify!($name), &[]) })+
        $(#[doc = concat!("As [`Tensor::", stringify!($of_scalar), "`](crate::Tensor::", stringify!($of_scalar), ").")]
        pub fn $of_scalar(&self, s: f32) -> Result<Self> { self.unary(stringify!($of_scalar), &[s]) })+
    };
}
macro_rules! binary {
    ($($name:ident),+) => {
        $(#[doc = concat!("As [`Tensor::", stringify!($name), "`](crate::Tensor::", stringify!($name), ").")]
        pub fn $name(&self, other: &Self) -> Result<Self> { self.binary(stringify!($name), other) })+
    };
}

impl Expr {
    pub(super) fn input(nodes: &Rc<RefCell<Nodes>>, number: usize, shape: &Shape) -> Self {
        let id = nodes.borrow_mut().input(number, shape);
        Self { nodes: Rc::clone(nodes), id }
    }
    /// Returns its node.
    ///
    /// # Errors
    /// `Unsupported` if it belongs to another tree.
    pub(super) fn of(&self, nodes: &Rc<RefCell<Nodes>>) -> Result<usize> {
        match Rc::ptr_eq(&self.nodes, nodes) {
            true => Ok(self.id),
            false => Err(Error::unsupported(
                "fuse: the expression belongs to another call, expected one built from this call's inputs",
            )),
        }
    }
    fn made(&self, kind: NodeKind, others: &[&Self]) -> Result<Self> {
        let mut args = vec![self.id];
        for other in others {
            args.push(other.of(&self.nodes)?);
        }
        let id = self.nodes.borrow_mut().made(kind, &args)?;
        Ok(Self { nodes: Rc::clone(&self.nodes), id })
    }

    /// Returns the shape.
    pub fn shape(&self) -> Shape {
        self.nodes.borrow().shape(self.id).clone()
    }
    /// Creates a constant in the tree of this expression.
    #[must_use]
    pub fn number(&self, value: f32) -> Self {
        let id = self.nodes.borrow_mut().number(value);
        Self { nodes: Rc::clone(&self.nodes), id }
    }
    /// Applies the elementwise op with this name and its scalars.
    ///
    /// # Errors
    /// `Unsupported` if the op does not exist or has another number of scalars.
    pub fn unary(&self, name: &str, scalars: &[f32]) -> Result<Self> {
        let row = unary_row(name)?;
        let expected = unary_of(row).scalars.len();
        if expected != scalars.len() {
            let given = scalars.len();
            return Err(Error::unsupported(format!("{name}: got {given} scalars, expected {expected}")));
        }
        let mut bits = [0; 2];
        bits.iter_mut().zip(scalars).for_each(|(b, s)| *b = s.to_bits());
        self.made(NodeKind::Unary(row, bits), &[])
    }
    /// Applies the elementwise op of two tensors with this name.
    ///
    /// # Errors
    /// `Unsupported` if the op does not exist; `Shape` if the shapes cannot be broadcast.
    pub fn binary(&self, name: &str, other: &Self) -> Result<Self> {
        self.made(NodeKind::Binary(binary_row(name)?), &[other])
    }
    unary!(neg, exp, log, sqrt, rsqrt, tanh, sigmoid, relu, silu, gelu, gelu_tanh, abs, square, sin, cos, softplus, hard_swish, mish;
        add_scalar, mul_scalar, rsub_scalar, rdiv_scalar, pow_scalar, leaky_relu, elu);
    binary!(add, sub, mul, div, maximum, minimum);
    /// Computes `x - s`.
    pub fn sub_scalar(&self, s: f32) -> Result<Self> {
        self.add_scalar(-s)
    }
    /// Computes `x / s`.
    pub fn div_scalar(&self, s: f32) -> Result<Self> {
        self.mul_scalar(1.0 / s)
    }
    /// Does the same as [`Tensor::clamp`](crate::Tensor::clamp).
    pub fn clamp(&self, low: f32, high: f32) -> Result<Self> {
        self.unary("clamp", &[low, high])
    }

    /// Returns 1 where `self == other`, else 0. Compares the unrounded values in the kernel.
    pub fn eq(&self, other: &Self) -> Result<Self> {
        self.made(NodeKind::Compare(0), &[other])
    }
    /// Returns 1 where `self < other`, else 0.
    pub fn lt(&self, other: &Self) -> Result<Self> {
        self.made(NodeKind::Compare(1), &[other])
    }
    /// Returns 1 where `self <= other`, else 0.
    pub fn le(&self, other: &Self) -> Result<Self> {
        self.made(NodeKind::Compare(2), &[other])
    }
    /// Returns 1 where `self > other`, else 0.
    pub fn gt(&self, other: &Self) -> Result<Self> {
        other.lt(self)
    }
    /// Returns 1 where `self >= other`, else 0.
    pub fn ge(&self, other: &Self) -> Result<Self> {
        other.le(self)
    }
    /// Returns `a` where this mask is nonzero, else `b`.
    pub fn where_cond(&self, a: &Self, b: &Self) -> Result<Self> {
        self.made(NodeKind::Where, &[a, b])
    }
    /// Returns `value` where `mask` is nonzero, else this value.
    pub fn masked_fill(&self, mask: &Self, value: f32) -> Result<Self> {
        mask.where_cond(&self.number(value), self)
    }
    /// Rounds to what a storage type can represent; integers are rounded to the nearest. The gradient passes unchanged.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.made(NodeKind::Cast(dtype), &[])
    }
    /// Returns the same values, but stops gradients.
    pub fn detach(&self) -> Self {
        self.made(NodeKind::Detach, &[]).unwrap_or_else(|_| self.clone())
    }
    /// Broadcasts the values to a larger shape.
    ///
    /// # Errors
    /// `Shape` if this shape does not broadcast to it.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        let id = self.nodes.borrow_mut().expanded(self.id, &shape.into())?;
        Ok(Self { nodes: Rc::clone(&self.nodes), id })
    }

    fn reduced(&self, name: &str, how: ReductionKind, axes: &[isize]) -> Result<Self> {
        let shape = self.shape();
        let mut mask = if axes.is_empty() { (1u32 << shape.rank()) - 1 } else { 0 };
        for axis in axes {
            let bit = 1 << (shape.rank() - 1 - shape.axis(name, *axis)?);
            if mask & bit != 0 {
                return Err(Error::shape(format!("{name}: axes {axes:?} contain the same axis twice")));
            }
            mask |= bit;
        }
        let id = self.nodes.borrow_mut().reduced(how, self.id, mask)?;
        Ok(Self { nodes: Rc::clone(&self.nodes), id })
    }
    /// Sums over `axes`, or over all axes if none are given. They remain with size 1.
    pub fn sum(&self, axes: &[isize]) -> Result<Self> {
        self.reduced("sum", ReductionKind::Sum, axes)
    }
    /// Computes the maximum over `axes`, which remain with size 1. NaN if an element is NaN. Ties share the gradient.
    pub fn max(&self, axes: &[isize]) -> Result<Self> {
        self.reduced("max", ReductionKind::Max, axes)
    }
    /// Computes the mean over `axes`, which remain with size 1.
    pub fn mean(&self, axes: &[isize]) -> Result<Self> {
        let sum = self.sum(axes)?;
        let terms = self.shape().count() as f32 / sum.shape().count() as f32;
        sum.mul_scalar(1.0 / terms)
    }
    /// Computes the mean squared difference from the mean over `axes`, which remain with size 1.
    pub fn variance(&self, axes: &[isize]) -> Result<Self> {
        self.sub(&self.mean(axes)?)?.square()?.mean(axes)
    }
    /// Computes the softmax over the last axis.
    pub fn softmax(&self) -> Result<Self> {
        // The maximum cancels out, so its gradient is 0.
        let e = self.sub(&self.max(&[-1])?.detach())?.exp()?;
        e.div(&e.sum(&[-1])?)
    }
}

/// Shows the tree.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show::tree(&self.nodes.borrow(), &[self.id]))
    }
}
