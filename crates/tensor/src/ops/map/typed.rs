//! Element-wise operations in each operand's own type: integers, masks, conversions, and writes to parts of tensors. Not recorded on the tape.

use super::super::prelude::*;
use super::alias::must_be_copied;
use super::{CPU_CHUNK, Plan};
use netcl_kernel::Scalar;
use netcl_kernel::generate::{Step, TYPED, TypedSpec, typed_defines};

/// A scalar of an expression: a `long` or a `float`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
}

impl Number {
    fn c_type(self) -> &'static str {
        match self {
            Self::Int(_) => "long",
            Self::Float(_) => "float",
        }
    }
    fn scalar(self) -> Scalar {
        match self {
            Self::Int(n) => n.into(),
            Self::Float(v) => v.into(),
        }
    }
}

/// Returns a new tensor of `shape` and `dtype` whose elements are `expression`, in OpenCL C, over the inputs `x0, x1, …`, broadcast to `shape`, and
/// the scalars `s0, s1, …`. Floats of any storage type are `float`, integers keep their type, and a mask is the `int` 0 or 1.
pub fn map_typed(
    expression: &str,
    inputs: &[&Tensor],
    scalars: &[Number],
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let Some(first) = inputs.first() else { return Err(Error::internal("map without inputs")) };
    let y = Tensor::empty(first.device(), shape, dtype)?;
    map_typed_into(expression, inputs, scalars, &y)?;
    Ok(y)
}

/// Returns copies of the inputs that a kernel which writes y would overwrite, with their numbers.
pub(super) fn copies(inputs: &[&Tensor], y: &Tensor) -> Result<Vec<(usize, Tensor)>> {
    let taken = inputs.iter().enumerate().filter(|(_, x)| must_be_copied(x, y));
    let copied = taken.map(|(i, x)| {
        let copy = Tensor::empty(x.device(), x.shape(), x.dtype())?;
        map_typed_into("x0", &[*x], &[], &copy)?;
        Ok((i, copy))
    });
    copied.collect()
}

/// Computes the same into an existing tensor of any layout without repeated elements. It may be an input or share memory with one, as in
/// [`map_into`](super::map_into).
pub fn map_typed_into(expression: &str, inputs: &[&Tensor], scalars: &[Number], y: &Tensor) -> Result<()> {
    if y.count() == 0 {
        return Ok(());
    }
    let repeated = y.dims().iter().zip(&y.layout().strides).any(|(n, stride)| *n > 1 && *stride == 0);
    if repeated {
        return Err(Error::unsupported(
            "cannot write to a tensor with repeated elements; write to the tensor under the view",
        ));
    }
    let copies = copies(inputs, y)?;
    let copy = |i| copies.iter().find(|(at, _)| *at == i).map(|(_, copy)| copy);
    let inputs: Vec<&Tensor> = inputs.iter().enumerate().map(|(i, x)| copy(i).unwrap_or(x)).collect();
    let mut strides = Vec::with_capacity(inputs.len() + 1);
    for input in &inputs {
        let layout = input.layout().expand(y.shape()).ok_or_else(|| {
            Error::shape(format!("shape {} does not broadcast to {}", input.shape(), y.shape()))
        })?;
        strides.push(layout.strides);
    }
    strides.push(y.layout().strides.clone());
    let plan = Plan::new(y.dims(), &strides);
    let flat = plan.is_flat() && plan.step(inputs.len()) == Step::Unit;
    let kinds: Vec<(DType, bool)> =
        inputs.iter().enumerate().map(|(i, x)| (x.dtype(), plan.step(i) == Step::Zero)).collect();
    let types: Vec<&'static str> = scalars.iter().map(|s| s.c_type()).collect();
    let axes = (!flat).then_some(plan.sizes.len());
    let spec = TypedSpec { expression, inputs: &kinds, scalars: &types, output: y.dtype(), axes };
    let mut launch = TYPED.launch("typed");
    for (name, value) in typed_defines(&spec) {
        launch = launch.define(name, value);
    }
    for input in &inputs {
        launch = launch.read_base(*input).scalar(input.layout().offset);
    }
    for scalar in scalars {
        launch = launch.scalar(scalar.scalar());
    }
    if !flat {
        for number in plan.sizes.iter().chain(plan.strides.iter().flatten()) {
            launch = launch.scalar(*number);
        }
    }
    let n = y.count();
    let launch = launch.write_base(y).scalar(y.layout().offset).scalar(n);
    let units = y.device().capabilities().compute_units.max(1) as usize;
    match y.device().capabilities().is_cpu() {
        true => launch.groups(n.div_ceil(CPU_CHUNK / 4).clamp(1, units * 4)).run(),
        false => launch.groups(n.div_ceil(256).min(units * 32)).run(),
    }
}
