//! Records the launches of the suite on a device without running them, on a twin device that does not compute.

use super::case::{Case, Depth};
use crate::ops::OpEntry;
use crate::{DType, Device, Result, Settings};
use netcl_device::null::NullDriver;
use netcl_kernel::tune::{Recording, Tuning};
use std::collections::{BTreeMap, BTreeSet};

/// Launches of one case.
pub(super) struct CaseLaunches {
    /// Index of the op in the list.
    pub op: usize,
    /// Index of the case in the op.
    pub case: usize,
    /// Its launches.
    pub recording: Recording,
}

/// Records the launches of each f32 case with the device's default choices.
///
/// # Errors
/// Errors of an op before its launches.
pub(super) fn survey(device: &Device, ops: &[OpEntry]) -> Result<Vec<CaseLaunches>> {
    survey_on(&twin_of(device), ops)
}

/// Creates a device with the same capabilities that does not compute.
pub(super) fn twin_of(device: &Device) -> Device {
    let settings = Settings {
        no_binary_cache: true,
        trust_kernels: true,
        cache_dir: device.settings().cache_dir.clone(),
        quarantine_dir: device.settings().quarantine_dir.clone(),
        disable: device.settings().disable.clone(),
        ..Settings::default()
    };
    Device::from_driver(Box::new(NullDriver::new(device.capabilities().clone())), settings)
}

fn survey_on(twin: &Device, ops: &[OpEntry]) -> Result<Vec<CaseLaunches>> {
    let mut out = Vec::new();
    for (op, entry) in ops.iter().enumerate() {
        for (case, run) in entry.cases(DType::F32)?.iter().enumerate() {
            out.push(CaseLaunches { op, case, recording: launches(twin, run)? });
        }
    }
    Ok(out)
}

/// Records the launches of a case on a device that does not compute.
pub(super) fn launches(twin: &Device, case: &Case) -> Result<Recording> {
    let tuning = Tuning::of(twin);
    tuning.start_recording();
    let ran = case.check(twin, Depth::Launches);
    let recording = tuning.stop_recording();
    ran.map(|()| recording)
}

/// Returns the index of the first op in `ops` that launches each variant of the job `name` when it is tried. Storage is f32, or bf16 for variants
/// that only support 16-bit types.
fn reach(
    twin: &Device,
    ops: &[OpEntry],
    name: &'static str,
    buckets: &[u64],
) -> Result<BTreeMap<String, usize>> {
    let tuning = Tuning::of(twin);
    let mut out = BTreeMap::new();
    for params in tuning.candidates(name) {
        let Some(variant) = params.keys().next() else { continue };
        buckets.iter().for_each(|bucket| tuning.try_out(name, *bucket, Some(params.clone())));
        let found = first_with(twin, ops, name, variant);
        buckets.iter().for_each(|bucket| tuning.try_out(name, *bucket, None));
        if let Some(op) = found? {
            out.insert(variant.clone(), op);
        }
    }
    Ok(out)
}

fn first_with(twin: &Device, ops: &[OpEntry], job: &str, variant: &str) -> Result<Option<usize>> {
    for dtype in [DType::F32, DType::Bf16] {
        for (op, entry) in ops.iter().enumerate() {
            for case in entry.cases(dtype)? {
                let seen = launches(twin, &case)?;
                if seen.kernels.contains_key(variant) {
                    return Ok(Some(op));
                }
                // The cases of an op differ in their shapes, not in their jobs.
                if !seen.variants.contains(job) {
                    break;
                }
            }
        }
    }
    Ok(None)
}

/// Assigns candidates that serve several ops to one op. A kernel's values are tried by the first op in the list that launches it, and a
/// job's variants by the first op with a suitable shape.
#[derive(Debug, Default)]
pub struct Owners {
    variants: BTreeMap<&'static str, BTreeMap<String, &'static str>>,
    entries: BTreeMap<(&'static str, &'static str), &'static str>,
}

impl Owners {
    /// Computes the assignment for a device like this.
    ///
    /// # Errors
    /// Errors of an op before its launches.
    pub fn of(device: &Device, ops: &'static [OpEntry]) -> Result<Self> {
        let (mut out, twin) = (Self::default(), twin_of(device));
        let mut jobs: BTreeMap<&'static str, BTreeSet<u64>> = BTreeMap::new();
        for CaseLaunches { op, recording, .. } in survey_on(&twin, ops)? {
            for (job, bucket) in recording.tuned.iter().filter(|(name, _)| recording.variants.contains(name))
            {
                jobs.entry(job).or_default().insert(*bucket);
            }
            for entry in recording.entries {
                out.entries.entry(entry).or_insert(ops[op].name);
            }
        }
        for (job, buckets) in jobs {
            let owners = reach(&twin, ops, job, &buckets.into_iter().collect::<Vec<_>>())?;
            out.variants
                .insert(job, owners.into_iter().map(|(variant, op)| (variant, ops[op].name)).collect());
        }
        Ok(out)
    }
    /// Returns whether `op` tries this variant. Also true if the survey did not find an op for it.
    pub(super) fn has_variant(&self, op: &str, job: &str, variant: &str) -> bool {
        self.variants.get(job).and_then(|owners| owners.get(variant)).is_none_or(|owner| *owner == op)
    }
    /// Returns whether `op` tries this kernel function.
    pub(super) fn has_entry(&self, op: &str, entry: (&str, &str)) -> bool {
        let found = self.entries.iter().find(|((k, e), _)| (*k, *e) == entry);
        found.is_none_or(|(_, owner)| *owner == op)
    }
}
