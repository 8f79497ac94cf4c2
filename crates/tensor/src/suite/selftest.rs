//! The self-test of a device: the suite of every op with every variant and every tuned parameter, and which of them to blame
//! where it fails.

use super::SuiteFn;
use crate::ops::OpEntry;
use crate::{DType, Device, Result};
use netcl_kernel::tune::{Params, Recording, Suspect, Tuning};
use std::collections::BTreeSet;

/// What the self-test of one op found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The op.
    pub op: &'static str,
    /// Cases compared.
    pub cases: usize,
    /// Kernels that were launched.
    pub kernels: Vec<&'static str>,
    /// What failed and has a substitute that passes; now in quarantine.
    pub suspects: Vec<Suspect>,
    /// The failure that nothing at hand avoids.
    pub failure: Option<String>,
}

/// A self-test in progress. What it finds goes into the device's quarantine in memory; [`SelfTest::finish`] writes it.
pub struct SelfTest {
    device: Device,
    /// Kernels whose candidates were all tried: some serve many ops.
    tried: BTreeSet<(&'static str, u64)>,
    limit: usize,
}

impl SelfTest {
    /// Begins with an empty quarantine, so that what was in it is tested again. `limit` bounds the candidates of a kernel.
    pub fn new(device: &Device, limit: usize) -> Self {
        let tuning = Tuning::of(device);
        tuning.quarantine().replace(Vec::new());
        tuning.refresh();
        Self { device: device.clone(), tried: BTreeSet::new(), limit }
    }

    /// Tests one op.
    pub fn run(&mut self, op: &OpEntry) -> Verdict {
        let tuning = Tuning::of(&self.device);
        tuning.start_recording();
        let first = self.suite(op.suite, &DType::FLOATS);
        let recording = tuning.stop_recording();
        let broken = first.as_ref().err().map(|e| e.message().to_owned());
        let mut cases = first.unwrap_or_default();
        let mut suspects = Vec::new();
        for &(kernel, bucket) in &recording.tuned {
            if self.tried.insert((kernel, bucket)) || broken.is_some() {
                let (found, more) = self.candidates(op, kernel, bucket, broken.as_deref(), &recording);
                suspects.extend(found);
                cases += more;
            }
        }
        let mut failure = None;
        if !suspects.is_empty() {
            let mut all = tuning.quarantine().suspects();
            all.extend(suspects.iter().cloned());
            tuning.quarantine().replace(all);
            tuning.refresh();
        }
        if broken.is_some() {
            // Without the suspects it must pass; where there are none, this says again what is wrong.
            failure = self.suite(op.suite, &DType::FLOATS).err().map(|e| e.message().to_owned());
            if suspects.is_empty() && failure.is_none() {
                failure = broken.map(|why| format!("fails now and then: {why}"));
            }
        }
        Verdict { op: op.name, cases, kernels: recording.kernels.into_keys().collect(), suspects, failure }
    }

    /// Tries each candidate. One is to blame where it fails and another passes; where all fail it is not this kernel.
    fn candidates(
        &self,
        op: &OpEntry,
        kernel: &'static str,
        bucket: u64,
        broken: Option<&str>,
        recording: &Recording,
    ) -> (Vec<Suspect>, usize) {
        let tuning = Tuning::of(&self.device);
        let all = tuning.candidates(kernel);
        let variants = !recording.kernels.contains_key(kernel);
        let dtypes: &[DType] = if variants || broken.is_some() { &DType::FLOATS } else { &[DType::F32] };
        let (mut failed, mut passed, mut cases) = (Vec::new(), 0, 0);
        for (i, params) in all.into_iter().take(self.limit).enumerate() {
            if i == 0 && broken.is_none() {
                passed += 1;
                continue;
            }
            tuning.start_recording();
            tuning.try_out(kernel, bucket, Some(params.clone()));
            let outcome = self.suite(op.suite, dtypes);
            tuning.try_out(kernel, bucket, None);
            let launched = tuning.stop_recording();
            match outcome {
                Ok(n) => (passed, cases) = (passed + 1, cases + n),
                Err(e) => failed.push(suspect(kernel, variants, params, &launched, op.name, e.message())),
            }
        }
        if passed == 0 {
            failed.clear();
        }
        (failed, cases)
    }

    fn suite(&self, suite: SuiteFn, dtypes: &[DType]) -> Result<usize> {
        dtypes.iter().map(|dtype| suite(&self.device, *dtype)).sum()
    }

    /// Writes the quarantine for later runs.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn finish(&self) -> Result<()> {
        Tuning::of(&self.device).quarantine().save()
    }
}

fn suspect(
    kernel: &'static str,
    variants: bool,
    params: Params,
    launched: &Recording,
    op: &str,
    why: &str,
) -> Suspect {
    // Of variants, the candidate's only parameter is the name of the one that was tried.
    let name = if variants { params.keys().next().cloned().unwrap_or_default() } else { kernel.to_owned() };
    Suspect {
        text: launched.kernels.get(name.as_str()).cloned(),
        kernel: name,
        params: (!variants).then_some(params),
        why: format!("{op}: {}", why.lines().next().unwrap_or_default()),
        unfinished: 0,
        process: None,
    }
}
