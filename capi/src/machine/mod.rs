//! AetherCL, the simulated GPU, as a program in C sees it: device memory, queues, doorbells, registers, kernels, findings, counters.

pub mod commands;
mod launch;
pub mod results;
pub mod state;
mod window;
