//! netcl trains and runs language models on any OpenCL device.
//!
//! This crate re-exports the line of crates below it; `use netcl::prelude::*` brings what most programs need.
#![forbid(unsafe_code)]

pub use netcl_device as device;
pub use netcl_dist as dist;
pub use netcl_kernel as kernel;
pub use netcl_llm as llm;
pub use netcl_model as model;
pub use netcl_tensor as tensor;
pub use netcl_train as train;

/// The items that most programs need.
pub mod prelude {
    pub use netcl_device::{Device, Error, ErrorKind, MatmulPrecision, Result, Settings};
    pub use netcl_model::decoder::Decoder;
    pub use netcl_model::layers::{Embedding, LayerNorm, Linear, Mode, RmsNorm};
    pub use netcl_model::model::Model;
    pub use netcl_model::params::{Init, Params};
    pub use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
    pub use netcl_tensor::{DType, Shape, Tensor, no_grad};
    pub use netcl_train::optim::{Adam, AdamW, Lion, Optimizer, ParamGroup, Rule, Sgd};
}

/// The Rust blocks of the book, run as documentation tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/book/fusion.md")]
    mod fusion {}
    #[doc = include_str!("../docs/book/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../docs/book/images.md")]
    mod images {}
    #[doc = include_str!("../docs/book/rust.md")]
    mod rust {}
    #[doc = include_str!("../docs/book/several-devices.md")]
    mod several_devices {}
    #[doc = include_str!("../docs/book/threads.md")]
    mod threads {}
}
