//! Image networks: sequential layers, residual networks, transformers.

pub mod models;
mod sequential;
mod transformer;

pub use sequential::{Network, Sequential};
