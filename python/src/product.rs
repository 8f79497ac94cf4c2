//! Matrix products of tensors, and of tensors with arrays.

use crate::edge::run;
use crate::operators::{Made, Other, not_implemented, promoted};
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{Error, Result, Tensor};
use pyo3::prelude::*;

/// Multiplies with a tensor or an array. With `swapped`, the other operand is on the left.
pub fn matrix_product<'py>(x: &Bound<'py, PyTensor>, other: &Bound<'py, PyAny>, swapped: bool) -> Made<'py> {
    let (py, given) = (x.py(), Given::of(&[x.as_any(), other])?);
    let x = x.try_borrow()?.inner.clone();
    let y = match Other::of(other)? {
        Some(Other::Tensor(y)) => y,
        Some(Other::Array(y)) => run(py, || y.to_device(x.device()))?,
        _ => return Ok(not_implemented(py)),
    };
    let made = run(py, move || {
        let (a, b) = if swapped { promoted(&y, &x)? } else { promoted(&x, &y)? };
        product(&a, &b)
    })?;
    given.result(py, made)
}

/// Computes a matrix product. A vector is a row on the left and a column on the right, as in NumPy.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.dims(), b.dims()) {
        ([n], [m]) => product(&a.reshape([1, *n])?, &b.reshape([*m, 1])?)?.reshape(Vec::new()),
        ([n], _) => product(&a.reshape([1, *n])?, b)?.squeeze(-2),
        (_, [m]) => product(a, &b.reshape([*m, 1])?)?.squeeze(-1),
        _ if a.dtype().is_float() => a.matmul(b),
        _ => integer_product(a, b),
    }
}

/// Multiplies integer matrices: all products, then their sums. Meant for small matrices, because all products are in memory at once.
fn integer_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.dims(), b.dims()) {
        ([.., _, k], [.., l, _]) if k == l => {
            let (left, right) = (a.unsqueeze(a.shape().rank())?, b.unsqueeze(b.shape().rank() - 2)?);
            left.mul(&right)?.sum(&[-2], false)
        }
        (x, y) => {
            Err(Error::shape(format!("matmul: integer matrices of shapes {x:?} and {y:?} do not match")))
        }
    }
}
