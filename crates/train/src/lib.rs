//! Training of models: data, optimizers, configuration, the training loop, distributed training, the run folder and its reports.
#![forbid(unsafe_code)]

pub mod config;
pub mod data;
pub mod evaluate;
pub mod images;
pub mod optim;
pub mod rollouts;
pub mod run;
pub mod scaling;
pub mod schedule;
pub mod settings;
mod train;

pub use train::{
    InputData, Inputs, MemoryPlan, Observer, Outcome, PATIENCE, Profile, ProfileSettings, RankStage,
    RankTimes, RunInfo, Saving, Sharding, Shares, Silent, SpeedUnit, Stepper, Trainer, divided_layers,
    fitted, matmul_peak, open_inputs, stage_flops,
};
