//! An operation of one's own, outside of netcl: a kernel, its gradient, its reference and samples, checked by netcl's suite.
//!
//!     cargo run --example 04_custom_op

use netcl::kernel::Kernel;
use netcl::prelude::*;
use netcl::tensor::array::Array;
use netcl::tensor::ops::Op;
use netcl::tensor::ops::call::Call;
use netcl::tensor::suite::{self, Input, Sample};

/// Softplus, `y = ln(1 + e^x)`, in a form that does not overflow. The prelude gives LD and ST, which read and write the
/// storage type that DTYPE names.
static SOFTPLUS: Kernel = Kernel::new(
    "softplus",
    "
__kernel void softplus_fwd(__global const T *x, __global T *y, ulong n) {
  const ulong i = get_global_id(0);
  if (i >= n) return;
  const float v = LD(x, i);
  ST(y, i, fmax(v, 0.0f) + log1p(exp(-fabs(v))));
}
__kernel void softplus_bwd(__global const T *x, __global const T *dy, __global T *dx, ulong n) {
  const ulong i = get_global_id(0);
  if (i >= n) return;
  ST(dx, i, LD(dy, i) / (1.0f + exp(-LD(x, i))));
}
",
)
.tune(&[("WG", &[64, 128, 256])]);

#[derive(Clone)]
struct Softplus;

impl Op<1> for Softplus {
    const NAME: &'static str = "softplus";
    type Saved = Tensor;

    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        let x = x.contiguous()?;
        let y = x.empty_like()?;
        let launch = SOFTPLUS.launch("softplus_fwd").define("DTYPE", x.dtype().code()).items(x.count());
        launch.read(&x).write(&y).scalar(x.count()).run()?;
        Ok((y, x))
    }
    fn backward(&self, _: [&Tensor; 1], x: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let dy = dy.contiguous()?;
        let dx = x.empty_like()?;
        let launch = SOFTPLUS.launch("softplus_bwd").define("DTYPE", x.dtype().code()).items(x.count());
        launch.read(x).read(&dy).write(&dx).scalar(x.count()).run()?;
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        x.map(|v| v.exp().ln_1p())
    }
    fn calls() -> Vec<Call> {
        vec![Call::new("softplus", "`ln(1 + e^x)`.").inputs(&["x"]).run(|a| Self.apply(a.inputs()?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [Input::normal(shape)]);
        // e^x overflows there, and its logarithm does not; the reference is exact that far.
        let far = Sample::new(Self, [Input::values(&[3, 37], &[-500.0, -90.0, 90.0, 500.0], None)]);
        vec![sample(&[3, 37]), far.extreme().pointwise(), sample(&[1]), sample(&[0, 4])]
    }
}

/// The program.
pub fn main() -> Result<()> {
    let device = Device::open("auto", &Settings::from_env())?;
    // Values, gradients, storage types, layouts, a second run bit for bit.
    for dtype in DType::FLOATS {
        show(&format!(
            "{dtype}: {} cases agree with the f64 reference",
            suite::run::<Softplus, 1, 1>(&device, dtype)?
        ));
    }
    let x = Tensor::from_f32(&device, [3], &[-1.0, 0.0, 1.0], DType::F32)?.parameter("x");
    let y = Softplus.apply([&x])?;
    y.sum(&[0], false)?.backward()?;
    show(&format!("softplus {:?}, gradient {:?}", y.to_vec()?, x.grad().map(|g| g.to_vec()).transpose()?));
    Ok(())
}

#[allow(clippy::print_stdout)] // it is a program
fn show(line: &str) {
    println!("{line}");
}
