//! The self-test of a device: runs the suite of every op with every variant and every value of the tuned parameters, and finds the choice
//! that causes a failure.
//!
//! A variant runs in every storage type even if it is not the fastest on the device. It uses the first op that has a shape for it, in f32
//! with every layout, and in f16 and bf16 with contiguous inputs. Values of tuned parameters run in f32, in the smallest number of
//! combinations that covers all values. For kernels generated from expressions, samples that are marked `light` are omitted. Variants for
//! one vendor (`…_sm90`) are tested on such devices, by `netcl doctor`, in several processes.

use super::case::{Case, Depth};
use super::sample::Layouts;
use super::survey::{Owners, launches, twin_of};
use crate::ops::OpEntry;
use crate::{DType, Device, Result};
use netcl_kernel::generate::ELEMENTWISE;
use netcl_kernel::tune::{Origin, Params, Recording, Suspect, Tuning};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of a kernel's candidates to try. Every variant is tried: in f32 with every layout, and in the other storage types with contiguous
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every value of every tuned parameter, in as few combinations as possible. In f32 only, because some kernels only exist for f32.
    Values,
    /// The same without the device's default choices, for callers that test those elsewhere. Their launches are only recorded, on a device that does not
    /// compute.
    Alternatives,
    /// Every combination, in every storage type.
    Combinations,
}

/// Result of the self-test of one op.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the op.
    pub op: String,
    /// Number of cases compared.
    pub cases: usize,
    /// Names of the launched kernels.
    pub kernels: BTreeSet<String>,
    /// Number of candidates tried in addition to the device's choices.
    pub candidates: usize,
    /// Variants that the device can run.
    pub variants: BTreeSet<String>,
    /// Choices that failed and have a substitute that passes. They are now in quarantine.
    pub suspects: Vec<Suspect>,
    /// Failure that no available choice avoids.
    pub failure: Option<String>,
}

/// A self-test in progress. Its findings are added to the device's quarantine in memory; [`SelfTest::finish`] writes it.
pub struct SelfTest {
    device: Device,
    /// A device with the same capabilities that does not compute.
    twin: Device,
    reach: Reach,
    /// Assigns trials to ops. If `None`, each op tries everything that it uses.
    owners: Option<Arc<Owners>>,
}

/// Names and classes of shapes with the choices to try.
type Trials = Vec<(&'static str, u64, Params)>;

/// The cases of an op, their launches with the device's default choices, and the result.
struct Base<'c> {
    cases: &'c [Case],
    watch: &'c dyn Fn(),
    seen: Vec<Recording>,
    broken: Option<String>,
}

impl SelfTest {
    /// Starts with an empty quarantine, so that its former contents are tested again.
    pub fn new(device: &Device, reach: Reach) -> Self {
        let tuning = Tuning::of(device);
        tuning.quarantine().replace(Vec::new());
        tuning.refresh();
        Self { device: device.clone(), twin: twin_of(device), reach, owners: None }
    }

    /// Tries choices that serve several ops with only one of them.
    #[must_use]
    pub fn sharing(mut self, owners: &Arc<Owners>) -> Self {
        self.owners = Some(Arc::clone(owners));
        self
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the choices of the device on which the cases ran with its defaults. A kernel's candidates are known after its first launch.
    fn choosing(&self) -> Arc<Tuning> {
        Tuning::of(if self.reach == Reach::Alternatives { &self.twin } else { &self.device })
    }

    /// Tests one op in these storage types. `watch` is called after every case.
    pub fn run(&self, op: &OpEntry, dtypes: &[DType], watch: &dyn Fn()) -> Verdict {
        let mut verdict = Verdict { op: op.name.into(), ..Verdict::default() };
        let made: Result<Vec<Vec<Case>>> = dtypes.iter().map(|dtype| op.cases(*dtype)).collect();
        let cases: Vec<Case> = match made {
            Ok(cases) => cases.into_iter().flatten().collect(),
            Err(e) => return Verdict { failure: Some(e.message().to_owned()), ..verdict },
        };
        let base = self.base(&cases, watch, &mut verdict);
        self.candidates(&base, &Vec::new(), &base.seen, &mut verdict);
        let tuning = Tuning::of(&self.device);
        if !verdict.suspects.is_empty() {
            let mut all = tuning.quarantine().suspects();
            all.extend(verdict.suspects.iter().cloned());
            tuning.quarantine().replace(all);
            tuning.refresh();
        }
        if base.broken.is_some() {
            // Without the suspects, the op must pass. Without suspects, this repeats the error.
            let again = cases.iter().try_for_each(|case| case.check(&self.device, Depth::Replayed));
            verdict.failure = again.err().map(|e| e.message().to_owned());
            if verdict.suspects.is_empty() && verdict.failure.is_none() {
                verdict.failure = base.broken.map(|why| format!("fails intermittently: {why}"));
            }
        }
        verdict
    }

    /// Runs or records the cases with the device's default choices.
    fn base<'c>(&self, cases: &'c [Case], watch: &'c dyn Fn(), verdict: &mut Verdict) -> Base<'c> {
        let mut base = Base { cases, watch, seen: Vec::with_capacity(cases.len()), broken: None };
        for case in cases {
            let (seen, outcome) = if self.reach == Reach::Alternatives {
                match launches(&self.twin, case) {
                    Ok(seen) => (seen, Ok(())),
                    Err(e) => (Recording::default(), Err(e)),
                }
            } else {
                verdict.cases += 1;
                self.recorded(case, watch, Depth::Replayed)
            };
            base.seen.push(seen);
            if let (Err(e), None) = (outcome, &base.broken) {
                base.broken = Some(e.message().to_owned());
            }
        }
        verdict.kernels.extend(base.seen.iter().flat_map(|seen| seen.kernels.keys().map(|k| k.to_string())));
        base
    }

    fn recorded(&self, case: &Case, watch: &dyn Fn(), depth: Depth) -> (Recording, Result<()>) {
        let tuning = Tuning::of(&self.device);
        tuning.start_recording();
        let outcome = case.check(&self.device, depth);
        watch();
        (tuning.stop_recording(), outcome)
    }

    /// Tries the alternatives to `under`, which is being tried, wherever `seen` requested a choice.
    fn candidates(&self, base: &Base<'_>, under: &Trials, seen: &[Recording], verdict: &mut Verdict) {
        let mut asked: BTreeMap<&'static str, BTreeSet<u64>> = BTreeMap::new();
        for (name, bucket) in seen.iter().flat_map(|s| &s.tuned) {
            asked.entry(name).or_default().insert(*bucket);
        }
        let known = |name: &str| under.iter().any(|(n, ..)| *n == name);
        for (name, buckets) in asked.into_iter().filter(|(name, _)| !known(name)) {
            let variants = seen.iter().any(|s| s.variants.contains(name));
            // Under a variant, only its own choices are tried; the others were tried with the device's defaults.
            if !under.is_empty() && (variants || base.seen.iter().any(|s| s.kernels.contains_key(name))) {
                continue;
            }
            let job = Job { name, buckets: buckets.into_iter().collect(), under };
            let found = match variants {
                true => self.variants(base, &job, seen, verdict),
                false => self.values(base, &job, seen, verdict),
            };
            verdict.suspects.extend(found);
        }
    }

    /// Tries each variant in every case that requests a choice.
    fn variants(
        &self,
        base: &Base<'_>,
        job: &Job<'_>,
        seen: &[Recording],
        verdict: &mut Verdict,
    ) -> Vec<Suspect> {
        let tuning = self.choosing();
        let owned = |op: &str, variant: &str| {
            let owners = self.owners.as_ref().filter(|_| base.broken.is_none());
            owners.is_none_or(|owners| owners.has_variant(op, job.name, variant))
        };
        let every = self.reach == Reach::Combinations || base.broken.is_some();
        let enough = |c: &Case| every || c.dtype == DType::F32 || c.layouts == Layouts::Contiguous;
        let asks = |i: &usize| seen[*i].variants.contains(job.name) && enough(&base.cases[*i]);
        let wanted: Vec<usize> = (0..seen.len()).filter(asks).collect();
        let all = tuning.candidates(job.name);
        verdict.variants.extend(all.iter().flat_map(|params| params.keys().cloned()));
        let (mut failed, mut passed) = (Vec::new(), base.broken.is_none());
        for params in all {
            // Cases that already launched the variant by default are skipped. The preferred variant may leave the sample's shapes to others
            // because they are small.
            let done = |i: &usize| params.keys().any(|name| seen[*i].kernels.contains_key(name.as_str()));
            let wanted: Vec<usize> =
                wanted.iter().copied().filter(|i| base.broken.is_some() || !done(i)).collect();
            if wanted.is_empty() || !params.keys().all(|name| owned(&verdict.op, name)) {
                continue;
            }
            let trial = job.with(&params);
            let wanted =
                if base.broken.is_some() { wanted } else { self.reached(base, wanted, &trial, &params) };
            if wanted.is_empty() {
                continue;
            }
            let (launched, outcome) = self.attempt(base, &wanted, &trial, Depth::Replayed, verdict);
            match outcome {
                Ok(()) => passed = true,
                Err(e) => {
                    let name = params.keys().next().cloned().unwrap_or_default();
                    failed.push(suspect(name, None, &launched, &verdict.op, e.message()));
                    continue;
                }
            }
            self.candidates(base, &trial, &launched, verdict);
        }
        // If all fail, this choice is not the cause.
        if passed { failed } else { Vec::new() }
    }

    /// Returns the cases in which the variant `params` is launched when it is tried. A case may have a shape that it does not support.
    fn reached(&self, base: &Base<'_>, wanted: Vec<usize>, trial: &Trials, params: &Params) -> Vec<usize> {
        let tuning = Tuning::of(&self.twin);
        trial.iter().for_each(|(name, bucket, params)| tuning.try_out(name, *bucket, Some(params.clone())));
        let reaches = |i: &usize| {
            // Cases that fail before their launches are left to the device.
            let seen = launches(&self.twin, &base.cases[*i]);
            seen.map_or(true, |seen| params.keys().any(|name| seen.kernels.contains_key(name.as_str())))
        };
        let wanted = wanted.into_iter().filter(reaches).collect();
        trial.iter().for_each(|(name, bucket, _)| tuning.try_out(name, *bucket, None));
        wanted
    }

    /// Tries a kernel's tuned values in the cases that launch a function of it and in which they were not yet tried.
    fn values(
        &self,
        base: &Base<'_>,
        job: &Job<'_>,
        seen: &[Recording],
        verdict: &mut Verdict,
    ) -> Vec<Suspect> {
        let tuning = self.choosing();
        let broken = base.broken.is_some();
        let wanted = self.launching(base, job, seen, &verdict.op);
        if wanted.is_empty() {
            return Vec::new();
        }
        let mut all = match self.reach {
            Reach::Values | Reach::Alternatives if !broken => tuning.covering(job.name),
            _ => tuning.candidates(job.name),
        };
        let (mut failed, mut passed, mut i) = (Vec::new(), !broken, 0);
        while let Some(params) = all.get(i).cloned() {
            i += 1;
            if !broken && self.is_in_use(job, &params) {
                continue;
            }
            let (launched, outcome) =
                self.attempt(base, &wanted, &job.with(&params), Depth::Repeated, verdict);
            match outcome {
                Ok(()) => passed = true,
                Err(e) => {
                    failed.push(suspect(job.name.into(), Some(params), &launched, &verdict.op, e.message()));
                    // Finds other candidates with the same values that fail too.
                    let more = tuning.candidates(job.name).into_iter().filter(|p| !all.contains(p));
                    all.extend(more.collect::<Vec<_>>());
                }
            }
        }
        if passed { failed } else { Vec::new() }
    }

    /// Returns the cases that launch a function of a kernel that this op must try. For kernels generated from expressions, samples that run
    /// in every storage type and layout suffice.
    fn launching(&self, base: &Base<'_>, job: &Job<'_>, seen: &[Recording], op: &str) -> Vec<usize> {
        let broken = base.broken.is_some();
        let every = self.reach == Reach::Combinations || broken;
        // Kernels that a variant adds belong to the op that tries the variant.
        let owners = self.owners.as_ref().filter(|_| job.under.is_empty() && !broken);
        let owned = |entry: &(&str, &str)| owners.is_none_or(|owners| owners.has_entry(op, *entry));
        let wanted = |i: &usize| {
            let case = &base.cases[*i];
            let seldom = job.name == ELEMENTWISE.name && case.light && !broken;
            let mut entries = seen[*i].entries.iter().filter(|(kernel, _)| *kernel == job.name);
            !seldom && (every || case.dtype == DType::F32) && entries.any(owned)
        };
        (0..base.cases.len()).filter(wanted).collect()
    }

    /// Returns whether the device already uses these choices by default.
    fn is_in_use(&self, job: &Job<'_>, params: &Params) -> bool {
        let tuning = self.choosing();
        let origins = tuning.origins();
        let by_default = |bucket: &u64| {
            origins.iter().any(|(n, b, origin)| *n == job.name && b == bucket && *origin == Origin::Default)
        };
        tuning.candidates(job.name).first() == Some(params) && job.buckets.iter().all(by_default)
    }

    /// Runs cases with the choices under trial, up to the first failure.
    fn attempt(
        &self,
        base: &Base<'_>,
        wanted: &[usize],
        trials: &Trials,
        depth: Depth,
        verdict: &mut Verdict,
    ) -> (Vec<Recording>, Result<()>) {
        let tuning = Tuning::of(&self.device);
        tracing::debug!("{} with {trials:?} in {} cases", &verdict.op, wanted.len());
        for (name, bucket, params) in trials {
            tuning.try_out(name, *bucket, Some(params.clone()));
        }
        let mut seen = vec![Recording::default(); base.cases.len()];
        let mut outcome: Result<()> = Ok(());
        for i in wanted {
            let (launched, ended) = self.recorded(&base.cases[*i], base.watch, depth);
            verdict.cases += 1;
            verdict.kernels.extend(launched.kernels.keys().map(|k| k.to_string()));
            seen[*i] = launched;
            if ended.is_err() {
                outcome = ended;
                break;
            }
        }
        for (name, bucket, _) in trials {
            tuning.try_out(name, *bucket, None);
        }
        verdict.candidates += 1;
        (seen, outcome)
    }

    /// Writes the quarantine for later runs.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn finish(&self) -> Result<()> {
        Tuning::of(&self.device).quarantine().save()
    }
}

/// A job with candidates, and the places where it is requested.
struct Job<'u> {
    name: &'static str,
    buckets: Vec<u64>,
    under: &'u Trials,
}

impl Job<'_> {
    fn with(&self, params: &Params) -> Trials {
        let mine = self.buckets.iter().map(|bucket| (self.name, *bucket, params.clone()));
        self.under.iter().cloned().chain(mine).collect()
    }
}

fn suspect(kernel: String, params: Option<Params>, launched: &[Recording], op: &str, why: &str) -> Suspect {
    Suspect {
        text: launched.iter().find_map(|seen| seen.kernels.get(kernel.as_str()).cloned()),
        kernel,
        params,
        why: format!("{op}: {}", why.lines().next().unwrap_or_default()),
        ..Suspect::default()
    }
}
