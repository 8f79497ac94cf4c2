//! Pipeline training: the layers are divided between ranks, and micro-batches go through them one after the other (1F1B with a flush after each step:
//! PipeDream-Flush, Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training").
//!
//! ```text
//! stage 0   F0 F1          B0 F2    B1 F3    B2    B3        update
//! stage 1      F0 B0    F1 B1    F2 B2    F3 B3              update
//! ```
//!
//! Rank `r` of `P * D` ranks is stage `r % P` of replica `r / P`. A rank has only the weights, gradients and optimizer's state of its layers.
//! Replicas share the rows of each batch, and sum the gradients of a stage as ranks without a pipeline do. A step equals that of one device except
//! for the order of sums. Stages exchange rows of the residual stream and their gradients. The two copies of a tied embedding have the sum of both
//! gradients, and the norm of the gradients is that of all stages.
//!
//! `schedule` is the list of passes, `layers` divides the layers, `pipe` exchanges rows, and `slots` has the graphs of the micro-batches. For a
//! checkpoint, rank 0 gathers the state of all ranks.

mod files;
mod layers;
mod memory;
mod model;
mod pipe;
mod sample;
mod schedule;
mod slots;

pub(super) use files::{own_state, whole_state};
pub use layers::{divided, stage_flops};
pub(crate) use memory::plan_of_stage;
pub(super) use model::Piped;
pub(super) use pipe::{Pipe, StageFormat};
pub(super) use sample::{Served, follow};
pub(super) use schedule::{PipelineTask, tasks};
pub(super) use slots::{Passes, Slot, SlotInputs, Slots};
