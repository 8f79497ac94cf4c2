//! Operations of the registry, called by name: an operation added in Rust is available here without further code.

use crate::convert::{Ints, dtype, dtype_name};
use crate::edge::{raised, run};
use crate::ids;
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{DType, Result, Tensor};
use netcl::tensor::ops::call::{Arity, AttributeKind, Call, Value};
use netcl::tensor::ops::{calls, find};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// An operation. Tensors come first, then attributes, by position or by name.
#[pyclass(name = "Op", module = "netcl", frozen)]
pub struct PyOp {
    call: &'static Call,
}

/// Converts a Python argument to an attribute's value.
fn value(call: &Call, name: &str, kind: AttributeKind, given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if given.is_none() {
        return Ok(Value::None);
    }
    let read = match kind {
        AttributeKind::Float => given.extract().map(Value::Float),
        AttributeKind::Int | AttributeKind::Seed => given.extract().map(Value::Int),
        AttributeKind::Bool => given.extract().map(Value::Bool),
        AttributeKind::Ints => given.extract().map(|Ints(numbers)| Value::Ints(numbers)),
        AttributeKind::Choice(_) | AttributeKind::Text => given.extract().map(Value::Text),
        AttributeKind::DType => dtype(given).map(Value::DType),
    };
    read.map_err(|e| PyTypeError::new_err(format!("{}: attribute {name}: {e}", call.name)))
}

impl PyOp {
    /// Appends the tensor or tensors of one input to `inputs`.
    fn take<'py>(
        &self,
        name: &str,
        arity: Arity,
        given: &Bound<'py, PyAny>,
        (inputs, classes): (&mut Vec<Option<Tensor>>, &mut Given<'py>),
    ) -> PyResult<()> {
        let mut one = |object: &Bound<'py, PyAny>| match object.extract::<PyRef<'_, PyTensor>>() {
            Ok(tensor) => classes.see(object).map(|()| Some(tensor.inner.clone())),
            Err(_) => Err(PyTypeError::new_err(format!(
                "{}: {name} is {}, expected a netcl.Tensor",
                self.call.name,
                object.get_type().name()?
            ))),
        };
        match arity {
            Arity::List => given.try_iter()?.try_for_each(|item| {
                inputs.push(one(&item?)?);
                Ok(())
            }),
            Arity::Optional if given.is_none() => {
                inputs.push(None);
                Ok(())
            }
            _ => {
                inputs.push(one(given)?);
                Ok(())
            }
        }
    }

    /// Returns the error for the first keyword that is not an argument.
    fn unknown_of(&self, kwargs: &Bound<'_, PyDict>) -> PyResult<PyErr> {
        let known = |name: &str| {
            self.call.inputs.iter().any(|i| i.name == name)
                || self.call.attributes.iter().any(|a| a.name == name)
        };
        let names: Vec<String> = kwargs.keys().iter().map(|name| name.extract()).collect::<PyResult<_>>()?;
        let name = names.iter().find(|name| !known(name)).map_or("", String::as_str);
        Ok(self.unknown(name))
    }

    fn unknown(&self, name: &str) -> PyErr {
        let inputs = self.call.inputs.iter().map(|input| input.name);
        let names: Vec<&str> = inputs.chain(self.call.attributes.iter().map(|a| a.name)).collect();
        PyTypeError::new_err(format!(
            "{}: no argument {name:?}, expected one of {}",
            self.call.name,
            names.join(", ")
        ))
    }
}

#[pymethods]
impl PyOp {
    /// Looks up the operation with this name.
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Self> {
        find(name).map(|call| Self { call }).map_err(|e| raised(py, &e))
    }
    #[getter]
    fn __name__(&self) -> &'static str {
        self.call.name
    }
    /// A paragraph that describes it.
    #[getter]
    fn doc(&self) -> &'static str {
        self.call.doc
    }
    /// Inputs: name and arity (`one`, `optional` or `list`).
    #[getter]
    fn inputs(&self) -> Vec<(&'static str, &'static str)> {
        let arity = |arity| match arity {
            Arity::One => "one",
            Arity::Optional => "optional",
            Arity::List => "list",
        };
        self.call.inputs.iter().map(|input| (input.name, arity(input.arity))).collect()
    }
    /// Attributes: name, kind, whether the attribute is required, default value, whether it may be `None`, and the names of a choice.
    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let out = PyList::empty(py);
        for a in &self.call.attributes {
            let (kind, names): (&str, &[&str]) = match a.kind {
                AttributeKind::Float => ("float", &[]),
                AttributeKind::Int => ("int", &[]),
                AttributeKind::Seed => ("seed", &[]),
                AttributeKind::Bool => ("bool", &[]),
                AttributeKind::Ints => ("ints", &[]),
                AttributeKind::Text => ("text", &[]),
                AttributeKind::DType => ("dtype", &[]),
                AttributeKind::Choice(names) => ("choice", names),
            };
            let default = match &a.default {
                None | Some(Value::None) => py.None().into_bound(py),
                Some(Value::Float(v)) => v.into_pyobject(py)?.into_any(),
                Some(Value::Int(v)) => v.into_pyobject(py)?.into_any(),
                Some(Value::Bool(v)) => v.into_pyobject(py)?.to_owned().into_any(),
                Some(Value::Ints(v)) => PyTuple::new(py, v)?.into_any(),
                Some(Value::Text(v)) => v.into_pyobject(py)?.into_any(),
                Some(Value::DType(v)) => dtype_name(*v).into_pyobject(py)?.into_any(),
            };
            out.append((a.name, kind, a.default.is_none(), default, a.optional, names.to_vec()))?;
        }
        Ok(out)
    }
    /// Names of the results.
    #[getter]
    fn results(&self) -> Vec<&'static str> {
        self.call.results.to_vec()
    }
    /// Whether the number of results depends on the arguments.
    #[getter]
    fn many(&self) -> bool {
        self.call.many
    }
    fn __repr__(&self) -> String {
        format!("<op {}>", self.call.name)
    }
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = self.call;
        let (mut inputs, mut attributes, mut classes) = (Vec::new(), Vec::new(), Given::default());
        let by_name = |name: &str| kwargs.map_or(Ok(None), |kwargs| kwargs.get_item(name));
        let mut used = 0;
        for (i, input) in call.inputs.iter().enumerate() {
            match (args.get_item(i).ok().filter(|_| i < args.len()), by_name(input.name)?) {
                (Some(_), Some(_)) => {
                    return Err(PyTypeError::new_err(format!(
                        "{}: {} is given twice",
                        call.name, input.name
                    )));
                }
                (Some(given), None) => {
                    self.take(input.name, input.arity, &given, (&mut inputs, &mut classes))?;
                }
                (None, Some(given)) => {
                    used += 1;
                    self.take(input.name, input.arity, &given, (&mut inputs, &mut classes))?;
                }
                (None, None) => inputs.push(None),
            }
        }
        for (i, a) in call.attributes.iter().enumerate() {
            let place = i + call.inputs.len();
            let mut given = if place < args.len() { Some(args.get_item(place)?) } else { None };
            if let Some(named) = by_name(a.name)? {
                if given.is_some() {
                    return Err(PyTypeError::new_err(format!("{}: {} is given twice", call.name, a.name)));
                }
                used += 1;
                given = Some(named);
            }
            if let Some(given) = given {
                attributes.push((a.name, value(call, a.name, a.kind, &given)?));
            }
        }
        if args.len() > call.inputs.len() + call.attributes.len() {
            let most = call.inputs.len() + call.attributes.len();
            return Err(PyTypeError::new_err(format!(
                "{}: {} arguments, at most {most}",
                call.name,
                args.len()
            )));
        }
        if let Some(kwargs) = kwargs.filter(|kwargs| kwargs.len() != used) {
            return Err(self.unknown_of(kwargs)?);
        }
        let given: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
        let mut ys = run(py, || {
            let ys = call.invoke(&given, &attributes)?;
            ids::watch(call.name, &given, &attributes)?;
            signed_indices(call.name, ys)
        })?;
        if let (false, [_]) = (call.many, call.results) {
            let y = ys.pop().ok_or_else(|| PyTypeError::new_err(format!("{}: no result", call.name)))?;
            return classes.result(py, y);
        }
        let ys = ys.into_iter().map(|y| classes.result(py, y)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyTuple::new(py, ys)?.into_any())
    }
}

/// Returns the results with indices as i32: Python subtracts from indices, and u32 would wrap below 0. The bits are the same.
fn signed_indices(name: &str, mut ys: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let slot = match name {
        "argmax" | "multinomial" => 0,
        "topk" | "sort" => 1,
        _ => return Ok(ys),
    };
    if let Some(y) = ys.get_mut(slot).filter(|y| y.dtype() == DType::U32) {
        *y = y.bits_as(DType::I32)?;
    }
    Ok(ys)
}

/// Names of all operations.
#[pyfunction]
fn ops() -> Vec<&'static str> {
    calls().iter().map(|call| call.name).collect()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyOp>()?;
    m.add_function(wrap_pyfunction!(ops, m)?)
}
