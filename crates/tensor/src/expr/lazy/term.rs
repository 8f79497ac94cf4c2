//! Converts ops to tree nodes.

use super::super::node::{NodeKind, Nodes, ReductionKind, binary_row, unary_row};
use crate::ops::conv::{Conv2d, Conv2dOptions};
use crate::tape::Term;
use crate::{DType, Error, Result, Shape, Tensor};

/// Adds the node of an op.
///
/// # Errors
/// `Shape` if the shapes cannot be broadcast.
pub(super) fn node(nodes: &mut Nodes, term: &Term, args: &[usize]) -> Result<usize> {
    match term {
        Term::Unary(name, scalars) => unary(nodes, name, scalars, args[0]),
        Term::Binary(name) => binary(nodes, name, args[0], args[1]),
        Term::Compare(row) => nodes.made(NodeKind::Compare(*row), args),
        Term::Where => nodes.made(NodeKind::Where, args),
        Term::MaskedFill(value) => {
            let value = nodes.number(*value);
            nodes.made(NodeKind::Where, &[args[1], value, args[0]])
        }
        Term::Cast(dtype) => nodes.made(NodeKind::Cast(*dtype), args),
        Term::Sum { axes, mean, .. } => {
            let sum = nodes.reduced(ReductionKind::Sum, args[0], last(axes.len()))?;
            if !mean {
                return Ok(sum);
            }
            let terms = nodes.shape(args[0]).count() as f64 / nodes.shape(sum).count() as f64;
            unary(nodes, "mul_scalar", &[(1.0 / terms) as f32], sum)
        }
        Term::Max { axes, .. } => nodes.reduced(ReductionKind::Max, args[0], last(axes.len())),
        Term::Softmax => {
            let [_, e, sum] = exponentials(nodes, args[0])?;
            binary(nodes, "div", e, sum)
        }
        Term::Product | Term::Convolution { .. } => {
            Err(Error::internal("lazy: a product cannot be a tree node"))
        }
        Term::LogSoftmax => {
            let [x, _, sum] = exponentials(nodes, args[0])?;
            let log = unary(nodes, "log", &[], sum)?;
            binary(nodes, "sub", x, log)
        }
    }
}

/// Adds x minus its maximum along the last axis, the exponential of that, and the sum of the exponentials. The maximum cancels out, so its
/// gradient is 0.
fn exponentials(nodes: &mut Nodes, x: usize) -> Result<[usize; 3]> {
    let largest = nodes.reduced(ReductionKind::Max, x, 1)?;
    let largest = nodes.made(NodeKind::Detach, &[largest])?;
    let x = binary(nodes, "sub", x, largest)?;
    let e = unary(nodes, "exp", &[], x)?;
    Ok([x, e, nodes.reduced(ReductionKind::Sum, e, 1)?])
}

fn unary(nodes: &mut Nodes, name: &str, scalars: &[f32], x: usize) -> Result<usize> {
    let mut bits = [0; 2];
    bits.iter_mut().zip(scalars).for_each(|(b, s)| *b = s.to_bits());
    nodes.made(NodeKind::Unary(unary_row(name)?, bits), &[x])
}

fn binary(nodes: &mut Nodes, name: &str, a: usize, b: usize) -> Result<usize> {
    nodes.made(NodeKind::Binary(binary_row(name)?), &[a, b])
}

/// Returns the mask of the last `axes` axes.
fn last(axes: usize) -> u32 {
    u32::MAX.checked_shr(32 - axes as u32).unwrap_or(0)
}

/// Returns the convolution of a term.
pub(super) fn convolution(term: &Term) -> Result<Conv2d> {
    let Term::Convolution { stride, padding, dilation, groups, bias } = *term else {
        return Err(Error::internal("lazy: not a convolution"));
    };
    Ok(Conv2d::new(Conv2dOptions { stride, padding, dilation, groups }, bias))
}

/// Returns shape and type of an op's result.
///
/// # Errors
/// `Shape` if the inputs cannot be broadcast.
pub(super) fn result(op: &str, term: &Term, inputs: &[&Tensor]) -> Result<(Shape, DType)> {
    let x = inputs[0];
    let together =
        |of: &[&Tensor]| of.iter().try_fold(Shape::default(), |shape, x| shape.broadcast(x.shape(), op));
    Ok(match term {
        Term::Unary(..) | Term::MaskedFill(_) | Term::Softmax | Term::LogSoftmax => {
            (x.shape().clone(), x.dtype())
        }
        Term::Binary(_) => (together(inputs)?, x.dtype()),
        Term::Compare(_) => (together(inputs)?, DType::Bool),
        // The op takes the mask last.
        Term::Where => (together(&[inputs[1], inputs[2], x])?, inputs[1].dtype()),
        Term::Cast(dtype) => (x.shape().clone(), *dtype),
        Term::Sum { axes, keep, dtype, .. } => (reduced(x.shape(), axes.len(), *keep), *dtype),
        Term::Product => {
            let (dims, n) = (x.dims(), inputs[1].shape().last());
            let dims = dims[..dims.len() - 1].iter().copied().chain([n]);
            (dims.collect::<Vec<_>>().into(), x.dtype())
        }
        Term::Convolution { .. } => (convolution(term)?.shape(inputs)?, x.dtype()),
        Term::Max { axes, keep } => (reduced(x.shape(), axes.len(), *keep), x.dtype()),
    })
}

fn reduced(shape: &Shape, axes: usize, keep: bool) -> Shape {
    let kept = shape.rank() - axes;
    let ones = if keep { axes } else { 0 };
    shape.dims()[..kept].iter().copied().chain(std::iter::repeat_n(1, ones)).collect::<Vec<_>>().into()
}
