//! The training loop: data in, run folder out.
//!
//! ```text
//! prefetch → upload → forward, backward (× grad_accum) → clip → update → next step
//!                                          └ loss and norm are read while the next step runs
//! ```
//!
//! Everything a step draws comes from (seed, step), so a run that is resumed makes the bits of one that never stopped.

mod evaluate;
mod explain;
mod inputs;
mod memory;
mod observer;
mod peak;
mod profile;
mod report;
mod resume;
mod step;
mod stepper;
mod trainer;
mod uploads;

pub use inputs::{Inputs, open_inputs};
pub use memory::MemoryPlan;
pub use observer::{Observer, RunInfo, Silent};
pub use peak::measure as matmul_peak;
pub use profile::{Profile, ProfileSettings};
pub use resume::model_from_dir;
pub use stepper::Stepper;
pub use trainer::{Outcome, Trainer};
