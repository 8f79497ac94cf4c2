//! Argument checks that several operations share. Each error names the operation, the expected and the actual value.

use super::prelude::*;

/// Checks that `param` has one axis with the length of the last axis of `x`.
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

/// Checks that all tensors are on one device.
pub fn one_device(op: &str, tensors: &[&Tensor]) -> Result<()> {
    let Some((first, rest)) = tensors.split_first() else { return Ok(()) };
    let Some(at) = rest.iter().position(|t| !t.device().same(first.device())) else { return Ok(()) };
    Err(Error::device(format!(
        "{op}: argument 1 {} is on {}, argument {} {} on {}; move one with `to_device`",
        first.shape(),
        first.device().capabilities().id,
        at + 2,
        rest[at].shape(),
        rest[at].device().capabilities().id
    )))
}

/// Checks that all tensors are floats of one type.
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

/// Checks that both tensors have one type.
pub fn same_type(op: &str, (a, x): (&str, &Tensor), (b, y): (&str, &Tensor)) -> Result<()> {
    if x.dtype() == y.dtype() {
        return Ok(());
    }
    let (found, other) = (y.dtype(), x.dtype());
    Err(Error::dtype(format!("{op}: {b} is {found}, but {a} is {other}; convert one with `to_dtype`")))
}

/// Checks that a tensor has floats.
pub fn float(op: &str, name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::dtype(format!("{op}: {name} is {}, expected f32, f16 or bf16", tensor.dtype())))
}

/// Checks that a tensor has indices.
pub fn indices(op: &str, name: &str, tensor: &Tensor) -> Result<()> {
    if matches!(tensor.dtype(), DType::U32 | DType::I32) {
        return Ok(());
    }
    Err(Error::dtype(format!("{op}: {name} is {}, expected u32 or i32", tensor.dtype())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Settings};

    #[test]
    fn arguments_on_two_devices_name_the_op_that_was_called() {
        let tensor = || {
            let device = Device::open("sim", &Settings::default()).unwrap();
            Tensor::from_f32(&device, [2, 2], &[1.0; 4], DType::F32).unwrap()
        };
        let (a, b) = (tensor(), tensor());
        let ids = Tensor::from_u32(b.device(), [2], &[0, 1]).unwrap();
        for (op, outcome) in [
            ("mul", a.mul(&b)),
            ("maximum", a.maximum(&b)),
            ("matmul", a.matmul(&b)),
            (
                "layer_norm",
                crate::ops::layer_norm::layer_norm(
                    &a,
                    &b.sum(&[0], false).unwrap(),
                    &b.sum(&[0], false).unwrap(),
                    1e-5,
                ),
            ),
            ("embedding", crate::ops::embedding::embedding(&a, &ids)),
            ("cat", crate::ops::join::cat(&[&a, &b], 0)),
        ] {
            let error = outcome.map(drop).unwrap_err();
            let message = error.message();
            assert_eq!(error.kind(), ErrorKind::Device, "{message}");
            assert!(
                message.starts_with(&format!("{op}: argument 1 ")) && message.contains("`to_device`"),
                "{message}"
            );
            assert!(!message.contains("elementwise"), "{message}");
        }
    }
}
