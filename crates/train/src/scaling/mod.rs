//! Predicts runs on other machines: a model of step time and memory for a number of devices and a link between them.
//!
//! ```text
//! step = accum × (forward + backward) + exposed exchange + update
//! ```
//!
//! - Forward and backward are linear in the rows of a micro-batch. Their time is measured on one device, or is the number of operations divided by a
//!   sustained speed; the backward takes two thirds of it.
//! - Gradients are exchanged in the buffers of `netcl train`, each as soon as the last backward has computed it, while the backward continues. An
//!   exchange has three stages: a copy to the host's memory, the collective operation on the link ([`Link`]) with its sums, and a copy back. They
//!   work at the same time on different buffers. The part that ends after the backward is exposed. Without overlap, all of it is exposed, and the
//!   stages follow each other.
//! - The update moves weights, gradients and the optimizer's state once through the device's memory.
//! - ZeRO-1 divides the optimizer's state and the update among the ranks, ZeRO-2 the gradients as well; both gather the new weights.
//! - A pipeline of `p` stages is as fast as its slowest stage, and has bubbles of `p - 1` micro-batches (1F1B). It sends activations and their
//!   gradients from stage to stage, and exchanges gradients among the `n / p` replicas of a stage.
//!
//! The model ignores differences between devices, links that several ranks share (divide the bandwidth by their number), reading of data, evaluation
//! and checkpoints. It also ignores that small micro-batches use a device less well (measure at that size).

mod memory;
mod time;

pub use memory::Strategy;
pub use netcl_dist::Link;

use crate::config::TrainConfig;
use netcl_device::{Capabilities, Error, Result};
use netcl_model::decoder::DecoderConfig;

/// Sustained rates of a device and of the links that feed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes of device memory that a run may use.
    pub memory: f64,
    /// Bytes per second that the optimizer moves.
    pub memory_bandwidth: f64,
    /// Bytes per second between device and host, in each direction.
    pub relay: f64,
    /// Bytes per second that a host adds up in sums; infinite if devices do it.
    pub sums: f64,
}

/// Constants of an NVIDIA H200 from the project's measurements: copies of page-locked memory in both directions with two active devices, and the
/// training rates of GPT-2's sizes.
pub const H200: (Machine, fn(bool) -> f64) =
    (Machine { memory: 141e9, memory_bandwidth: 3.8e12, relay: 32e9, sums: f64::INFINITY }, h200_flops);

/// Returns the sustained FLOP/s of training steps on an H200: 625 000 tokens/s of 799 MFLOP in bf16, 98 100 in f32.
fn h200_flops(narrow: bool) -> f64 {
    if narrow { 5.0e14 } else { 7.8e13 }
}

/// Speed of one device for its part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compute {
    /// Sustained FLOP/s of forward and backward.
    Flops(f64),
    /// Tokens per second of whole steps of one device.
    TokensPerS(f64),
    /// Seconds of forward and backward of a micro-batch of `rows`, and of an update.
    Measured {
        /// Rows of the micro-batch.
        rows: usize,
        /// Seconds of its forward and backward.
        passes: f64,
        /// Seconds of an update.
        update: f64,
    },
}

/// A run to plan.
#[derive(Clone, Debug)]
pub struct RunToPlan<'a> {
    /// The model.
    pub model: &'a DecoderConfig,
    /// Its settings; `batch` and `grad_accum` give the rows of a step and the largest micro-batch of a device.
    pub config: &'a TrainConfig,
    /// The devices, all alike.
    pub machine: Machine,
    /// Speed of one device.
    pub compute: Compute,
    /// The link of each device to the others.
    pub link: Link,
    /// Whether gradients are exchanged during the backward.
    pub overlap: bool,
}

/// A plan for training on a number of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Number of devices.
    pub devices: usize,
    /// Division of the work between the ranks.
    pub strategy: Strategy,
    /// Rows of a micro-batch on one device.
    pub rows: usize,
    /// Micro-batches of a step on one device.
    pub accum: usize,
    /// Seconds of a step.
    pub step: f64,
    /// Seconds of it in forward and backward, in exposed exchange, and in the update.
    pub parts: [f64; 3],
    /// Tokens per second of all devices.
    pub tokens_per_s: f64,
    /// `tokens_per_s`, divided by `devices` times the speed of one device that does the whole step.
    pub efficiency: f64,
    /// Bytes of memory per device.
    pub memory: f64,
    /// Whether that fits on a device.
    pub fits: bool,
}

impl RunToPlan<'_> {
    /// Returns the rows of a step.
    fn step_rows(&self) -> usize {
        self.config.batch.saturating_mul(self.config.grad_accum as usize).max(1)
    }

    /// Returns the fastest plan that fits, of all ways to divide the work between `devices`. If none fits, returns the one with the least memory.
    ///
    /// # Errors
    /// `Format` for no devices.
    pub fn best(&self, devices: usize) -> Result<Plan> {
        let all = self.plans(devices);
        let least = all.iter().min_by(|a, b| a.memory.total_cmp(&b.memory));
        let none = || Error::format("cannot plan for 0 devices");
        fastest(all.iter()).or(least).copied().ok_or_else(none)
    }

    /// Returns every way to divide the work between `devices`, each with the largest micro-batch that fits.
    pub fn plans(&self, devices: usize) -> Vec<Plan> {
        Strategy::all(devices, self.model.layers)
            .filter_map(|strategy| self.plan(devices, strategy))
            .collect()
    }

    /// Returns a plan for one strategy, with the largest micro-batch that fits, or of one row if none fits.
    pub fn plan(&self, devices: usize, strategy: Strategy) -> Option<Plan> {
        let replicas = devices.checked_div(strategy.stages()).filter(|n| *n > 0)?;
        let rows_each = self.step_rows().div_ceil(replicas);
        let mut rows = self.config.batch.clamp(1, rows_each);
        if strategy.stages() > 1 {
            // Enough micro-batches to fill the pipeline.
            rows = rows.min((rows_each / (4 * strategy.stages())).max(1));
        }
        loop {
            let accum = rows_each.div_ceil(rows);
            let plan = self.of(devices, strategy, (rows, accum));
            if plan.fits || rows == 1 {
                return Some(plan);
            }
            rows = rows.div_ceil(2);
        }
    }

    fn of(&self, devices: usize, strategy: Strategy, (rows, accum): (usize, usize)) -> Plan {
        let replicas = devices / strategy.stages();
        let tokens = (replicas * rows * accum * self.model.context) as f64;
        let parts = self.parts(devices, strategy, (rows, accum));
        let step = parts.iter().sum::<f64>();
        let memory = self.memory(devices, strategy, (rows, accum));
        let alone = self.parts(1, Strategy::Data, (self.config.batch, self.config.grad_accum as usize));
        let alone = (self.step_rows() * self.model.context) as f64 / alone.iter().sum::<f64>();
        Plan {
            devices,
            strategy,
            rows,
            accum,
            step,
            parts,
            tokens_per_s: tokens / step,
            efficiency: tokens / step / (alone * devices as f64),
            memory,
            fits: memory <= self.machine.memory,
        }
    }

    /// Returns the device for memory plans, with the machine's memory.
    fn capabilities(&self) -> Capabilities {
        let floor = Capabilities::floor("planned", netcl_device::DeviceKind::Gpu);
        Capabilities { global_mem: self.machine.memory as u64, ..floor }
    }
}

/// Returns the fastest plan that fits. Simpler strategies come first, and win unless another one is faster.
fn fastest<'a>(plans: impl Iterator<Item = &'a Plan>) -> Option<&'a Plan> {
    plans.filter(|plan| plan.fits).fold(None, |best: Option<&Plan>, plan| match best {
        Some(best) if plan.tokens_per_s <= best.tokens_per_s * 1.01 => Some(best),
        _ => Some(plan),
    })
}

#[cfg(test)]
mod tests;
