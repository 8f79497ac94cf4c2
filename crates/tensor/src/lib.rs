//! netcl-tensor: tensors, operations with gradients, and the tape.
//!
//! Shapes use these letters: `B` batch, `T` time, `C` channels (width), `H` heads, `D` head size, `N` row length, `V` vocabulary.
#![forbid(unsafe_code)]

pub mod array;
pub mod expr;
pub mod graph;
pub mod opgraph;
pub mod ops;
pub mod quant;
pub mod random;
mod shape;
pub mod suite;
pub mod tape;
mod tensor;

pub use expr::{Lazy, fuse, lazy, unfused};
pub use netcl_device::{Device, Error, ErrorKind, Result, Settings, counted};
pub use netcl_kernel::DType;
pub use random::Generator;
pub use shape::{Layout, Shape};
pub use tape::{detect_anomaly, no_grad};
pub use tensor::Tensor;
