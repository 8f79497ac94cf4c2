//! What a launch uses: the value being tried, else the stored choice, else the default of the device's class.

use super::{Params, Store};
use crate::define::Value;
use crate::kernel::Kernel;
use netcl_device::Device;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

type Chosen = Arc<Vec<(&'static str, i64)>>;

/// Tuned parameters of one device.
pub struct Tuning {
    store: Store,
    resolved: RwLock<HashMap<(usize, u64), Chosen>>,
    trials: RwLock<HashMap<(&'static str, u64), Params>>,
    /// Kernels and buckets launched since recording began; `None` when nobody asked.
    seen: Mutex<Option<BTreeSet<(&'static str, u64)>>>,
    spaces: RwLock<HashMap<&'static str, Vec<(&'static str, Vec<i64>)>>>,
}

impl Tuning {
    /// That of `device`.
    pub fn of(device: &Device) -> Arc<Self> {
        device.extension(|d| Self {
            store: Store::open(d.settings(), d.capabilities()),
            resolved: RwLock::default(),
            trials: RwLock::default(),
            seen: Mutex::new(None),
            spaces: RwLock::default(),
        })
    }

    /// Stored results.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Adds what `defines` lacks of the kernel's parameters; returns the work-group size, the define `WG` or 1.
    pub(crate) fn resolve(
        &self,
        device: &Device,
        kernel: &Kernel,
        bucket: u64,
        defines: &mut Vec<(&'static str, Value)>,
    ) -> usize {
        if !kernel.space.is_empty() || kernel.cpu_space.is_some() {
            for (name, value) in self.chosen(device, kernel, bucket).iter() {
                if !defines.iter().any(|(n, _)| n == name) {
                    defines.push((name, Value::Int(*value)));
                }
            }
        }
        defines
            .iter()
            .find_map(|(n, v)| match v {
                Value::Int(v) if *n == "WG" => usize::try_from(*v).ok(),
                _ => None,
            })
            .unwrap_or(1)
    }

    /// The value of one parameter, for hosts that compute sizes from it.
    pub fn value(device: &Device, kernel: &Kernel, bucket: u64, name: &str) -> usize {
        let tuning = Self::of(device);
        let chosen = tuning.chosen(device, kernel, bucket);
        chosen.iter().find(|(n, _)| *n == name).and_then(|(_, v)| usize::try_from(*v).ok()).unwrap_or(1)
    }

    fn chosen(&self, device: &Device, kernel: &Kernel, bucket: u64) -> Chosen {
        let key = (std::ptr::from_ref(kernel) as usize, bucket);
        if let Some(seen) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            seen.insert((kernel.name, bucket));
        }
        if let Some(found) = self.resolved.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(found);
        }
        let space = kernel.space_on(device.capabilities());
        self.spaces.write().unwrap_or_else(PoisonError::into_inner).insert(kernel.name, space.clone());
        let default: Chosen =
            Arc::new(space.iter().map(|(n, vs)| (*n, vs.first().copied().unwrap_or(1))).collect());
        let trial =
            self.trials.read().unwrap_or_else(PoisonError::into_inner).get(&(kernel.name, bucket)).cloned();
        let wanted = trial.clone().or_else(|| self.store.choice(kernel.name, bucket));
        let mut chosen = Arc::clone(&default);
        if let Some(wanted) = wanted {
            let values = default.iter().map(|(n, v)| (*n, wanted.get(*n).copied().unwrap_or(*v))).collect();
            let candidate: Chosen = Arc::new(values);
            if trial.is_some() || usable(device, kernel, &candidate) {
                chosen = candidate;
            }
        }
        self.resolved.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&chosen));
        chosen
    }

    /// Uses `params` for a kernel from now on, or what was stored when `None`.
    pub fn try_out(&self, kernel: &'static str, bucket: u64, params: Option<Params>) {
        let mut trials = self.trials.write().unwrap_or_else(PoisonError::into_inner);
        match params {
            Some(p) => trials.insert((kernel, bucket), p),
            None => trials.remove(&(kernel, bucket)),
        };
        self.resolved.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The search space of a kernel that was launched on this device.
    pub fn space_of(&self, kernel: &str) -> Option<Vec<(&'static str, Vec<i64>)>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).get(kernel).cloned()
    }

    /// Notes which kernels are launched from now on.
    pub fn start_recording(&self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(BTreeSet::new());
    }

    /// Kernels with tuned parameters, and buckets, launched since [`Tuning::start_recording`].
    pub fn stop_recording(&self) -> Vec<(&'static str, u64)> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_default()
            .into_iter()
            .collect()
    }
}

/// A stored choice must still build on this device; one that does not is left for the default, with a line that says so.
fn usable(device: &Device, kernel: &Kernel, chosen: &Chosen) -> bool {
    let wg = chosen.iter().find(|(n, _)| *n == "WG").map_or(1, |(_, v)| *v);
    let fits = usize::try_from(wg).is_ok_and(|wg| wg >= 1 && wg <= device.capabilities().max_group);
    if !fits {
        tracing::warn!(
            "tuned work-group {wg} of {} does not fit {}: using the default",
            kernel.name,
            device.capabilities().id
        );
    }
    fits
}

/// Every combination of a space, the default first, at most `limit`.
pub fn combinations(space: &[(&'static str, Vec<i64>)], limit: usize) -> Vec<Params> {
    let mut out = vec![Params::new()];
    for (name, values) in space {
        let mut next = Vec::with_capacity(out.len() * values.len());
        for base in &out {
            for value in values {
                let mut params = base.clone();
                params.insert((*name).into(), *value);
                next.push(params);
            }
        }
        out = next;
    }
    out.truncate(limit);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_start_with_the_default() {
        let all = combinations(&[("WG", vec![64, 128]), ("VW", vec![4, 1, 2])], 100);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0]["WG"], all[0]["VW"]), (64, 4));
        assert_eq!(combinations(&[("A", vec![1, 2, 3])], 2).len(), 2);
        assert_eq!(combinations(&[], 5), vec![Params::new()]);
    }
}
