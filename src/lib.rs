//! netcl trains and runs language models on any OpenCL device.
//!
//! This crate re-exports the line of crates below it; `use netcl::prelude::*` brings what most programs need.
#![forbid(unsafe_code)]

pub use netcl_device as device;
pub use netcl_kernel as kernel;
pub use netcl_nn as nn;
pub use netcl_tensor as tensor;

/// What most programs need.
pub mod prelude {
    pub use netcl_device::{Device, Error, ErrorKind, MatmulPrecision, Result, Settings};
    pub use netcl_tensor::{DType, Shape, Tensor, no_grad};
}
