//! Tensors, operations by name, gradients.

mod device;
mod op;
pub mod state;
mod tensors;
