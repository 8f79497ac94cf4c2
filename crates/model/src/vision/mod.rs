//! Networks for images: layers in a row, residual networks, transformers.

pub mod models;
mod sequential;
mod transformer;

pub use sequential::{Network, Sequential};
