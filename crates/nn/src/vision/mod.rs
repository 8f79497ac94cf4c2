//! Networks for images: layers in a row, residual networks, image data, and the training of classifiers.

pub mod classifier;
pub mod data;
pub mod models;
mod sequential;
mod transformer;

pub use sequential::{Network, Sequential};
