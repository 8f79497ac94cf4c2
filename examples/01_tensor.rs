//! Tensors on a device: creation, computation, views, and reading results.
//!
//!     cargo run --example 01_tensor

use netcl::prelude::*;

/// Runs the example.
pub fn main() -> Result<()> {
    let device = Device::open("auto", &Settings::from_env())?;
    show(&format!("on {}", device.capabilities().name));

    let a = Tensor::from_f32(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], DType::F32)?;
    let b = Tensor::from_f32(&device, [3], &[10.0, 20.0, 30.0], DType::F32)?;
    show(&format!("a + b       {}", a.add(&b)?)); // b is broadcast over the rows
    show(&format!("a · aᵀ      {}", a.matmul(&a.transpose(0, 1)?)?)); // a view: nothing is copied
    show(&format!("row sums    {}", a.sum(&[1], false)?));
    show(&format!("second row  {}", a.slice(0, 1..2)?));

    // Stores in 16 bits and computes in f32.
    let half = a.to_dtype(DType::Bf16)?;
    show(&format!("exp in bf16 {}", half.exp()?));

    // Invalid shapes give an error that names the problem, never a panic.
    if let Err(e) = a.matmul(&a) {
        show(&format!("error       {e}"));
    }
    Ok(())
}

#[allow(clippy::print_stdout)] // a program, not a library
fn show(line: &str) {
    println!("{line}");
}
