//! AetherCL as an OpenCL driver: `libaethercl.so`, which programs reach through an ICD loader or link directly.
//!
//! The line: [`api`] has the functions that C calls; each hands over to platform, context, queue, memory, program or kernel, which find
//! their objects in [`registry`] and follow pointers through [`raw`] alone. Commands run on the machine of the crate `aethercl`.

#![allow(clippy::too_many_arguments)] // OpenCL's signatures

mod answer;
pub mod api;
pub mod calls;
mod cl;
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
pub mod summary;
