//! Kernels in OpenCL C from Python.

use crate::edge::run;
use crate::names::interned;
use crate::tensor::PyTensor;
use netcl::kernel::{Kernel, Launch};
use netcl::prelude::{DType, Error, Result, Tensor};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Kernels by name and source. They live until the process ends, like the programs that are built from them.
static KERNELS: Mutex<BTreeMap<(&'static str, &'static str), &'static Kernel>> = Mutex::new(BTreeMap::new());

/// Source code with one or more `__kernel` functions.
#[pyclass(name = "KernelText", module = "netcl", frozen)]
pub struct PyKernel(&'static Kernel);

/// An argument of a launch, as given in Python.
#[derive(FromPyObject)]
enum KernelArgument<'py> {
    Tensor(PyRef<'py, PyTensor>),
    Number(f64),
}

enum Argument {
    Read(Tensor),
    Write(Tensor),
    Float(f32),
    Int(i32),
    Uint(u32),
    Long(i64),
    Ulong(u64),
    Local(usize),
}

/// Converts a number to the type of the kernel's parameter.
fn number(name: &str, kind: &str, value: f64) -> Result<Argument> {
    let wrong = || Error::format(format!("{name}: {value} is not a valid {kind}"));
    let whole = value.fract() == 0.0;
    let within = |low: f64, high: f64| whole && (low..=high).contains(&value);
    match kind {
        "float" => Ok(Argument::Float(value as f32)),
        "int" if within(f64::from(i32::MIN), f64::from(i32::MAX)) => Ok(Argument::Int(value as i32)),
        "uint" if within(0.0, f64::from(u32::MAX)) => Ok(Argument::Uint(value as u32)),
        // Numbers from Python arrive as f64, which represents all integers up to 2^53.
        "long" if within(-(2f64.powi(53)), 2f64.powi(53)) => Ok(Argument::Long(value as i64)),
        "ulong" if within(0.0, 2f64.powi(53)) => Ok(Argument::Ulong(value as u64)),
        "local" if within(0.0, f64::from(u32::MAX)) => Ok(Argument::Local(value as usize)),
        _ => Err(wrong()),
    }
}

fn argument(name: &str, (kind, given): (String, KernelArgument<'_>)) -> Result<Argument> {
    match (kind.as_str(), given) {
        ("read", KernelArgument::Tensor(tensor)) => Ok(Argument::Read(tensor.inner.clone())),
        ("write", KernelArgument::Tensor(tensor)) => Ok(Argument::Write(tensor.inner.clone())),
        (kind, KernelArgument::Number(value)) => number(name, kind, value),
        (kind, KernelArgument::Tensor(_)) => {
            Err(Error::format(format!("{name} is a tensor, expected {kind}")))
        }
    }
}

fn bound(launch: Launch<'static>, argument: Argument) -> Launch<'static> {
    match argument {
        Argument::Read(tensor) => launch.read(&tensor),
        Argument::Write(tensor) => launch.write(&tensor),
        Argument::Float(v) => launch.scalar(v),
        Argument::Int(v) => launch.scalar(v),
        Argument::Uint(v) => launch.scalar(v),
        Argument::Long(v) => launch.scalar(v),
        Argument::Ulong(v) => launch.scalar(v),
        Argument::Local(bytes) => launch.local_memory(bytes),
    }
}

#[pymethods]
impl PyKernel {
    #[new]
    fn new(name: &str, source: &str) -> Self {
        let key = (interned(name), interned(source));
        let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
        Self(kernels.entry(key).or_insert_with(|| Box::leak(Box::new(Kernel::new(key.0, key.1)))))
    }
    /// Enqueues `entry` with its arguments. Each has a kind (`read`, `write`, `float`, `int`, `uint`, `long`, `ulong`, or `local` with a
    /// size in bytes) and a tensor or number.
    fn launch(
        &self,
        py: Python<'_>,
        entry: &str,
        arguments: Vec<(String, KernelArgument<'_>)>,
        groups: [usize; 3],
        local: [usize; 3],
        defines: Vec<(String, i64)>,
    ) -> PyResult<()> {
        let (kernel, entry) = (self.0, interned(entry));
        let arguments: Result<Vec<Argument>> = arguments.into_iter().map(|a| argument(entry, a)).collect();
        run(py, move || {
            let arguments = arguments?;
            let first = arguments.iter().find_map(|a| match a {
                Argument::Read(t) | Argument::Write(t) => Some(t.dtype()),
                _ => None,
            });
            let dtype = first.filter(|dtype| dtype.is_float()).unwrap_or(DType::F32);
            let launch = kernel.launch(entry).define("DTYPE", dtype.code()).local(local).groups3(groups);
            let named = defines.iter().fold(launch, |l, (name, value)| l.define(interned(name), *value));
            arguments.into_iter().fold(named, bound).run()
        })
    }
}
