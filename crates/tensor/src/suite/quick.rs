//! The shortest check of every kernel of a device.

use super::case::Depth;
use super::survey::survey;
use crate::ops::OpEntry;
use crate::{DType, Device, Error, Result};
use netcl_kernel::tune::Tuning;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

type Kernels = BTreeSet<&'static str>;
type Entries = BTreeSet<(&'static str, &'static str)>;

/// A case to run: index of the operation in the list, index of the case.
type Chosen = (usize, usize);

/// Compares each f32 kernel that a device chooses for the samples of these operations with the reference, at least once and in as few cases as
/// possible. It uses as many devices as `open` opens. Returns the kernels and the failures.
///
/// # Errors
/// Those of `open`.
pub fn quick(
    open: &(dyn Fn() -> Result<Device> + Sync),
    ops: &'static [OpEntry],
    threads: usize,
) -> Result<(Kernels, Vec<String>)> {
    let first = open()?;
    let chosen = fewest(&first, ops)?;
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Kernels::new(), Vec::new()));
    let look = |device: &Device| {
        let tuning = Tuning::of(device);
        while let Some(&(op, case)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cases = ops[op].cases(DType::F32).unwrap_or_default();
            let Some(case) = cases.get(case) else { continue };
            tuning.start_recording();
            let outcome = case.check(device, Depth::Values);
            let seen = tuning.stop_recording();
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.0.extend(seen.kernels.keys());
            found.1.extend(outcome.err().map(|e: Error| e.message().to_owned()));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(chosen.len()) {
            if let Ok(device) = open() {
                scope.spawn(move || look(&device));
            }
        }
        look(&first);
    });
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns cases that launch every kernel that any case launches, cheap ones first. Each next case has the most new kernels per function that the
/// driver must compile for it.
fn fewest(device: &Device, ops: &[OpEntry]) -> Result<Vec<Chosen>> {
    let all: Vec<(Chosen, Entries)> =
        survey(device, ops)?.into_iter().map(|s| ((s.op, s.case), s.recording.entries)).collect();
    let mut missing: Kernels = all.iter().flat_map(|(_, entries)| entries.iter().map(|(k, _)| *k)).collect();
    let (mut compiled, mut out) = (Entries::new(), Vec::new());
    while !missing.is_empty() {
        let gain = |entries: &Entries| {
            let kernels: Kernels = entries.iter().map(|(k, _)| *k).filter(|k| missing.contains(k)).collect();
            // In thousandths, for comparisons of integers.
            kernels.len() * 1000 / entries.difference(&compiled).count().max(1)
        };
        let Some((chosen, entries)) = all.iter().max_by_key(|(_, entries)| gain(entries)) else { break };
        missing.retain(|kernel| !entries.iter().any(|(k, _)| k == kernel));
        compiled.extend(entries);
        out.push(*chosen);
    }
    Ok(out)
}
