//! Models: layers, decoders, networks for images, tokenizers, checkpoints. What running a model needs; training stands on it.
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
