//! Execution: typed program → bytecode over lanes → interpreter.

mod access;
mod atomic;
pub mod bytecode;
mod chain;
mod collective;
mod count;
mod deal;
mod footprint;
mod group;
pub mod lanes;
mod live;
mod lower;
mod mask;
mod observe;
mod operand;
mod print;
mod run;
mod spread;
mod store;
mod values;

pub use deal::run_groups;
pub use group::{Buffer, Group, Shared};
pub use lower::{Constants, lower};
pub use mask::Mask;
pub use observe::Observer;
pub use run::Stop;
