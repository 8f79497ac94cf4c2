//! Time per kernel, sampled at an interval of engine steps: only the launches in those steps are timed.

use netcl::device::{Device, KernelTime, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Number of steps after which earlier ones count half, so that the page shows recent activity.
const LATELY: f64 = 128.0;

/// Kernel times of the timed steps.
#[derive(Default)]
pub struct Kernels(Mutex<Times>);

/// Launches and seconds per kernel.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Number of steps.
    pub steps: f64,
    /// Launches and seconds by kernel name.
    pub each: HashMap<String, (f64, f64)>,
}

impl Times {
    /// Adds the times of another model.
    pub fn add(&mut self, other: &Times) {
        self.steps += other.steps;
        for (name, (count, seconds)) in &other.each {
            let entry = self.each.entry(name.clone()).or_default();
            *entry = (entry.0 + count, entry.1 + seconds);
        }
    }

    fn add_step(&mut self, kernels: Vec<KernelTime>) {
        if self.steps >= LATELY {
            self.steps /= 2.0;
            self.each
                .values_mut()
                .for_each(|(count, seconds)| (*count, *seconds) = (*count / 2.0, *seconds / 2.0));
        }
        let each = kernels.into_iter().map(|k| (k.name, (k.count as f64, k.seconds))).collect();
        self.add(&Times { steps: 1.0, each });
    }

    /// Returns the kernels, longest time first.
    pub fn sorted(&self) -> Vec<(&str, f64, f64)> {
        let mut all: Vec<_> =
            self.each.iter().map(|(name, (count, seconds))| (name.as_str(), *count, *seconds)).collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(b.0)));
        all
    }
}

impl Kernels {
    /// Returns the times so far.
    pub fn times(&self) -> Times {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Times selected steps.
pub struct Sampled {
    devices: Vec<Device>,
    /// Interval in steps; `None` times no steps.
    every: Option<usize>,
    seen: usize,
}

impl Sampled {
    /// Returns a sampler for engines on these devices.
    pub fn new(devices: &[Device], every: Option<usize>) -> Self {
        let first = |at: usize| !devices[..at].iter().any(|other| other.same(&devices[at]));
        let own = (0..devices.len()).filter(|at| first(*at)).map(|at| devices[at].clone());
        Self { devices: own.collect(), every, seen: 0 }
    }

    /// Begins a step. Returns true if it is timed.
    pub fn begin(&mut self) -> bool {
        let Some(every) = self.every else { return false };
        self.seen += 1;
        let timed = self.seen >= every.max(1);
        if timed {
            self.seen = 0;
            self.devices.iter().for_each(Device::start_profile);
        }
        timed
    }

    /// Ends a timed step.
    ///
    /// # Errors
    /// Device errors.
    pub fn end(&self, kernels: &Kernels) -> Result<()> {
        let mut all = Vec::new();
        for device in &self.devices {
            all.extend(device.stop_profile()?);
        }
        kernels.0.lock().unwrap_or_else(PoisonError::into_inner).add_step(all);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_counts_less() {
        let step =
            |name: &str| vec![KernelTime { name: name.into(), count: 2, seconds: 1.0, bytes: 0, flops: 0 }];
        let mut times = Times::default();
        (0..128).for_each(|_| times.add_step(step("a")));
        times.add_step(step("b"));
        assert_eq!(times.steps, 65.0);
        assert_eq!(times.sorted(), [("a", 128.0, 64.0), ("b", 2.0, 1.0)]);
    }
}
