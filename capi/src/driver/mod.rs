//! The C driver's functions: a GPU by its index, buffers by handles, one function an operation and one its gradient.
//!
//! All buffers hold f32 or int32 without gaps, the last axis fastest. A function answers 1 where it did what it was asked for, and 0 with
//! `netcl_last_error()` where it did not. `gpu_index` chooses the device of new buffers; other functions work on that of their buffers.

mod backward;
mod forward;
mod loss;
mod memory;
mod optimizer;
pub mod state;
