//! netcl trains and runs language models on any OpenCL device.
//!
//! This crate re-exports the line of crates below it; `use netcl::prelude::*` brings what most programs need.
#![forbid(unsafe_code)]

pub use netcl_device as device;
pub use netcl_dist as dist;
pub use netcl_kernel as kernel;
pub use netcl_llm as llm;
pub use netcl_nn as nn;
pub use netcl_tensor as tensor;

/// What most programs need.
pub mod prelude {
    pub use netcl_device::{Device, Error, ErrorKind, MatmulPrecision, Result, Settings};
    pub use netcl_nn::decoder::Decoder;
    pub use netcl_nn::layers::{Embedding, LayerNorm, Linear, Mode, RmsNorm};
    pub use netcl_nn::model::Model;
    pub use netcl_nn::optim::{Optimizer, ParamGroup, Rule};
    pub use netcl_nn::params::{Init, Params};
    pub use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
    pub use netcl_tensor::{DType, Shape, Tensor, no_grad};
}

/// The guide's examples, run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
mod guide {}
