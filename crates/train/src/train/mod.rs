//! The training loop: data in, run folder out.
//!
//! ```text
//! prefetch → upload → forward, backward (× grad_accum) → clip → update → next step
//!                                          └ loss and norm are read while the next step runs
//! ```
//!
//! A step with one batch is captured as one graph. With `grad_accum` above 1, forward and backward of one micro-batch are one graph, replayed for
//! each micro-batch, and the update is another. Neither memory nor capture time grow with the number of micro-batches. The observer can stop the
//! run between two of them.
//!
//! All random numbers of a step are functions of (seed, step), so a resumed run is bit-identical to an uninterrupted one.

mod adapters;
mod ahead;
mod balance;
mod companions;
mod divided;
mod explain;
mod fitting;
mod gathered;
mod inputs;
mod losses;
mod memory;
#[cfg(test)]
mod mutation_tests;
mod next_token;
mod observer;
mod parallel;
mod peak;
mod pipeline;
mod preference;
mod profiling;
mod rank_stats;
mod reducer;
mod rows;
mod rule;
mod shares;
mod statistics;
mod stepper;
mod sums;
mod trainer;
pub(crate) mod training;
mod uploads;
mod watchdog;
mod zero;

pub(crate) use balance::Balance;
pub(crate) use explain::explained;
pub use fitting::fitted;
pub use inputs::{InputData, Inputs, open_inputs};
pub use memory::MemoryPlan;
pub use observer::{Observer, Profile, RunInfo, Saving, Silent};
pub use peak::measure as matmul_peak;
pub(crate) use pipeline::plan_of_stage;
pub use pipeline::{divided as divided_layers, stage_flops};
pub use profiling::ProfileSettings;
pub use rank_stats::{RankStage, RankTimes, SpeedUnit};
pub use shares::Shares;
pub(crate) use statistics::Statistics;
pub use stepper::Stepper;
pub(crate) use sums::{BUCKET, FIRST_BUCKET, is_apart};
pub use trainer::Trainer;
pub use training::{Outcome, Sharding};
pub use watchdog::STARTUP_TIMEOUT as PATIENCE;
