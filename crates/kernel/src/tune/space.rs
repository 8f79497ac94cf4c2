//! Resolves tuned parameters at a launch: the candidate being measured, or the stored choice, or the default.

use super::{Origin, Params, Quarantine, Store};
use crate::define::Value;
use crate::kernel::Kernel;
use crate::variants::{Usable, Variants};
use netcl_device::Device;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::ThreadId;

type Chosen = Arc<Vec<(&'static str, i64)>>;

/// Largest number of candidates of one kernel.
const CANDIDATES: usize = 256;

/// Kernels launched between [`Tuning::start_recording`] and [`Tuning::stop_recording`].
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Kernels and [`Variants`] that have candidates, with the class of shapes.
    pub tuned: BTreeSet<(&'static str, u64)>,
    /// The names that belong to [`Variants`].
    pub variants: BTreeSet<&'static str>,
    /// Every kernel, with its [`Kernel::fingerprint`].
    pub kernels: BTreeMap<&'static str, String>,
    /// Every kernel with each of its `__kernel` functions that was launched.
    pub entries: BTreeSet<(&'static str, &'static str)>,
}

/// Candidates of a kernel or of [`Variants`].
struct Candidates {
    /// All combinations of parameter values, the default first.
    all: Vec<Params>,
    /// A covering set: a small set of combinations that contains every value of every parameter, the default first.
    covering: Vec<Params>,
}

/// The tuned parameters of one device: candidates, stored choices, quarantine.
pub struct Tuning {
    store: Store,
    quarantine: Quarantine,
    resolved: RwLock<HashMap<(usize, u64), Chosen>>,
    variants: RwLock<HashMap<(usize, u64), Arc<Usable>>>,
    trials: RwLock<HashMap<(&'static str, u64), Params>>,
    recording: AtomicBool,
    /// Number of changes to the parameters that launches receive.
    generation: AtomicU64,
    seen: Mutex<Recording>,
    candidates: RwLock<HashMap<&'static str, Candidates>>,
    /// Hashes of the sources of launched kernels.
    texts: RwLock<HashMap<&'static str, String>>,
    origins: RwLock<HashMap<(&'static str, u64), Origin>>,
    /// Outcome of the self-test before first use, by the kernel's address.
    pub(super) proofs: RwLock<HashMap<usize, bool>>,
    /// Kernels whose self-test is running, by address, with the thread that tests each.
    pub(super) testing: Mutex<HashMap<usize, ThreadId>>,
    /// Signals the end of a test.
    pub(super) tested: Condvar,
}

impl Tuning {
    /// Returns the tuning state of `device`.
    pub fn of(device: &Device) -> Arc<Self> {
        device.extension(|d| Self {
            store: Store::open(d.settings(), d.capabilities()),
            quarantine: Quarantine::open(d.settings(), d.capabilities()),
            resolved: RwLock::default(),
            variants: RwLock::default(),
            trials: RwLock::default(),
            recording: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            seen: Mutex::default(),
            candidates: RwLock::default(),
            texts: RwLock::default(),
            origins: RwLock::default(),
            proofs: RwLock::default(),
            testing: Mutex::default(),
            tested: Condvar::new(),
        })
    }

    /// Returns the stored tuning results.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the variants and parameters that are not used on this device.
    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Discards resolved parameters and variants. Call it after the quarantine changed.
    pub fn refresh(&self) {
        self.resolved.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.variants.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that changes whenever launches may receive other parameters than before; `None` while launches are being recorded.
    pub(crate) fn generation(&self) -> Option<u64> {
        (!self.recording.load(Ordering::Relaxed)).then(|| self.generation.load(Ordering::Acquire))
    }

    /// Adds the kernel's tuned parameters that `defines` lacks. Returns the work-group size: the define `WG`, or 1.
    pub(crate) fn resolve(
        &self,
        device: &Device,
        (kernel, entry): (&Kernel, &'static str),
        bucket: u64,
        defines: &mut Vec<(&'static str, Value)>,
    ) -> usize {
        self.note(|seen| {
            seen.kernels.entry(kernel.name).or_insert_with(|| kernel.fingerprint());
            seen.entries.insert((kernel.name, entry));
        });
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

    /// Returns the value of one parameter, for host code that computes sizes from it.
    pub fn value(device: &Device, kernel: &Kernel, bucket: u64, name: &str) -> usize {
        let tuning = Self::of(device);
        let chosen = tuning.chosen(device, kernel, bucket);
        chosen.iter().find(|(n, _)| *n == name).and_then(|(_, v)| usize::try_from(*v).ok()).unwrap_or(1)
    }

    fn chosen(&self, device: &Device, kernel: &Kernel, bucket: u64) -> Chosen {
        let key = (std::ptr::from_ref(kernel) as usize, bucket);
        self.note(|seen| seen.tuned.insert((kernel.name, bucket)));
        if let Some(found) = self.resolved.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(found);
        }
        let space = kernel.space_on(device.capabilities());
        let candidates = combinations(&space, CANDIDATES);
        let trial = self.trial(kernel.name, bucket);
        let text = self.text_of(kernel.name, || kernel.fingerprint());
        let stored =
            if trial.is_some() { None } else { self.stored(device, kernel, bucket, &text, &candidates) };
        self.came_from(kernel.name, bucket, stored.as_ref().map(|(_, origin)| *origin));
        let wanted = trial.or(stored.map(|(params, _)| params)).or_else(|| {
            candidates.iter().find(|p| self.quarantine.allows_params(device, kernel, p)).cloned()
        });
        let value =
            |name: &str, default: i64| wanted.as_ref().and_then(|w| w.get(name).copied()).unwrap_or(default);
        let chosen: Chosen =
            Arc::new(space.iter().map(|(n, vs)| (*n, value(n, vs.first().copied().unwrap_or(1)))).collect());
        let candidates = Candidates { all: candidates, covering: covering(&space) };
        self.candidates.write().unwrap_or_else(PoisonError::into_inner).insert(kernel.name, candidates);
        self.resolved.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&chosen));
        chosen
    }

    /// Returns the stored choice for a kernel if it is still a candidate and not in quarantine.
    fn stored(
        &self,
        device: &Device,
        kernel: &Kernel,
        bucket: u64,
        text: &str,
        candidates: &[Params],
    ) -> Option<(Params, Origin)> {
        let (stored, origin) = self.store.choice(kernel.name, bucket, text)?;
        // A choice measured on another device may not be a candidate on this one.
        let offered = origin == Origin::Tuned || candidates.contains(&stored);
        let fits = offered
            && fits(device, kernel, &stored)
            && self.quarantine.allows_params(device, kernel, &stored);
        fits.then_some((stored, origin))
    }

    /// Returns the hash of a kernel's source, or of the sources of [`Variants`]; cached.
    fn text_of(&self, name: &'static str, hash: impl FnOnce() -> String) -> String {
        if let Some(text) = self.text(name) {
            return text;
        }
        let text = hash();
        self.texts.write().unwrap_or_else(PoisonError::into_inner).insert(name, text.clone());
        text
    }

    /// Returns the hash of the source launched under this name.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.texts.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn came_from(&self, name: &'static str, bucket: u64, origin: Option<Origin>) {
        let origin = origin.unwrap_or(Origin::Default);
        self.origins.write().unwrap_or_else(PoisonError::into_inner).insert((name, bucket), origin);
    }

    /// Returns the origins of the choices used by launches so far: kernel or [`Variants`], class of shapes, origin.
    pub fn origins(&self) -> Vec<(&'static str, u64, Origin)> {
        let origins = self.origins.read().unwrap_or_else(PoisonError::into_inner);
        let mut out: Vec<_> =
            origins.iter().map(|((name, bucket), origin)| (*name, *bucket, *origin)).collect();
        out.sort_unstable_by_key(|(name, bucket, _)| (*name, *bucket));
        out
    }

    fn trial(&self, name: &str, bucket: u64) -> Option<Params> {
        let trials = self.trials.read().unwrap_or_else(PoisonError::into_inner);
        trials.iter().find(|((n, b), _)| *n == name && *b == bucket).map(|(_, p)| p.clone())
    }

    /// Returns the variants usable for a class of shapes: the candidate being measured or the stored choice first, then the others in their order.
    /// Empty if none runs on this device.
    pub(crate) fn usable(&self, device: &Device, variants: &'static Variants, bucket: u64) -> Arc<Usable> {
        self.note(|seen| {
            seen.tuned.insert((variants.name(), bucket));
            seen.variants.insert(variants.name());
        });
        let key = (std::ptr::from_ref(variants) as usize, bucket);
        if let Some(found) = self.variants.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(found);
        }
        let trial = self.trial(variants.name(), bucket);
        let runnable: Vec<&'static Kernel> =
            variants.kernels().iter().copied().filter(|k| k.runs_on(device.capabilities())).collect();
        let all: Vec<Params> = runnable.iter().map(|k| Params::from([(k.name.into(), 1)])).collect();
        let candidates = Candidates { covering: all.clone(), all };
        self.candidates.write().unwrap_or_else(PoisonError::into_inner).insert(variants.name(), candidates);
        let mut usable = match &trial {
            Some(_) => runnable,
            None => self.quarantine.sift(device, variants.name(), runnable),
        };
        let text = self.text_of(variants.name(), || variants.fingerprint());
        let stored = if trial.is_some() { None } else { self.store.choice(variants.name(), bucket, &text) };
        let runs = |p: &Params| usable.iter().any(|k| p.contains_key(k.name));
        let stored = stored.filter(|(params, _)| runs(params));
        self.came_from(variants.name(), bucket, stored.as_ref().map(|(_, origin)| *origin));
        let named = |k: &&&Kernel| device.settings().prefer.iter().any(|name| name == k.name);
        let preferred = usable.iter().find(named).map(|k| Params::from([(k.name.into(), 1)]));
        let wanted = trial.or(preferred).or(stored.map(|(params, _)| params));
        if let Some(wanted) = &wanted {
            usable.sort_by_key(|k| !wanted.contains_key(k.name));
        }
        let usable = Arc::new(Usable { kernels: usable, wanted: wanted.is_some() });
        self.variants.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&usable));
        usable
    }

    /// Makes launches of a kernel use `params`, or the stored choice again if `None`. For [`Variants`], `params` names the variant.
    pub fn try_out(&self, kernel: &'static str, bucket: u64, params: Option<Params>) {
        let mut trials = self.trials.write().unwrap_or_else(PoisonError::into_inner);
        match params {
            Some(p) => trials.insert((kernel, bucket), p),
            None => trials.remove(&(kernel, bucket)),
        };
        drop(trials);
        self.refresh();
    }

    /// Returns all candidates of a kernel or of [`Variants`] that was launched on this device, the default first.
    pub fn candidates(&self, name: &str) -> Vec<Params> {
        let candidates = self.candidates.read().unwrap_or_else(PoisonError::into_inner);
        candidates.get(name).map(|c| c.all.clone()).unwrap_or_default()
    }

    /// Returns the covering set of candidates, the default first.
    pub fn covering(&self, name: &str) -> Vec<Params> {
        let candidates = self.candidates.read().unwrap_or_else(PoisonError::into_inner);
        candidates.get(name).map(|c| c.covering.clone()).unwrap_or_default()
    }

    fn note<R>(&self, what: impl FnOnce(&mut Recording) -> R) {
        // Every launch runs this code: take no lock unless a recording is active.
        if self.recording.load(Ordering::Relaxed) {
            what(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Starts recording which kernels are launched.
    pub fn start_recording(&self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Recording::default();
        self.recording.store(true, Ordering::Relaxed);
    }

    /// Stops recording and returns the kernels launched since [`Tuning::start_recording`].
    pub fn stop_recording(&self) -> Recording {
        self.recording.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks that a stored choice still builds on this device; if not, the default is used, with a warning.
fn fits(device: &Device, kernel: &Kernel, chosen: &Params) -> bool {
    let wg = chosen.get("WG").copied().unwrap_or(1);
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

/// Returns all combinations of a search space, the default first, at most `limit` of them.
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

/// Returns a covering set of a search space, the default first: its size is the length of the longest list of values.
pub fn covering(space: &[(&'static str, Vec<i64>)]) -> Vec<Params> {
    let longest = space.iter().map(|(_, values)| values.len()).max().unwrap_or(1);
    let nth = |i: usize| {
        let chosen =
            |(name, values): &(&str, Vec<i64>)| Some(((*name).into(), *values.get(i % values.len().max(1))?));
        space.iter().filter_map(chosen).collect()
    };
    (0..longest).map(nth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_covered_by_as_few_candidates_as_the_longest_list_has() {
        let space = [("WG", vec![64, 128]), ("VW", vec![4, 1, 2])];
        let few = covering(&space);
        assert_eq!((few.len(), &few[0]), (3, &combinations(&space, 1)[0]));
        for (name, values) in &space {
            assert!(values.iter().all(|v| few.iter().any(|p| p[*name] == *v)), "{name}");
        }
        assert_eq!(covering(&[]), vec![Params::new()]);
    }

    #[test]
    fn combinations_start_with_the_default() {
        let all = combinations(&[("WG", vec![64, 128]), ("VW", vec![4, 1, 2])], 100);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0]["WG"], all[0]["VW"]), (64, 4));
        assert_eq!(combinations(&[("A", vec![1, 2, 3])], 2).len(), 2);
        assert_eq!(combinations(&[], 5), vec![Params::new()]);
    }
}
