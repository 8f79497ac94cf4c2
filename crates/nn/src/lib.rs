//! Training of models: layers, decoders, data, tokenizers, optimizers, configuration, the training loop, the run folder and its checkpoints.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod decoder;
pub mod evaluate;
pub mod generate;
pub mod layers;
pub mod model;
pub mod optim;
pub mod params;
pub mod ranks;
pub mod run;
pub mod scaling;
pub mod schedule;
pub mod tokenizer;
pub mod train;
pub mod vision;
