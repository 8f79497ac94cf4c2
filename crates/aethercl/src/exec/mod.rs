//! Execution: typed program → bytecode over lanes → interpreter.

mod access;
mod atomic;
pub mod bytecode;
mod chain;
mod clock;
mod collective;
mod count;
mod footprint;
mod gather_scatter;
mod group;
pub mod lanes;
mod live;
mod lower;
mod mask;
mod observe;
mod observe_image;
mod observer;
mod operand;
mod print;
mod run;
mod scheduler;
mod shared;
mod spread;
mod store;
mod texture;
mod turns;
mod values;
mod wait;

pub use lower::{Constants, lower};
pub use mask::Mask;
pub use run::Stop;
pub use scheduler::{run_groups, save};
pub use shared::{Buffer, Shared};
