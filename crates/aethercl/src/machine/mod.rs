//! The machine around the compute units: address space and pages, register file, command rings with doorbells, fences, command processor, copy
//! engines, and a simulated clock. `docs/aethercl.md` follows a matrix multiplication through it.

mod engines;
mod error;
mod fault;
mod gpu;
mod host;
mod journal;
mod launch;
mod mapped;
mod moves;
mod narrate;
mod packet;
mod processor;
pub mod registers;
mod residency;
mod ring;
pub mod scheduling;
mod trace;
mod vram;
pub mod window;
mod work;

#[cfg(test)]
mod scheduling_tests;
#[cfg(test)]
mod tests;

pub use engines::{CopyDirection, Interval, Share};
pub use error::GpuError;
pub use fault::Faults;
pub use gpu::{Gpu, MachineOptions};
pub use host::HostMemory;
pub use launch::{Binding, KernelLaunch};
pub use moves::Moves;
pub use narrate::{Narrator, Sink, TraceLevel, human_ns};
pub use packet::{BadPacket, Packet};
pub use scheduling::{DispatchScheduler, MemoryScheduler, PageRun, ReadyQueue, Resident, Schedulers};
pub use trace::{Timeline, Track};
pub use vram::{PAGE, Vram};
pub use window::Window;
pub use work::{Callback, CommandOutcome, Completion, Done, Failure, Fence, Origin, Work};
