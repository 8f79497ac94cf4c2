//! Tables of algorithms: the ways to do one job, of which each row lies in a file of its own with its kernel.
//!
//! A row says whether it takes a request and, if not, why; how long it would take, with the plan behind that estimate; and runs the plan.
//! The cheapest row that takes a request and passes its self-test is chosen, once for each kind of request on a device. One that
//! `netcl tune` measured as faster for the class of shapes, that `NETCL_PREFER` names or that the self-test tries goes first where it
//! takes the request.

use super::prelude::*;
use netcl_device::ErrorKind;
use netcl_kernel::tune::Model;
use netcl_kernel::{Usable, Variants};
use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

/// What the rows of a table do.
pub(in crate::ops) trait Job: Sized + 'static {
    /// What is computed: sizes, options, where operands lie and where results go.
    type Request<'a>;
    /// How a row shares a request out.
    type Plan: Clone + Debug + Send + Sync + 'static;
    /// What it returns beside the results that the request names.
    type Output;
    /// All of a request that a decision may depend on.
    type Signature: Eq + Hash + Send + Sync + 'static;

    /// Where it is computed.
    fn device<'r>(request: &'r Self::Request<'_>) -> &'r Device;
    /// Class of shapes for which `netcl tune` finds the fastest row; not 0.
    fn class(request: &Self::Request<'_>) -> u64;
    /// See [`Job::Signature`].
    fn signature(request: &Self::Request<'_>) -> Self::Signature;
    /// Sizes and storage type, for errors.
    fn describe(request: &Self::Request<'_>) -> String;
    /// Microseconds that no row can take less than.
    fn least(_: &Self::Request<'_>) -> f64 {
        0.0
    }
}

/// A way to do a job.
pub(in crate::ops) struct Algorithm<J: Job> {
    /// Its kernel, under whose name it is tuned, preferred, disabled and quarantined.
    pub kernel: &'static Kernel,
    /// Whether it takes this request on this device; otherwise why not.
    pub supports: fn(&J::Request<'_>) -> Result<(), &'static str>,
    /// The constants of the device model that its estimate uses.
    pub models: &'static [&'static Model],
    /// Microseconds that it is estimated to take, and how it would do it. Asked only where it is supported.
    pub estimate: fn(&J::Request<'_>) -> (f64, J::Plan),
    /// Does it as planned.
    pub run: fn(&J::Request<'_>, &J::Plan) -> Result<J::Output>,
    /// Whether small requests come out right, asked before the first use where the kernel relies on more than OpenCL promises.
    pub self_test: Option<fn(&Device) -> bool>,
}

impl<J: Job> Algorithm<J> {
    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.kernel.name
    }
    /// [`Algorithm::estimate`], and no less than a launch of it and [`Job::least`].
    fn priced(&self, request: &J::Request<'_>) -> (f64, J::Plan) {
        let (micros, plan) = (self.estimate)(request);
        let device = J::device(request);
        let launch = self.models.iter().find_map(|model| model.constant(device, "launch_us"));
        (micros.max(launch.unwrap_or_default() + J::least(request)), plan)
    }
    fn passes(&self, request: &J::Request<'_>) -> bool {
        self.self_test.is_none_or(|test| test(J::device(request)))
    }
    /// A plan of another row was given to this one.
    pub fn foreign(kernel: &Kernel) -> Error {
        Error::internal(format!("{}: a plan of another algorithm", kernel.name))
    }
}

/// How a row shares a request out, as a value of a type that only the row knows: a table of these plans takes rows with plans of their own.
#[derive(Clone)]
pub(in crate::ops) struct RowPlan(Arc<dyn Planned>);

trait Planned: Any + Debug + Send + Sync {}
impl<P: Any + Debug + Send + Sync> Planned for P {}

impl RowPlan {
    /// A row's own plan.
    pub fn of(plan: impl Any + Debug + Send + Sync) -> Self {
        Self(Arc::new(plan))
    }

    /// The plan as the row of `kernel` made it.
    ///
    /// # Errors
    /// `Internal` where another row made it.
    pub fn get<P: Any>(&self, kernel: &Kernel) -> Result<&P> {
        let plan: &dyn Any = &*self.0;
        plan.downcast_ref()
            .ok_or_else(|| Error::internal(format!("{}: a plan of another algorithm", kernel.name)))
    }
}

impl Debug for RowPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The kernels of a table's rows, for [`Table::new`].
pub(in crate::ops) const fn kernels<J: Job, const N: usize>(
    rows: &[&'static Algorithm<J>; N],
) -> [&'static Kernel; N] {
    let mut kernels = [rows[0].kernel; N];
    let mut i = 1;
    while i < N {
        kernels[i] = rows[i].kernel;
        i += 1;
    }
    kernels
}

/// The ways to do a job; among equal estimates the first is taken.
pub(in crate::ops) struct Table<J: Job> {
    rows: &'static [&'static Algorithm<J>],
    variants: Variants,
}

/// What was decided, and among which variants.
type Decided<J> = (Arc<Usable>, &'static Algorithm<J>, <J as Job>::Plan);

/// Decisions of a device: finding the cheapest of hundreds of plans takes a host longer than a launch.
struct Decisions<J: Job>(RwLock<HashMap<J::Signature, Decided<J>>>);

/// Decisions from which on all are made anew: sizes that never come back would otherwise stay for ever.
const MOST: usize = 4096;

impl<J: Job> Table<J> {
    /// The table of the job `name`; `kernels` are those of its rows.
    pub const fn new(
        name: &'static str,
        rows: &'static [&'static Algorithm<J>],
        kernels: &'static [&'static Kernel],
    ) -> Self {
        Self { rows, variants: Variants::new(name, kernels) }
    }

    fn usable(&'static self, request: &J::Request<'_>) -> Arc<Usable> {
        self.variants.usable(J::device(request), J::class(request))
    }

    fn by_name(&self, name: &str) -> Option<&'static Algorithm<J>> {
        self.rows.iter().copied().find(|row| row.name() == name)
    }

    /// The row that does this, and its plan.
    ///
    /// # Errors
    /// `Unsupported` with the reason of each row where none does.
    pub fn choose(&'static self, request: &J::Request<'_>) -> Result<(&'static Algorithm<J>, J::Plan)> {
        let usable = self.usable(request);
        let decisions = J::device(request).extension(|_| Decisions::<J>(RwLock::default()));
        let signature = J::signature(request);
        let known = {
            let decisions = decisions.0.read().unwrap_or_else(PoisonError::into_inner);
            decisions.get(&signature).map(|(among, row, plan)| (Arc::clone(among), *row, plan.clone()))
        };
        if let Some((_, row, plan)) = known.filter(|(among, ..)| Arc::ptr_eq(among, &usable)) {
            return Ok((row, plan));
        }
        let (row, plan) = self.cheapest(request, &usable).ok_or_else(|| self.none(request))?;
        let mut decisions = decisions.0.write().unwrap_or_else(PoisonError::into_inner);
        if decisions.len() >= MOST {
            decisions.clear();
        }
        decisions.insert(signature, (usable, row, plan.clone()));
        Ok((row, plan))
    }

    /// The cheapest row that takes the request and passes its self-test.
    fn cheapest(
        &self,
        request: &J::Request<'_>,
        usable: &Usable,
    ) -> Option<(&'static Algorithm<J>, J::Plan)> {
        let rows = usable.kernels.iter().filter_map(|kernel| self.by_name(kernel.name));
        let mut found: Vec<(f64, &'static Algorithm<J>, J::Plan)> = Vec::with_capacity(self.rows.len());
        for (i, row) in rows.enumerate().filter(|(_, row)| (row.supports)(request).is_ok()) {
            let (micros, plan) = row.priced(request);
            // What is only slower is no reason against the one that is wanted.
            found.push((if i == 0 && usable.wanted { f64::NEG_INFINITY } else { micros }, row, plan));
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.into_iter().find(|(_, row, _)| row.passes(request)).map(|(_, row, plan)| (row, plan))
    }

    fn none(&'static self, request: &J::Request<'_>) -> Error {
        let reasons = self.explain(request).into_iter().map(|row| format!("{}: {}", row.name, row.outcome()));
        Error::unsupported(format!(
            "{}: no algorithm takes {} on {}: {}",
            self.variants.name(),
            J::describe(request),
            J::device(request).capabilities().id,
            reasons.collect::<Vec<_>>().join("; ")
        ))
    }

    /// Whether this row can be used here.
    pub fn has(&'static self, row: &Algorithm<J>, request: &J::Request<'_>) -> bool {
        self.usable(request).kernels.iter().any(|k| k.name == row.name())
    }

    /// Whether this row can be used here and takes the request.
    pub fn takes(&'static self, row: &Algorithm<J>, request: &J::Request<'_>) -> bool {
        self.has(row, request) && (row.supports)(request).is_ok()
    }

    /// Every row with its estimate, or with the reason why it does not apply.
    pub fn explain(&'static self, request: &J::Request<'_>) -> Vec<Row> {
        let device = J::device(request);
        // First: a row that fails its self-test is in quarantine afterwards.
        let chosen = self.cheapest(request, &self.usable(request)).map(|(row, _)| row.name());
        let usable = self.usable(request);
        let row = |row: &&'static Algorithm<J>| {
            let name = row.name();
            let estimate = if !row.kernel.runs_on(device.capabilities()) {
                Err("the device lacks what its kernel requires".to_owned())
            } else if !usable.kernels.iter().any(|k| k.name == name) {
                Err("disabled or in quarantine".to_owned())
            } else {
                let estimate = (row.supports)(request).map(|()| row.priced(request));
                estimate.map(|(micros, plan)| (micros, format!("{plan:?}"))).map_err(str::to_owned)
            };
            Row { name, estimate, models: row.models, chosen: chosen == Some(name) }
        };
        self.rows.iter().map(row).collect()
    }

    /// Does the request with the row that is chosen for it.
    ///
    /// # Errors
    /// As [`Table::choose`], and of launches.
    pub fn run(&'static self, request: &J::Request<'_>) -> Result<J::Output> {
        let (row, plan) = self.choose(request)?;
        match (row.run)(request, &plan) {
            // One of a kernel's many texts that the driver's assembler does not like: another row takes the request.
            Err(e)
                if row.self_test.is_some()
                    && matches!(e.kind(), ErrorKind::Build | ErrorKind::Unsupported) =>
            {
                let device = J::device(request);
                Tuning::of(device).retire(device, row.kernel, e.message());
                self.run(request)
            }
            outcome => outcome,
        }
    }

    /// Does the request with the row of this name.
    ///
    /// # Errors
    /// `Unsupported` where it does not apply; `Internal` where there is none of this name.
    pub fn with(&'static self, name: &str, request: &J::Request<'_>) -> Result<J::Output> {
        let row = self.by_name(name);
        let row =
            row.ok_or_else(|| Error::internal(format!("{}: no algorithm {name}", self.variants.name())))?;
        (row.supports)(request).map_err(|why| Error::unsupported(format!("{name}: {why}")))?;
        (row.run)(request, &(row.estimate)(request).1)
    }

    /// The rows that take a request, in their order, with their estimates and plans: to compare them.
    #[cfg(test)]
    pub fn all(&'static self, request: &J::Request<'_>) -> Vec<(&'static Algorithm<J>, f64, J::Plan)> {
        let rows = self.rows.iter().copied();
        let rows = rows.filter(|row| self.takes(row, request) && row.passes(request));
        rows.map(|row| (row, row.priced(request))).map(|(row, (micros, plan))| (row, micros, plan)).collect()
    }
}

/// What a table says of one of its rows about a request.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kernel's name.
    pub name: &'static str,
    /// Estimated microseconds and the plan, where it takes the request; otherwise why it does not.
    pub estimate: Result<(f64, String), String>,
    /// The constants of the device model behind the estimate.
    pub models: &'static [&'static Model],
    /// Whether it is the one that runs.
    pub chosen: bool,
}

impl Row {
    fn outcome(&self) -> String {
        match &self.estimate {
            Ok((micros, plan)) => format!("{micros:.1} us, {plan}"),
            Err(why) => why.clone(),
        }
    }
}
