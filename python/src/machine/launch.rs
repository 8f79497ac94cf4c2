//! Kernels: programs from source, and launches with their arguments.

use super::state::Machine;
use crate::edge::run;
use aethercl::machine::{Binding, KernelLaunch};
use aethercl::{Access, ArgInfo, ArgKind, Includes, KernelInfo, NdRange, Program, Source};
use netcl::prelude::{Error, Result};
use pyo3::prelude::*;
use std::sync::Arc;

/// A compiled program.
#[pyclass(name = "MachineProgram", module = "netcl.aethercl", frozen)]
pub struct PyProgram(pub Arc<Program>);

#[pymethods]
impl PyProgram {
    /// Compiles OpenCL C source; `options` are those of a compiler, such as `-D N=4`.
    #[new]
    #[pyo3(signature = (source, options = ""))]
    fn new(py: Python<'_>, source: String, options: &str) -> PyResult<Self> {
        let options = options.to_owned();
        run(py, move || {
            let source = Source { name: "kernel.cl", text: &source };
            let built = Program::build(&source, &options, &Includes::none());
            built.map(|program| Self(Arc::new(program))).map_err(|e| Error::build(e.to_string()))
        })
    }

    /// Returns the kernels: name, and for each parameter its name, type and kind (`read`, `write`, `value`, `local` or `other`).
    fn kernels(&self) -> Vec<(String, Vec<KernelParameter>)> {
        let parameter = |arg: &ArgInfo| {
            let kind = match arg.kind {
                ArgKind::Buffer { read_only: true, .. } => "read",
                ArgKind::Buffer { .. } => "write",
                ArgKind::Value(_) => "value",
                ArgKind::Local => "local",
                _ => "other",
            };
            (arg.name.clone(), arg.ty.clone(), kind)
        };
        let kernel = |kernel: &KernelInfo| (kernel.name.clone(), kernel.args.iter().map(parameter).collect());
        self.0.kernels().iter().map(kernel).collect()
    }
}

/// Name, type and kind of a kernel's parameter.
type KernelParameter = (String, String, &'static str);

/// An argument as given in Python: kind, address, bytes, and the bytes of a value.
pub type GivenArgument = (String, u64, u64, Vec<u8>);

fn binding((kind, address, bytes, data): GivenArgument) -> Result<Binding> {
    match kind.as_str() {
        "read" => Ok(Binding::Buffer { address, bytes, access: Access::Read }),
        "write" => Ok(Binding::Buffer { address, bytes, access: Access::Write }),
        "value" => Ok(Binding::Scalar(data)),
        "local" => Ok(Binding::Local(usize::try_from(bytes).unwrap_or(usize::MAX))),
        _ => Err(Error::format(format!("argument of kind {kind}; expected read, write, value or local"))),
    }
}

/// A launch as given in Python: kernel, arguments, global size and local size.
pub type GivenLaunch = (String, Vec<GivenArgument>, Vec<u64>, Vec<u64>);

/// Converts one to three sizes; omitted ones are 1.
fn sizes(sizes: &[u64]) -> Result<[u64; 3]> {
    match sizes {
        [x] => Ok([*x, 1, 1]),
        [x, y] => Ok([*x, *y, 1]),
        [x, y, z] => Ok([*x, *y, *z]),
        _ => Err(Error::shape(format!("a launch has {} dimensions, expected 1 to 3", sizes.len()))),
    }
}

/// Builds a launch and checks the kernel's name, the number of arguments and the group size.
pub fn given_launch(
    machine: &Machine,
    program: &Arc<Program>,
    (kernel, arguments, global, local): GivenLaunch,
) -> Result<Arc<KernelLaunch>> {
    let [global, local] = [sizes(&global)?, sizes(&local)?];
    let Some(known) = program.kernel(&kernel) else {
        let names: Vec<&str> = program.kernels().iter().map(|k| k.name.as_str()).collect();
        return Err(Error::format(format!(
            "the program does not have a kernel {kernel}; its kernels are {}",
            names.join(", ")
        )));
    };
    if known.args.len() != arguments.len() {
        return Err(Error::format(format!(
            "{kernel} has {} parameters, but {} arguments are given",
            known.args.len(),
            arguments.len()
        )));
    }
    let most = machine.with(|gpu| Ok(u64::from(gpu.profile().compute.max_group)))?;
    let items = local.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
    if items.is_none_or(|items| items == 0 || items > most) {
        return Err(Error::launch(format!("a group has {local:?} work-items, expected 1 to {most}")));
    }
    let range = NdRange { global, local, offset: [0; 3], dimensions: 3 };
    let bindings = arguments.into_iter().map(binding).collect::<Result<_>>()?;
    Ok(Arc::new(KernelLaunch::new(program, &kernel, bindings, range, machine.launch.clone()).timed(true)))
}
