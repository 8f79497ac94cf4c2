//! Functions of the C driver: GPUs by index, buffers by handle, and one function per operation and per gradient.
//!
//! All buffers hold dense f32 or int32 elements in row-major order. A function returns 1 on success. On failure it returns 0 and sets
//! `netcl_last_error()`. `gpu_index` selects the device of new buffers. Other functions run on the device of their buffers.

mod backward;
mod check;
mod forward;
mod loss;
mod memory;
mod optimizer;
pub mod state;
