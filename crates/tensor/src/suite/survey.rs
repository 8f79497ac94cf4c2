//! What the suite launches on a device, seen without it: on one like it that computes nothing.

use super::case::Depth;
use crate::ops::OpEntry;
use crate::{DType, Device, Result, Settings};
use netcl_device::null::NullDriver;
use netcl_kernel::tune::{Recording, Tuning};
use std::collections::BTreeMap;

/// What one case launches.
pub(super) struct Seen {
    /// The op's place in the list.
    pub op: usize,
    /// The case's place among the op's.
    pub case: usize,
    /// What it launched.
    pub recording: Recording,
}

/// What each case of f32 launches with what the device chooses by itself.
///
/// # Errors
/// Of an op that does not even get to its launches.
pub(super) fn survey(device: &Device, ops: &[OpEntry]) -> Result<Vec<Seen>> {
    let settings = Settings {
        no_binary_cache: true,
        trust_kernels: true,
        cache_dir: device.settings().cache_dir.clone(),
        disable: device.settings().disable.clone(),
        ..Settings::default()
    };
    let twin = Device::from_driver(Box::new(NullDriver::new(device.capabilities().clone())), settings);
    let tuning = Tuning::of(&twin);
    let mut out = Vec::new();
    for (op, entry) in ops.iter().enumerate() {
        for (case, run) in (entry.cases)(DType::F32)?.iter().enumerate() {
            tuning.start_recording();
            let ran = run.check(&twin, Depth::Launches);
            out.push(Seen { op, case, recording: tuning.stop_recording() });
            ran?;
        }
    }
    Ok(out)
}

/// Which op tries the candidates of what serves several: the first in the list that uses it, for that has most shapes of it.
#[derive(Debug, Default)]
pub struct Owners {
    jobs: BTreeMap<&'static str, &'static str>,
    entries: BTreeMap<(&'static str, &'static str), &'static str>,
}

impl Owners {
    /// On a device like this.
    ///
    /// # Errors
    /// Of an op that does not even get to its launches.
    pub fn of(device: &Device, ops: &'static [OpEntry]) -> Result<Self> {
        let mut out = Self::default();
        for Seen { op, recording, .. } in survey(device, ops)? {
            for job in recording.variants {
                out.jobs.entry(job).or_insert(ops[op].name);
            }
            for entry in recording.entries {
                out.entries.entry(entry).or_insert(ops[op].name);
            }
        }
        Ok(out)
    }
    /// Whether `op` tries these variants: also where the survey did not see who does.
    pub(super) fn has_job(&self, op: &str, job: &str) -> bool {
        self.jobs.get(job).is_none_or(|owner| *owner == op)
    }
    /// The same of a kernel's function.
    pub(super) fn has_entry(&self, op: &str, entry: (&str, &str)) -> bool {
        let found = self.entries.iter().find(|((k, e), _)| (*k, *e) == entry);
        found.is_none_or(|(_, owner)| *owner == op)
    }
}
