//! The self-test of a whole device: every operation in every storage type, on several threads.
//!
//! Compilers take most of the time, and some drivers build only one program at a time per process. Therefore each thread opens the device
//! separately, with a separate context, queue and set of tried choices, or uses a separate process ([`Tester`]).

use super::selftest::{Reach, SelfTest, Verdict};
use super::survey::Owners;
use crate::ops::OpEntry;
use crate::{DType, Device, Result};
use netcl_kernel::tune::{Suspect, Tuning};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Findings of a self-test on a device.
#[derive(Debug, Default)]
pub struct Findings {
    /// Operations that were tested.
    pub ops: usize,
    /// Cases compared.
    pub cases: usize,
    /// Kernels that were launched.
    pub kernels: BTreeSet<String>,
    /// Candidates that were tried in addition to the device's choices.
    pub candidates: usize,
    /// Variants that the device can run, but no sample's shapes let it take.
    pub idle: BTreeSet<String>,
    /// Kernels and variants to be avoided.
    pub suspects: Vec<Suspect>,
    /// Failures without a substitute.
    pub failures: Vec<String>,
    /// The suspects, and kernels that failed the test before their first use.
    avoided: Vec<Suspect>,
}

/// Adds a suspect unless it is known: threads find the same ones independently.
fn add(all: &mut Vec<Suspect>, suspect: Suspect) {
    if !all.iter().any(|s| s.kernel == suspect.kernel && s.params == suspect.params) {
        all.push(suspect);
    }
}

/// Progress of a self-test.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The operation that was just tested.
    pub op: &'static str,
    /// Its storage type.
    pub dtype: DType,
    /// Finished pairs of operation and storage type.
    pub done: usize,
    /// Total number of such pairs.
    pub all: usize,
    /// Cases compared until now.
    pub cases: usize,
}

/// Maximum number of threads that compile at the same time, whose compilers must fit in the host's memory.
const THREADS: usize = 16;

/// Returns the number of cores, up to this maximum.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

/// Tests operations one after the other, in this process or in another one.
pub trait Tester: Send {
    /// Tests operation `op` of the list in one storage type; `watch` is called after every case.
    fn run(&mut self, op: usize, dtype: DType, watch: &dyn Fn()) -> Verdict;
    /// Returns the suspects that it found, including kernels that failed the test before their first use.
    fn avoided(&mut self) -> Vec<Suspect>;
}

/// A device opened in this process for testing operations.
pub struct Here {
    test: SelfTest,
    ops: &'static [OpEntry],
}

impl Here {
    /// Creates a tester of `ops` on `device`.
    ///
    /// # Errors
    /// Those of an operation that fails before its launches.
    pub fn new(device: &Device, ops: &'static [OpEntry], reach: Reach) -> Result<Self> {
        Ok(Self::sharing(device, ops, reach, &Arc::new(Owners::of(device, ops)?)))
    }
    fn sharing(device: &Device, ops: &'static [OpEntry], reach: Reach, owners: &Arc<Owners>) -> Self {
        Self { test: SelfTest::new(device, reach).sharing(owners), ops }
    }
}

impl Tester for Here {
    fn run(&mut self, op: usize, dtype: DType, watch: &dyn Fn()) -> Verdict {
        self.ops.get(op).map_or_else(Verdict::default, |op| self.test.run(op, &[dtype], watch))
    }
    fn avoided(&mut self) -> Vec<Suspect> {
        Tuning::of(self.test.device()).quarantine().suspects()
    }
}

/// Tests `ops` on one device per thread, opened by `open`. `report` is called after every case.
///
/// # Errors
/// Those of `open`. A failure of a device is not an error, but part of the findings; [`Findings::keep`] writes the quarantine.
pub fn examine(
    open: &(dyn Fn() -> Result<Device> + Sync),
    ops: &'static [OpEntry],
    reach: Reach,
    threads: usize,
    report: &(dyn Fn(Event) + Sync),
) -> Result<Findings> {
    let first = open()?;
    let owners = Arc::new(Owners::of(&first, ops)?);
    let mut testers: Vec<Box<dyn Tester>> = vec![Box::new(Here::sharing(&first, ops, reach, &owners))];
    // If a further device cannot be opened, the others do its work.
    let more = (1..threads).map_while(|_| open().ok());
    testers.extend(
        more.map(|device| -> Box<dyn Tester> { Box::new(Here::sharing(&device, ops, reach, &owners)) }),
    );
    Ok(examine_by(testers, ops, report))
}

/// Does the same with these testers, in parallel.
pub fn examine_by(
    testers: Vec<Box<dyn Tester>>,
    ops: &'static [OpEntry],
    report: &(dyn Fn(Event) + Sync),
) -> Findings {
    // The operations that take longest are last in the list. They start first, so that none remains at the end.
    let work: Vec<(usize, DType)> =
        (0..ops.len()).rev().flat_map(|op| DType::FLOATS.map(|dtype| (op, dtype))).collect();
    let (next, done, cases) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let (verdicts, avoided) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let tell = |(op, dtype): (usize, DType), more| {
        let cases = cases.fetch_add(more, Ordering::Relaxed) + more;
        let op = ops[op].name;
        report(Event { op, dtype, done: done.load(Ordering::Relaxed), all: work.len(), cases });
    };
    let test = |mut tester: Box<dyn Tester>| {
        while let Some(&(op, dtype)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            tell((op, dtype), 0);
            let verdict = tester.run(op, dtype, &|| tell((op, dtype), 1));
            verdicts.lock().unwrap_or_else(PoisonError::into_inner).push(verdict);
            done.fetch_add(1, Ordering::Relaxed);
            tell((op, dtype), 0);
        }
        avoided.lock().unwrap_or_else(PoisonError::into_inner).extend(tester.avoided());
    };
    let test = &test;
    std::thread::scope(|scope| {
        let mut testers = testers.into_iter();
        let own = testers.next();
        for tester in testers {
            scope.spawn(move || test(tester));
        }
        own.into_iter().for_each(test);
    });
    let verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut findings = Findings::of(verdicts, ops);
    let avoided = avoided.into_inner().unwrap_or_else(PoisonError::into_inner);
    // An unfinished test before first use belongs to its process, which removes its mark.
    avoided.into_iter().filter(|s| s.unfinished == 0).for_each(|s| add(&mut findings.avoided, s));
    findings
}

impl Findings {
    fn of(verdicts: Vec<Verdict>, ops: &[OpEntry]) -> Self {
        let mut out = Self { ops: ops.len(), ..Self::default() };
        let place = |name: &str| ops.iter().position(|op| op.name == name);
        let mut verdicts = verdicts;
        verdicts.sort_by_key(|v| place(&v.op));
        let mut variants = BTreeSet::new();
        for v in verdicts {
            out.cases += v.cases;
            out.candidates += v.candidates;
            out.kernels.extend(v.kernels);
            variants.extend(v.variants);
            out.failures.extend(v.failure.map(|why| format!("{}: {why}", v.op)));
            v.suspects.into_iter().for_each(|suspect| add(&mut out.suspects, suspect));
        }
        out.idle = variants.into_iter().filter(|name| !out.kernels.contains(name)).collect();
        out
    }
    /// Adds what was known about kernels that were not launched here, for a test of only some operations.
    #[must_use]
    pub fn with_known(mut self, known: Vec<Suspect>) -> Self {
        let untested = known.into_iter().filter(|s| !s.is_under_way() && !self.kernels.contains(&s.kernel));
        self.avoided.extend(untested);
        self
    }
    /// Keeps the suspects out of use on this device, also in later programs.
    ///
    /// # Errors
    /// `Io` with the quarantine's path.
    pub fn keep(&self, device: &Device) -> Result<()> {
        let tuning = Tuning::of(device);
        tuning.quarantine().replace(self.avoided.clone());
        tuning.refresh();
        tuning.quarantine().save()
    }
    /// Returns whether nothing failed.
    pub fn healthy(&self) -> bool {
        self.suspects.is_empty() && self.failures.is_empty()
    }
}
