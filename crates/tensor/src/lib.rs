//! netcl-tensor: tensors, operations with gradients, and the tape.
//!
//! Shapes use these letters: `B` batch, `T` time, `C` channels (width), `H` heads, `D` head size, `N` row length, `V` vocabulary.
//!
//! The way of an op, for example `layer_norm(&x, &gamma, &beta, 1e-5)`: the function checks shapes and types; its error names the
//! argument, the expected and the found value. `Op::apply` (`ops/op.rs`) runs `forward` with recording off. `forward` allocates results
//! from the pool and describes launches of `netcl-kernel`. If an input needs a gradient, the tape records a node with the inputs and a
//! closure that owns the saved values. `loss.backward()` calls the op's `backward`, which returns the gradients of the inputs.
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
