//! One simulated GPU for programs that only use addresses: memory, a matrix product, read-backs, and a trace.

mod commands;
mod machine;
mod mapping;
mod memory;
