//! C interface of AetherCL, the simulated GPU: device memory, queues, doorbells, registers, kernels, findings and counters.

pub mod commands;
mod launch;
pub mod results;
pub mod state;
mod window;
