//! The training loop: data in, run folder out.
//!
//! ```text
//! prefetch → upload → forward, backward (× grad_accum) → clip → update → next step
//!                                          └ loss and norm are read while the next step runs
//! ```
//!
//! A step of one batch is captured as one graph. With `grad_accum` above 1, forward and backward of one micro-batch are a graph that
//! is replayed for each of them, and the update is one of its own: neither memory nor capture grow with the number of micro-batches,
//! and between two of them the observer may end the run.
//!
//! Everything a step draws comes from (seed, step), so a run that is resumed makes the bits of one that never stopped.

mod ahead;
mod companions;
mod evaluate;
mod explain;
mod inputs;
mod memory;
#[cfg(test)]
mod mutation_tests;
mod observer;
mod passes;
mod peak;
mod resume;
mod stepper;
mod sums;
mod trainer;
mod uploads;

pub use inputs::{Inputs, open_inputs};
pub use memory::MemoryPlan;
pub use observer::{Observer, Profile, RunInfo, Saving, Silent};
pub use peak::measure as matmul_peak;
pub use resume::model_from_dir;
pub use stepper::Stepper;
pub use trainer::{Outcome, ProfileSettings, Trainer};
