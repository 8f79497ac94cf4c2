//! Time by kernel, of every so many steps of an engine: launches are timed in those alone.

use netcl::device::{Device, KernelTime, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Of so many steps those before count half, so that the page shows what is done lately.
const LATELY: f64 = 128.0;

/// What kernels took in the steps that were timed.
#[derive(Default)]
pub struct Kernels(Mutex<Times>);

/// Launches and seconds by kernel.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Steps that they are of.
    pub steps: f64,
    /// By kernel: launches, seconds.
    pub each: HashMap<String, (f64, f64)>,
}

impl Times {
    /// Adds those of another model.
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

    /// Kernels, those that took longest first.
    pub fn sorted(&self) -> Vec<(&str, f64, f64)> {
        let mut all: Vec<_> =
            self.each.iter().map(|(name, (count, seconds))| (name.as_str(), *count, *seconds)).collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(b.0)));
        all
    }
}

impl Kernels {
    /// Those so far.
    pub fn times(&self) -> Times {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Times some steps.
pub struct Sampled {
    devices: Vec<Device>,
    /// Every so many; none are timed without it.
    every: Option<usize>,
    seen: usize,
}

impl Sampled {
    /// Of engines on these devices.
    pub fn new(devices: &[Device], every: Option<usize>) -> Self {
        let first = |at: usize| !devices[..at].iter().any(|other| other.same(&devices[at]));
        let own = (0..devices.len()).filter(|at| first(*at)).map(|at| devices[at].clone());
        Self { devices: own.collect(), every, seen: 0 }
    }

    /// A step begins; whether it is timed.
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

    /// A step that is timed has ended.
    ///
    /// # Errors
    /// Those of the device.
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
