//! Checks the output of the examples.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../examples/04_custom_op.rs"]
mod custom_op;
#[path = "../examples/02_gradient.rs"]
mod gradient;
#[path = "../examples/01_tensor.rs"]
mod tensor;
#[path = "../examples/03_train_gpt.rs"]
mod train_gpt;

#[test]
fn e01_tensor() {
    tensor::main().unwrap();
}

#[test]
fn e02_gradient() {
    gradient::main().unwrap();
}

#[test]
fn e03_train_gpt() {
    train_gpt::main().unwrap();
}

#[test]
fn e04_custom_op() {
    custom_op::main().unwrap();
}
