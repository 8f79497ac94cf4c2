//! One simulated GPU for programs that want nothing but addresses: memory, a matrix product, read-backs, told in words.

mod commands;
mod machine;
mod memory;
