//! Arithmetic and comparisons of tensors with tensors, whose shapes are broadcast, and with numbers.
//!
//! Types are promoted as in PyTorch. A mask takes the other operand's type, an integer becomes a float next to a float, and a number takes
//! the tensor's type. The exception is a float number with an integer tensor, which gives a float. int32 and uint32 do not have a common type.

use crate::edge::{raised, run};
use crate::product::matrix_product;
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{DType, Error, Result, Shape, Tensor};
use netcl::tensor::ops::map::{Number, map_typed};
use netcl::tensor::tape;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyBool, PyFloat, PyInt};

/// The other operand.
pub enum Other {
    Tensor(Tensor),
    /// An array of another library, on the default device.
    Array(Tensor),
    Bool(bool),
    Int(i64),
    Float(f32),
}

impl Other {
    /// Returns `None` if the object is neither a tensor nor a number; Python then tries the object's own operator.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(tensor) = object.cast::<PyTensor>() {
            return Ok(Some(Self::Tensor(tensor.borrow().inner.clone())));
        }
        if object.is_instance_of::<PyFloat>() {
            return Ok(Some(Self::Float(object.extract()?)));
        }
        if is_truth(object)? {
            return Ok(Some(Self::Bool(object.is_truthy()?)));
        }
        if object.is_instance_of::<PyInt>() || object.hasattr("__index__")? && object.hasattr("dtype")? {
            return match object.call_method0("__index__") {
                Ok(n) => Ok(Some(n.extract().map(Self::Int).or_else(|_| n.extract().map(Self::Float))?)),
                Err(_) => Self::array(object),
            };
        }
        if object.hasattr("__array_interface__")? {
            return Self::array(object);
        }
        Ok(object.extract().ok().map(Self::Float))
    }

    /// Converts an array or a number of NumPy, with the types that `netcl.tensor` gives it.
    fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        if object.getattr("ndim")?.extract::<usize>()? == 0 {
            return Self::of(&object.call_method0("item")?);
        }
        let made = py.import("netcl")?.call_method1("tensor", (object,))?;
        Ok(Some(Self::Array(made.cast::<PyTensor>().map_err(PyErr::from)?.try_borrow()?.inner.clone())))
    }
}

/// Returns whether the object is a Boolean of Python or NumPy. NumPy's is not an integer.
fn is_truth(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = object.get_type().name()?;
    Ok(object.is_instance_of::<PyBool>() || class == "bool" || class == "bool_")
}

/// An operator: functions for floats, and an expression in OpenCL C for integers.
#[derive(Clone, Copy)]
struct Operator {
    floats: fn(&Tensor, &Tensor) -> Result<Tensor>,
    scalar: fn(&Tensor, f32) -> Result<Tensor>,
    /// Expression in `x0` and `x1`, with `A` and `B` for the operands.
    integers: Integers,
}

#[derive(Clone, Copy)]
enum Integers {
    /// An expression whose result has the type of the operands.
    Same(&'static str),
    /// An expression whose result is a mask.
    Mask(&'static str),
    /// The operands are converted to float32 first.
    Float,
}

/// Converts both operands to a common type.
pub fn promoted(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (from, to) = (a.dtype(), b.dtype());
    if from == to {
        return Ok((a.clone(), b.clone()));
    }
    let weight = |dtype: DType| match dtype {
        DType::Bool => 0,
        DType::I32 | DType::U32 => 1,
        DType::F16 | DType::Bf16 => 2,
        DType::F32 => 3,
    };
    match (weight(from), weight(to)) {
        (a_weight, b_weight) if a_weight < b_weight => Ok((a.to_dtype(to)?, b.clone())),
        (a_weight, b_weight) if a_weight > b_weight => Ok((a.clone(), b.to_dtype(from)?)),
        _ => Err(Error::dtype(format!(
            "{from} and {to} do not have a common type; convert one with .to(dtype)"
        ))),
    }
}

impl Operator {
    fn tensors(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (mut a, mut b) =
            if matches!(self.integers, Integers::Mask(_)) && !a.dtype().is_float() && !b.dtype().is_float() {
                (a.clone(), b.clone())
            } else {
                promoted(a, b)?
            };
        if a.dtype().is_float() {
            return (self.floats)(&a, &b);
        }
        if a.dtype() == DType::Bool && matches!(self.integers, Integers::Same(_)) {
            (a, b) = (a.to_dtype(DType::I32)?, b.to_dtype(DType::I32)?);
        }
        let dtype = match self.integers {
            Integers::Float => return (self.floats)(&a.to_dtype(DType::F32)?, &b.to_dtype(DType::F32)?),
            Integers::Same(_) => a.dtype(),
            Integers::Mask(_) => DType::Bool,
        };
        if !a.device().same(b.device()) {
            // The float operation reports the error.
            return (self.floats)(&a, &b);
        }
        let shape = a.shape().broadcast(b.shape(), "operator")?;
        map_typed(&self.expression("x1"), &[&a, &b], &[], &shape, dtype)
    }

    /// Returns the integer expression with `b` as the second operand.
    fn expression(self, b: &str) -> String {
        match self.integers {
            Integers::Same(text) | Integers::Mask(text) => text.replace('A', "x0").replace('B', b),
            Integers::Float => String::new(),
        }
    }

    /// Applies the operator to a tensor and a number. With `swapped`, the number is the first operand.
    fn number(self, x: &Tensor, number: &Other, swapped: bool) -> Result<Tensor> {
        let value = match number {
            Other::Float(v) => *v,
            Other::Int(n) => *n as f32,
            Other::Bool(on) => f32::from(u8::from(*on)),
            Other::Array(y) => {
                let y = y.to_device(x.device())?;
                return if swapped { self.tensors(&y, x) } else { self.tensors(x, &y) };
            }
            Other::Tensor(y) => return if swapped { self.tensors(y, x) } else { self.tensors(x, y) },
        };
        let floating = matches!(number, Other::Float(_)) || matches!(self.integers, Integers::Float);
        if x.dtype().is_float() || floating {
            let x = if x.dtype().is_float() { x.clone() } else { x.to_dtype(DType::F32)? };
            return match swapped {
                true => (self.floats)(&Tensor::full(x.device(), Shape::default(), value, x.dtype())?, &x),
                false => (self.scalar)(&x, value),
            };
        }
        let n = match number {
            Other::Int(n) => *n,
            other => i64::from(matches!(other, Other::Bool(true))),
        };
        let (x, dtype) = match self.integers {
            Integers::Mask(_) => (x.clone(), DType::Bool),
            _ if x.dtype() == DType::Bool => (x.to_dtype(DType::I32)?, DType::I32),
            _ => (x.clone(), x.dtype()),
        };
        let (a, b) = if swapped { ("s0", "x0") } else { ("x0", "s0") };
        let text = match self.integers {
            Integers::Same(text) | Integers::Mask(text) => {
                text.replace('A', "\0").replace('B', b).replace('\0', a)
            }
            Integers::Float => String::new(),
        };
        map_typed(&text, &[&x], &[Number::Int(n)], x.shape(), dtype)
    }
}

/// The object that Python gets.
pub type Made<'py> = PyResult<Bound<'py, PyAny>>;

pub fn not_implemented(py: Python<'_>) -> Bound<'_, PyAny> {
    py.NotImplemented().into_bound(py)
}

fn apply<'py>(
    py: Python<'py>,
    operator: Operator,
    x: &Bound<'py, PyTensor>,
    other: &Bound<'py, PyAny>,
    swapped: bool,
) -> Made<'py> {
    let given = Given::of(&[x.as_any(), other])?;
    let Some(other) = Other::of(other)? else { return Ok(not_implemented(py)) };
    let x = x.try_borrow()?.inner.clone();
    given.result(py, run(py, move || operator.number(&x, &other, swapped))?)
}

/// Applies an operation with one operand.
fn unary<'py>(
    x: &Bound<'py, PyTensor>,
    operation: impl FnOnce(&Tensor) -> Result<Tensor> + Send,
) -> Made<'py> {
    let (py, given) = (x.py(), Given::of(&[x.as_any()])?);
    let x = x.try_borrow()?.inner.clone();
    given.result(py, run(py, move || operation(&x))?)
}

/// Creates a 0-dimensional tensor of the number with x's type.
fn like(x: &Tensor, s: f32) -> Result<Tensor> {
    Tensor::full(x.device(), Shape::default(), s, x.dtype())
}

/// Computes `a != b`. NaN differs from everything.
fn unequal(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map_typed("!x0", &[&a.eq(b)?], &[], &a.shape().broadcast(b.shape(), "ne")?, DType::Bool)
}

fn power(x: &Tensor, s: f32) -> Result<Tensor> {
    if s == 2.0 { x.square() } else { x.pow_scalar(s) }
}

/// Evaluates an expression off the tape: a step function does not have a useful gradient.
fn floats(expression: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map_typed(expression, &[a, b], &[], &a.shape().broadcast(b.shape(), "operator")?, a.dtype())
}

/// Computes the remainder of floored division. The gradient of a is 1, and the gradient of b is the negated floored quotient, which is
/// exact except at jumps.
fn remainder(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = floats("float_mod(x0, x1)", a, b)?;
    let (x, divisor) = (a.detach(), b.detach());
    let backward = move |dys: &[Option<Tensor>]| {
        let Some(dy) = dys.first().and_then(Option::as_ref) else { return Ok(vec![None, None]) };
        let whole = floats("float_floor_div(x0, x1)", &x, &divisor)?;
        let of_divisor = dy.mul(&whole)?.neg()?.sum_to(divisor.shape())?;
        Ok(vec![Some(dy.sum_to(x.shape())?), Some(of_divisor)])
    };
    let made = tape::function("remainder", &[a, b], vec![y], backward)?;
    made.into_iter().next().ok_or_else(|| Error::internal("remainder: the function gave no result"))
}

fn no_floats(a: &Tensor, _: &Tensor) -> Result<Tensor> {
    Err(Error::dtype(format!("a bitwise operation got {}, expected integers or masks", a.dtype())))
}

const ADD: Operator = Operator {
    floats: Tensor::add,
    scalar: Tensor::add_scalar,
    integers: Integers::Same("(uint)A + (uint)B"),
};
const SUB: Operator = Operator {
    floats: Tensor::sub,
    scalar: Tensor::sub_scalar,
    integers: Integers::Same("(uint)A - (uint)B"),
};
const MUL: Operator = Operator {
    floats: Tensor::mul,
    scalar: Tensor::mul_scalar,
    integers: Integers::Same("(uint)A * (uint)B"),
};
const DIV: Operator = Operator { floats: Tensor::div, scalar: Tensor::div_scalar, integers: Integers::Float };
const FLOOR_DIV: Operator = Operator {
    floats: |a, b| floats("float_floor_div(x0, x1)", a, b),
    scalar: |x, s| floats("float_floor_div(x0, x1)", x, &like(x, s)?),
    integers: Integers::Same("floor_div(A, B)"),
};
const MOD: Operator = Operator {
    floats: remainder,
    scalar: |x, s| remainder(x, &like(x, s)?),
    integers: Integers::Same("floor_mod(A, B)"),
};
const POW: Operator =
    Operator { floats: Tensor::pow, scalar: power, integers: Integers::Same("int_pow((ulong)(long)A, B)") };
const SHIFT_LEFT: Operator = Operator {
    floats: no_floats,
    scalar: |x, _| no_floats(x, x),
    integers: Integers::Same("B > 31 ? 0 : (uint)A << B"),
};
const SHIFT_RIGHT: Operator = Operator {
    floats: no_floats,
    scalar: |x, _| no_floats(x, x),
    integers: Integers::Same("(long)A >> (B > 31 ? 31 : B)"),
};
const EQ: Operator = Operator {
    floats: Tensor::eq,
    scalar: |x, s| x.eq(&like(x, s)?),
    integers: Integers::Mask("(long)A == (long)B"),
};
const NE: Operator = Operator {
    floats: unequal,
    scalar: |x, s| unequal(x, &like(x, s)?),
    integers: Integers::Mask("(long)A != (long)B"),
};
const LT: Operator = Operator {
    floats: Tensor::lt,
    scalar: |x, s| x.lt(&like(x, s)?),
    integers: Integers::Mask("(long)A < (long)B"),
};
const LE: Operator = Operator {
    floats: Tensor::le,
    scalar: |x, s| x.le(&like(x, s)?),
    integers: Integers::Mask("(long)A <= (long)B"),
};
const GT: Operator = Operator {
    floats: Tensor::gt,
    scalar: |x, s| x.gt(&like(x, s)?),
    integers: Integers::Mask("(long)A > (long)B"),
};
const GE: Operator = Operator {
    floats: Tensor::ge,
    scalar: |x, s| x.ge(&like(x, s)?),
    integers: Integers::Mask("(long)A >= (long)B"),
};

const fn bits(expression: &'static str) -> Operator {
    Operator { floats: no_floats, scalar: |x, _| no_floats(x, x), integers: Integers::Same(expression) }
}

/// Refuses a subtraction with a mask.
fn no_masks(x: &Bound<'_, PyTensor>, other: &Bound<'_, PyAny>) -> PyResult<()> {
    let mask = |t: &Tensor| t.dtype() == DType::Bool;
    let second = match other.cast::<PyTensor>() {
        Ok(other) => mask(&other.try_borrow()?.inner),
        Err(_) => is_truth(other)?,
    };
    if !second && !mask(&x.try_borrow()?.inner) {
        return Ok(());
    }
    let words =
        "-: a mask cannot be subtracted; write ~mask for its inverse, mask ^ other, or mask.to(\"int32\")";
    Err(raised(x.py(), &Error::dtype(words)))
}

/// Applies an operation to integers, floats, or to two masks or a mask and a Boolean, which gives a mask.
fn logical<'py>(
    py: Python<'py>,
    operator: Operator,
    x: &Bound<'py, PyTensor>,
    other: &Bound<'py, PyAny>,
) -> Made<'py> {
    let given = Given::of(&[x.as_any(), other])?;
    let x = x.try_borrow()?.inner.clone();
    let mask = |t: &Tensor| t.dtype() == DType::Bool;
    let both = match other.cast::<PyTensor>() {
        Ok(other) => mask(&x) && mask(&other.try_borrow()?.inner),
        Err(_) => mask(&x) && is_truth(other)?,
    };
    let Some(other) = Other::of(other)? else { return Ok(not_implemented(py)) };
    let made = run(py, move || {
        let y = operator.number(&x, &other, false)?;
        if both { y.to_dtype(DType::Bool) } else { Ok(y) }
    })?;
    given.result(py, made)
}

#[pymethods]
impl PyTensor {
    fn __add__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, ADD, slf, other)
    }
    fn __radd__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, ADD, slf, other)
    }
    fn __sub__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        no_masks(slf, other)?;
        apply(py, SUB, slf, other, false)
    }
    fn __rsub__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        no_masks(slf, other)?;
        if let (true, Ok(s)) = (slf.try_borrow()?.inner.dtype().is_float(), other.extract::<f32>()) {
            return unary(slf, move |x| x.rsub_scalar(s));
        }
        apply(py, SUB, slf, other, true)
    }
    fn __mul__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, MUL, slf, other)
    }
    fn __rmul__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, MUL, slf, other)
    }
    fn __truediv__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, DIV, slf, other, false)
    }
    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        if let (true, Ok(s)) = (slf.try_borrow()?.inner.dtype().is_float(), other.extract::<f32>()) {
            return unary(slf, move |x| x.rdiv_scalar(s));
        }
        apply(py, DIV, slf, other, true)
    }
    fn __floordiv__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, FLOOR_DIV, slf, other, false)
    }
    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, FLOOR_DIV, slf, other, true)
    }
    fn __mod__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, MOD, slf, other, false)
    }
    fn __rmod__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, MOD, slf, other, true)
    }
    fn __lshift__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, SHIFT_LEFT, slf, other, false)
    }
    fn __rlshift__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, SHIFT_LEFT, slf, other, true)
    }
    fn __rshift__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, SHIFT_RIGHT, slf, other, false)
    }
    fn __rrshift__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        apply(py, SHIFT_RIGHT, slf, other, true)
    }
    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> Made<'py> {
        matrix_product(slf, other, false)
    }
    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> Made<'py> {
        matrix_product(slf, other, true)
    }
    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> Made<'py> {
        apply(py, POW, slf, other, false)
    }
    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> Made<'py> {
        apply(py, POW, slf, other, true)
    }
    fn __and__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A & B"), slf, other)
    }
    fn __rand__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A & B"), slf, other)
    }
    fn __or__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A | B"), slf, other)
    }
    fn __ror__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A | B"), slf, other)
    }
    fn __xor__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A ^ B"), slf, other)
    }
    fn __rxor__<'py>(slf: &Bound<'py, Self>, py: Python<'py>, other: &Bound<'py, PyAny>) -> Made<'py> {
        logical(py, bits("A ^ B"), slf, other)
    }
    fn __invert__<'py>(slf: &Bound<'py, Self>) -> Made<'py> {
        unary(slf, |x| match x.dtype() {
            DType::Bool => map_typed("!x0", &[x], &[], x.shape(), DType::Bool),
            DType::I32 | DType::U32 => map_typed("~x0", &[x], &[], x.shape(), x.dtype()),
            _ => no_floats(x, x),
        })
    }
    fn __neg__<'py>(slf: &Bound<'py, Self>) -> Made<'py> {
        unary(slf, Tensor::neg)
    }
    fn __abs__<'py>(slf: &Bound<'py, Self>) -> Made<'py> {
        unary(slf, Tensor::abs)
    }
    fn __pos__<'py>(slf: &Bound<'py, Self>) -> Made<'py> {
        unary(slf, |x| Ok(x.clone()))
    }
    /// Compares elementwise. The result is a mask.
    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        op: CompareOp,
    ) -> Made<'py> {
        let operator = match op {
            CompareOp::Eq => EQ,
            CompareOp::Ne => NE,
            CompareOp::Lt => LT,
            CompareOp::Le => LE,
            CompareOp::Gt => GT,
            CompareOp::Ge => GE,
        };
        apply(py, operator, slf, other, false)
    }
    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        slf.as_ptr().addr()
    }
}
