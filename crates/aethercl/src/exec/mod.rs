//! Execution: typed program → bytecode over lanes → interpreter.

pub mod bytecode;
pub mod lanes;
mod lower;
