//! Execution: typed program → bytecode over lanes → interpreter.

pub mod lanes;
