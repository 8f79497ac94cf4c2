//! Models: layers, decoders, image networks, tokenizers, checkpoints. Contains everything for running a model, but no data sets and no optimizers.
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
