//! Parts that blocks of several formats share, on the host and in kernels.

pub mod bytes;
pub mod nibbles;
pub mod plain;
pub mod points;
pub mod six_bits;
pub mod tables;
pub mod ternary;
pub mod two_bits;
