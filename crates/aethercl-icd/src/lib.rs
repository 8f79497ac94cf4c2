//! AetherCL as an OpenCL driver: `libaethercl.so`. Programs load it through an ICD loader or link it directly.
//!
//! [`api`] exports the C functions. Each calls into platform, context, queue, memory, program or kernel. These modules look up objects in
//! [`registry`] and dereference pointers only through [`raw`]. The simulated GPU of the crate `aethercl` executes the commands.

#![allow(clippy::too_many_arguments)] // OpenCL's signatures

mod answer;
pub mod api;
mod calls;
pub mod cl;
mod context;
mod device;
mod kernel;
mod limits;
mod memory;
mod platform;
mod program;
mod queue;
pub mod raw;
mod refused;
mod registry;
mod report;
mod sampler;
mod settings;
