//! Ways to divide a run, and the memory per device of each.

use super::RunToPlan;
use crate::config::TrainConfig;
use crate::train::{MemoryPlan, divided_layers, plan_of_stage, stage_flops};
use std::fmt;

/// A division of work and state between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Every device has the whole model, and rows of the batch.
    Data,
    /// Data parallelism with partitioned optimizer state (ZeRO-1).
    Optimizer,
    /// ZeRO-1 with partitioned gradients (ZeRO-2).
    Gradients,
    /// Layers in this many stages, through which micro-batches pass one after another (1F1B).
    Pipeline(usize),
}

impl Strategy {
    /// Returns all strategies for a number of devices and layers, the simplest first.
    pub fn all(devices: usize, layers: usize) -> impl Iterator<Item = Self> {
        let sharded = [Self::Optimizer, Self::Gradients].into_iter().filter(move |_| devices > 1);
        let stages = (1..usize::BITS).map(|i| 1usize << i);
        let stages = stages.take_while(move |p| *p <= devices && *p <= layers);
        let stages = stages.filter(move |p| devices.is_multiple_of(*p)).map(Self::Pipeline);
        std::iter::once(Self::Data).filter(move |_| devices > 0).chain(sharded).chain(stages)
    }

    /// Returns the number of pipeline stages; 1 without a pipeline.
    pub fn stages(self) -> usize {
        match self {
            Self::Pipeline(stages) => stages.max(1),
            _ => 1,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data => f.write_str("data parallel"),
            Self::Optimizer => f.write_str("ZeRO-1"),
            Self::Gradients => f.write_str("ZeRO-2"),
            Self::Pipeline(stages) => write!(f, "pipeline of {stages}"),
        }
    }
}

/// Maximum number of devices per machine, which share its memory.
const MACHINE: usize = 8;

impl RunToPlan<'_> {
    /// Returns the estimate for a single device, with micro-batches of `rows`.
    pub(super) fn whole(&self, rows: usize, accum: usize) -> MemoryPlan {
        let grad_accum = u32::try_from(accum).unwrap_or(u32::MAX);
        let config = TrainConfig { batch: rows, grad_accum, ..self.config.clone() };
        MemoryPlan::of(&config, self.model, &self.capabilities())
    }

    /// Returns the bytes of memory per device.
    pub(super) fn memory(&self, devices: usize, strategy: Strategy, (rows, accum): (usize, usize)) -> f64 {
        let plan = self.whole(rows, accum);
        // With more devices, gradients are exchanged by messages.
        let share_memory = devices <= MACHINE;
        let plan = match strategy {
            Strategy::Data => plan.divided_between(devices, 0, share_memory),
            Strategy::Optimizer => plan.divided_between(devices, 1, share_memory),
            Strategy::Gradients => plan.divided_between(devices, 2, share_memory),
            Strategy::Pipeline(stages) => return self.largest_stage(stages, (rows, accum)),
        };
        plan.device() as f64
    }

    /// Returns the bytes of memory of the stage that needs the most.
    fn largest_stage(&self, stages: usize, (rows, accum): (usize, usize)) -> f64 {
        let Ok(spans) = divided_layers(self.model, &vec![1.0; stages]) else { return f64::INFINITY };
        let grad_accum = u32::try_from(accum).unwrap_or(u32::MAX);
        let config = TrainConfig { batch: rows, grad_accum, ..self.config.clone() };
        let capabilities = self.capabilities();
        let of = |(i, span)| plan_of_stage(&config, self.model, &capabilities, (span, i, stages)).device();
        spans.iter().enumerate().map(of).max().unwrap_or(u64::MAX) as f64
    }

    /// Returns the share of a step's operations in the slowest of this many stages.
    pub(super) fn slowest_stage(&self, stages: usize) -> f64 {
        let Ok(spans) = divided_layers(self.model, &vec![1.0; stages]) else { return 1.0 };
        let all: Vec<f64> = spans.iter().map(|span| stage_flops(self.model, span)).collect();
        all.iter().copied().fold(0.0, f64::max) / all.iter().sum::<f64>()
    }
}
