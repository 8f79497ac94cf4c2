//! Tensors, operations by name, and gradients.

mod device;
mod op;
pub mod state;
mod tensors;
