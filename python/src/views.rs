//! Parts of tensors with gradients: views with steps, other shapes of tensors with gaps, and rows by index.

use netcl::prelude::{DType, Error, Result, Tensor};
use netcl::tensor::ops::embedding::embedding;
use netcl::tensor::tape;

/// Returns the strides with which a tensor of these sizes and strides can be seen in the shape `new`, if there are any.
fn strides_of(dims: &[usize], strides: &[usize], new: &[usize]) -> Option<Vec<usize>> {
    let mut old: Vec<(usize, usize)> =
        dims.iter().copied().zip(strides.iter().copied()).filter(|(n, _)| *n != 1).collect();
    let (mut made, mut at) = (vec![1; new.len()], new.len());
    while let Some((n, stride)) = old.pop() {
        // Joins axes whose elements follow each other in memory.
        let (mut left, mut outer) = (n, n * stride);
        while let Some((m, _)) = old.pop_if(|(_, s)| *s == outer) {
            (left, outer) = (left * m, outer * m);
        }
        let mut step = stride;
        while left > 1 {
            at = at.checked_sub(1)?;
            if left % new[at] != 0 {
                return None;
            }
            made[at] = step;
            (left, step) = (left / new[at], step * new[at]);
        }
    }
    new[..at].iter().all(|n| *n == 1).then_some(made)
}

/// Returns a tensor with elements as a view of another shape, if its strides allow one.
pub fn shaped(x: &Tensor, dims: Vec<usize>) -> Result<Option<Tensor>> {
    let strides = strides_of(x.dims(), &x.layout().strides, &dims);
    let Some(strides) = strides else { return Ok(None) };
    let (view, shape) = (x.as_strided(dims, strides)?, x.shape().clone());
    let backward = move |dys: &[Option<Tensor>]| match dys.first().and_then(Option::as_ref) {
        Some(dy) => Ok(vec![Some(dy.reshape(shape.clone())?)]),
        None => Ok(vec![None]),
    };
    Ok(tape::function("view", &[x], vec![view], backward)?.into_iter().next())
}

/// Takes `count` elements along an axis, starting at `start`, with stride `step`.
pub fn stepped(x: &Tensor, axis: usize, (start, step, count): (usize, isize, usize)) -> Result<Tensor> {
    let at = axis.cast_signed();
    if count == 0 {
        return x.slice(at, 0..0);
    }
    if step < 0 {
        let numbers = (0..count).map(|i| (start - i * step.unsigned_abs()) as u32).collect::<Vec<_>>();
        return gather(x, axis, &Tensor::from_u32(x.device(), [count], &numbers)?);
    }
    let (step, n) = (step.unsigned_abs(), x.dims()[axis]);
    if step == 1 && count == n {
        return Ok(x.clone());
    }
    if step == 1 {
        return x.slice(at, start..start + count);
    }
    let view = x.every(axis, start, step, count)?;
    let shape = x.shape().clone();
    let backward = move |dys: &[Option<Tensor>]| {
        let Some(dy) = dys.first().and_then(Option::as_ref) else { return Ok(vec![None]) };
        let dx = Tensor::zeros(dy.device(), shape.clone(), dy.dtype())?;
        dx.every(axis, start, step, count)?.assign(dy)?;
        Ok(vec![Some(dx)])
    };
    let made = tape::function("slice", &[x], vec![view], backward)?;
    made.into_iter().next().ok_or_else(|| Error::internal("slice: the function gave no result"))
}

/// Takes elements of an axis by u32 indices of any shape, which replaces the axis.
pub fn gather(x: &Tensor, axis: usize, numbers: &Tensor) -> Result<Tensor> {
    let rank = x.shape().rank();
    let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|a| *a != axis)).collect();
    let front = x.permute(&order)?; // (N, others)
    let others = front.dims()[1..].to_vec();
    let width: usize = others.iter().product();
    let rows = front.reshape([x.dims()[axis], width])?;
    let found = match x.dtype() {
        dtype if dtype.is_float() => embedding(&rows, numbers)?,
        // Rows are copied bitwise, whatever type their words have.
        dtype => netcl::prelude::no_grad(|| match dtype {
            DType::Bool => embedding(&rows.to_dtype(DType::F16)?, numbers)?.to_dtype(dtype),
            _ => embedding(&rows.bits_as(DType::F32)?, numbers)?.bits_as(dtype),
        })?,
    };
    let count = numbers.shape().rank();
    let found = found.reshape([numbers.dims(), &others].concat())?;
    // (numbers, others) → the axes of the numbers at the position of the axis.
    let order = (count..count + axis).chain(0..count).chain(count + axis..count + rank - 1);
    found.permute(&order.collect::<Vec<_>>())
}
