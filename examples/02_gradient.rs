//! Gradients: fits a line by gradient descent, first by hand and then with an optimizer.
//!
//!     cargo run --example 02_gradient

use netcl::prelude::*;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::sync::Arc;

/// Runs the example.
pub fn main() -> Result<()> {
    let device = Device::open("auto", &Settings::from_env())?;
    // The data are y = 3 x - 1 at 32 points.
    let xs: Vec<f32> = (0..32).map(|i| i as f32 / 16.0 - 1.0).collect();
    let ys: Vec<f32> = xs.iter().map(|x| 3.0 * x - 1.0).collect();
    let x = Tensor::from_f32(&device, [32], &xs, DType::F32)?;
    let y = Tensor::from_f32(&device, [32], &ys, DType::F32)?;

    let parameter = |name: &str| Ok::<_, Error>(Tensor::zeros(&device, [1], DType::F32)?.parameter(name));
    let (a, b) = (parameter("a")?, parameter("b")?);
    let loss = || a.mul(&x)?.add(&b)?.sub(&y)?.square()?.mean(&[0], false);

    // Once by hand: backward stores gradients in `grad`.
    loss()?.backward()?;
    for p in [&a, &b] {
        show(&format!(
            "d loss / d {} = {:?}",
            p.name().unwrap_or("?"),
            p.grad().map(|g| g.to_vec()).transpose()?
        ));
        p.set_grad(None);
    }

    let rule = Arc::new(AdamW { betas: [0.9, 0.999], eps: 1e-8 });
    let mut optimizer = Optimizer::new(rule, vec![ParamGroup::new(&[a.clone(), b.clone()], 0.0)])?;
    for step in 0..200 {
        let loss = loss()?;
        optimizer.backward(&loss)?;
        optimizer.step(0.1)?;
        optimizer.zero_grad();
        if step % 50 == 49 {
            show(&format!("step {:3}: loss {:.6}", step + 1, loss.item()?));
        }
    }
    show(&format!("a = {:.3}, b = {:.3}; expected 3 and -1", a.item()?, b.item()?));
    Ok(())
}

#[allow(clippy::print_stdout)] // a program, not a library
fn show(line: &str) {
    println!("{line}");
}
