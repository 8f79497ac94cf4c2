//! Models: layers, decoders, networks for images, tokenizers, checkpoints. Everything that running a model needs; no data sets and no optimizers.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod decoder;
pub mod folder;
pub mod generate;
pub mod layers;
pub mod model;
pub mod names;
pub mod params;
pub mod ranks;
pub mod tokenizer;
pub mod vision;
