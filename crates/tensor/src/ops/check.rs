//! Argument checks that several ops share; each names op, expected and got.

use super::prelude::*;

/// `param` has one axis, as long as the last one of `x`.
pub fn last_dim(op: &str, x: &Tensor, param: &Tensor, name: &str) -> Result<()> {
    let n = x.shape().last();
    if param.dims() == [n] {
        return Ok(());
    }
    Err(Error::shape(format!(
        "{op}: {name} has shape {}, expected [{n}], the last dimension of x {}",
        param.shape(),
        x.shape()
    )))
}

/// All tensors are floats of one type.
pub fn same_float(op: &str, tensors: &[(&str, &Tensor)]) -> Result<()> {
    let Some((first, rest)) = tensors.split_first() else { return Ok(()) };
    float(op, first.0, first.1)?;
    for (name, tensor) in rest {
        if tensor.dtype() != first.1.dtype() {
            return Err(Error::dtype(format!(
                "{op}: {name} is {}, but {} is {}; convert one with `to_dtype`",
                tensor.dtype(),
                first.0,
                first.1.dtype()
            )));
        }
    }
    Ok(())
}

/// A float tensor.
pub fn float(op: &str, name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::dtype(format!("{op}: {name} is {}, expected f32, f16 or bf16", tensor.dtype())))
}

/// A tensor of indices.
pub fn indices(op: &str, name: &str, tensor: &Tensor) -> Result<()> {
    if matches!(tensor.dtype(), DType::U32 | DType::I32) {
        return Ok(());
    }
    Err(Error::dtype(format!("{op}: {name} is {}, expected u32 or i32", tensor.dtype())))
}
