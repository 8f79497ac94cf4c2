//! Steps that are captured once and replayed: the same commands on the same memory, without the work of creating them.
//!
//! ```text
//! a step or two eagerly     kernels are compiled, verified and tuned
//! Trace::of(step)           the step runs; its allocations and launches are recorded
//! Plan::new(trace)          every buffer gets an address, by the time of its use; buffers share memory
//! Graph::planned(plan)      the step is recorded again without running; each launch gets a kernel object with its arguments
//! graph.replay()            one driver call per launch, as often as needed
//! ```
//!
//! Values that change between replays are in device memory that existed before the capture: inputs, the learning rate, and the start of
//! dropout's random stream. The host writes them before a replay and reads results after it.
//!
//! A step that is being captured must not read on the host or replay another graph; both are refused. If a capture fails or panics,
//! recording ends and the earlier gradients are restored, because those of the failed step were never computed. Replays on one device are
//! enqueued in sequence, from any thread.

mod overlap;
mod plan;
mod record;
mod replay;

pub use plan::{Assignment, BufferPlan};
pub use record::{LiveRange, Trace};
pub use replay::{Between, Graph};
