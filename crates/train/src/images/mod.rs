//! Training on images: data sets and classifiers.

pub mod classifier;
pub mod data;
