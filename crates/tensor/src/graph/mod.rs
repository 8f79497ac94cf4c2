//! Steps that are captured once and replayed: the same commands over the same memory, without what it took to make them.
//!
//! ```text
//! a step or two as ever     kernels are compiled, proven and tuned
//! Trace::of(step)           the step runs; what it allocates and launches is noted
//! Plan::new(trace)          every buffer gets a place, by when it is used; buffers share memory
//! Graph::planned(plan)      the step is made again: noted, not run; each launch gets a kernel object with its arguments
//! graph.replay()            one driver call a launch, as often as wanted
//! ```
//!
//! What changes from replay to replay lies in device memory that was there before the capture: inputs, the learning rate,
//! where dropout's stream begins. The host writes it before a replay and reads results after it.

mod overlap;
mod plan;
mod record;
mod replay;

pub use plan::{Assignment, Plan};
pub use record::{LiveRange, Trace};
pub use replay::{Between, Graph};
