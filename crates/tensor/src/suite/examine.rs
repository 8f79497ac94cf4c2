//! The self-test of a whole device: every op in every storage type, on several threads.
//!
//! Most of the time goes into compilers, and some drivers build one program at a time in a process. So each thread opens the device
//! for itself, with another context, another queue and other choices being tried, or has a process that does ([`Tester`]).

use super::selftest::{Reach, SelfTest, Verdict};
use super::survey::Owners;
use crate::ops::OpEntry;
use crate::{DType, Device, Result};
use netcl_kernel::tune::{Suspect, Tuning};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a self-test found on a device.
#[derive(Debug, Default)]
pub struct Findings {
    /// Ops that were tested.
    pub ops: usize,
    /// Cases compared.
    pub cases: usize,
    /// Kernels that were launched.
    pub kernels: BTreeSet<String>,
    /// Candidates that were tried beside what the device chooses.
    pub candidates: usize,
    /// Variants that the device could run and that no sample's shapes let it take.
    pub idle: BTreeSet<String>,
    /// To be kept out of use.
    pub suspects: Vec<Suspect>,
    /// What fails and has no substitute.
    pub failures: Vec<String>,
    /// These and what failed the test before its first use.
    avoided: Vec<Suspect>,
}

/// Threads find the same, each for itself.
fn add(all: &mut Vec<Suspect>, suspect: Suspect) {
    if !all.iter().any(|s| s.kernel == suspect.kernel && s.params == suspect.params) {
        all.push(suspect);
    }
}

/// How far a self-test is.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What has just been worked on.
    pub op: &'static str,
    /// In which storage type.
    pub dtype: DType,
    /// Ops, each in one storage type, that are done.
    pub done: usize,
    /// Of so many.
    pub all: usize,
    /// Cases compared until now.
    pub cases: usize,
}

/// Threads that compile side by side at most: what they compile has to fit the host's memory.
const THREADS: usize = 16;

/// As many as there are cores.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

/// One that tests ops, one after the other: in this process, or in another one.
pub trait Tester: Send {
    /// Tests op `op` of the list in one storage type; `watch` is called after every case.
    fn run(&mut self, op: usize, dtype: DType, watch: &dyn Fn()) -> Verdict;
    /// What it has found that is to be avoided, and what failed the test before its first use.
    fn avoided(&mut self) -> Vec<Suspect>;
}

/// A device opened in this process for testing ops.
pub struct Here {
    test: SelfTest,
    ops: &'static [OpEntry],
}

impl Here {
    /// Tests `ops` on `device`.
    ///
    /// # Errors
    /// Of an op that does not even get to its launches.
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

/// Tests `ops` on as many devices as `open` is asked for, one a thread. `report` hears of every case.
///
/// # Errors
/// Of `open`. What is wrong with a device is no error, but in the findings; [`Findings::keep`] writes the quarantine.
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
    // One that cannot be opened beside another leaves the work to the others.
    let more = (1..threads).map_while(|_| open().ok());
    testers.extend(
        more.map(|device| -> Box<dyn Tester> { Box::new(Here::sharing(&device, ops, reach, &owners)) }),
    );
    Ok(examine_by(testers, ops, report))
}

/// The same by these testers, side by side.
pub fn examine_by(
    testers: Vec<Box<dyn Tester>>,
    ops: &'static [OpEntry],
    report: &(dyn Fn(Event) + Sync),
) -> Findings {
    // Those that take longest stand last in the list: begun first, none is left over to the end.
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
    // A test before first use that has not ended belongs to its process, which takes its mark away.
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
    /// With what was known before of kernels that were not launched here, for a test of some ops only.
    #[must_use]
    pub fn with_known(mut self, known: Vec<Suspect>) -> Self {
        let untested = known.into_iter().filter(|s| !s.is_under_way() && !self.kernels.contains(&s.kernel));
        self.avoided.extend(untested);
        self
    }
    /// Keeps what failed out of use on this device, also in later programs.
    ///
    /// # Errors
    /// `Io` with the quarantine's path.
    pub fn keep(&self, device: &Device) -> Result<()> {
        let tuning = Tuning::of(device);
        tuning.quarantine().replace(self.avoided.clone());
        tuning.refresh();
        tuning.quarantine().save()
    }
    /// Whether nothing is wrong.
    pub fn healthy(&self) -> bool {
        self.suspects.is_empty() && self.failures.is_empty()
    }
}
