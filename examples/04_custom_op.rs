//! A custom operation outside of netcl: a kernel, its gradient, a reference and samples, checked by netcl's suite.
//!
//!     cargo run --example 04_custom_op

use netcl::kernel::Kernel;
use netcl::prelude::*;
use netcl::tensor::array::Array;
use netcl::tensor::ops::Op;
use netcl::tensor::ops::call::Call;
use netcl::tensor::suite::{self, Sample, SampleInput};

/// Softsign, `y = x / (1 + |x|)`, whose gradient is `1 / (1 + |x|)^2`. The prelude defines LD and ST, which load and store in the storage
/// type selected by DTYPE.
static SOFTSIGN: Kernel = Kernel::new(
    "softsign",
    "
__kernel void softsign_fwd(__global const T *x, __global T *y, ulong n) {
  const ulong i = get_global_id(0);
  if (i >= n) return;
  const float v = LD(x, i);
  ST(y, i, v / (1.0f + fabs(v)));
}
__kernel void softsign_bwd(__global const T *x, __global const T *dy, __global T *dx, ulong n) {
  const ulong i = get_global_id(0);
  if (i >= n) return;
  const float s = 1.0f / (1.0f + fabs(LD(x, i)));
  ST(dx, i, LD(dy, i) * s * s);
}
",
)
.tune(&[("WG", &[64, 128, 256])]);

#[derive(Clone)]
struct Softsign;

impl Op<1> for Softsign {
    const NAME: &'static str = "softsign";
    type Saved = Tensor;

    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        let x = x.contiguous()?;
        let y = x.empty_like()?;
        let launch = SOFTSIGN.launch("softsign_fwd").define("DTYPE", x.dtype().code()).items(x.count());
        launch.read(&x).write(&y).scalar(x.count()).run()?;
        Ok((y, x))
    }
    fn backward(&self, _: [&Tensor; 1], x: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let dy = dy.contiguous()?;
        let dx = x.empty_like()?;
        let launch = SOFTSIGN.launch("softsign_bwd").define("DTYPE", x.dtype().code()).items(x.count());
        launch.read(x).read(&dy).write(&dx).scalar(x.count()).run()?;
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        x.map(|v| v / (1.0 + v.abs()))
    }
    fn calls() -> Vec<Call> {
        vec![Call::new("softsign", "`x / (1 + |x|)`.").inputs(&["x"]).run(|a| Self.apply(a.inputs()?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]);
        // Values of x for which y is close to its limits.
        let far = Sample::new(Self, [SampleInput::values(&[3, 37], &[-500.0, -90.0, 90.0, 500.0], None)]);
        vec![sample(&[3, 37]), far.extreme().pointwise(), sample(&[1]), sample(&[0, 4])]
    }
}

/// Runs the example.
pub fn main() -> Result<()> {
    let device = Device::open("auto", &Settings::from_env())?;
    // Checks values, gradients, storage types, layouts, and bitwise equality of a second run.
    for dtype in DType::FLOATS {
        show(&format!(
            "{dtype}: {} cases agree with the f64 reference",
            suite::run::<Softsign, 1, 1>(&device, dtype)?
        ));
    }
    let x = Tensor::from_f32(&device, [3], &[-1.0, 0.0, 1.0], DType::F32)?.parameter("x");
    let y = Softsign.apply([&x])?;
    y.sum(&[0], false)?.backward()?;
    show(&format!("softsign {:?}, gradient {:?}", y.to_vec()?, x.grad().map(|g| g.to_vec()).transpose()?));
    Ok(())
}

#[allow(clippy::print_stdout)] // a program, not a library
fn show(line: &str) {
    println!("{line}");
}
