//! Tables of algorithms: the ways to do one job. Each row is in a separate file, with its kernel.
//!
//! A row says whether it supports a request and, if not, why. It estimates its time together with a plan, and runs that plan. The table chooses the
//! cheapest row that supports a request and passes its self-test, once per kind of request on a device. A preferred row comes first if it supports
//! the request: the one that `netcl tune` measured as fastest for this class of shapes, that `NETCL_PREFER` names, or that the self-test is
//! testing.
//!
//! The decision is kept for similar requests. A row that the driver cannot build is retired, and another one takes the request. An estimate is a
//! formula of sizes whose constants are data: a row names the device models that it uses (`netcl_kernel::tune::model`). `netcl bench gemm --explain`
//! and `netcl bench attention --explain` print the rows, and `--regret` times them all. A table for another operation defines its requests and plans
//! in [`Job`].

use super::prelude::*;
use netcl_device::ErrorKind;
use netcl_kernel::tune::Model;
use netcl_kernel::{Usable, Variants};
use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

/// A job that the rows of a table can do.
pub(in crate::ops) trait Job: Sized + 'static {
    /// The problem: sizes, options, layouts of operands, destinations of results.
    type Request<'a>;
    /// A row's division of a request.
    type Plan: Clone + Debug + Send + Sync + 'static;
    /// Results in addition to those that the request names.
    type Output;
    /// All properties of a request that a decision may depend on.
    type Signature: Eq + Hash + Send + Sync + 'static;

    /// Returns the device of the request.
    fn device<'r>(request: &'r Self::Request<'_>) -> &'r Device;
    /// Returns the class of shapes for which `netcl tune` finds the fastest row; not 0.
    fn class(request: &Self::Request<'_>) -> u64;
    /// Returns the properties in [`Job::Signature`].
    fn signature(request: &Self::Request<'_>) -> Self::Signature;
    /// Returns sizes and storage type, for errors.
    fn describe(request: &Self::Request<'_>) -> String;
    /// Returns the microseconds that every row needs at least.
    fn least(_: &Self::Request<'_>) -> f64 {
        0.0
    }
}

/// One way to do a job.
pub(in crate::ops) struct Algorithm<J: Job> {
    /// Its kernel. The kernel's name is used to tune, prefer, disable and quarantine it.
    pub kernel: &'static Kernel,
    /// Checks whether it supports this request on this device; the error is the reason.
    pub supports: fn(&J::Request<'_>) -> Result<(), &'static str>,
    /// The constants of the device model in its estimate.
    pub models: &'static [&'static Model],
    /// Estimates its microseconds and makes its plan. Called only if the request is supported.
    pub estimate: fn(&J::Request<'_>) -> (f64, J::Plan),
    /// Runs the plan.
    pub run: fn(&J::Request<'_>, &J::Plan) -> Result<J::Output>,
    /// Checks small requests before the first use, if the kernel relies on more than OpenCL guarantees.
    pub self_test: Option<fn(&Device) -> bool>,
}

impl<J: Job> Algorithm<J> {
    /// Returns the kernel's name.
    pub fn name(&self) -> &'static str {
        self.kernel.name
    }
    /// Returns [`Algorithm::estimate`], but at least the time of a launch and of [`Job::least`].
    fn priced(&self, request: &J::Request<'_>) -> (f64, J::Plan) {
        let (micros, plan) = (self.estimate)(request);
        let device = J::device(request);
        let launch = self.models.iter().find_map(|model| model.constant(device, "launch_us"));
        (micros.max(launch.unwrap_or_default() + J::least(request)), plan)
    }
    fn passes(&self, request: &J::Request<'_>) -> bool {
        self.self_test.is_none_or(|test| test(J::device(request)))
    }
    /// Returns the error for a plan that another row made.
    pub fn foreign(kernel: &Kernel) -> Error {
        Error::internal(format!("{}: a plan of another algorithm", kernel.name))
    }
}

/// A row's plan, in a type that only the row knows. A table of these plans accepts rows with different plan types.
#[derive(Clone)]
pub(in crate::ops) struct RowPlan(Arc<dyn Planned>);

trait Planned: Any + Debug + Send + Sync {}
impl<P: Any + Debug + Send + Sync> Planned for P {}

impl RowPlan {
    /// Wraps a row's plan.
    pub fn of(plan: impl Any + Debug + Send + Sync) -> Self {
        Self(Arc::new(plan))
    }

    /// Returns the plan in the type of the row of `kernel`.
    ///
    /// # Errors
    /// `Internal` if another row made the plan.
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

/// Returns the kernels of a table's rows, for [`Table::new`].
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

/// The ways to do a job. If estimates are equal, the first row is chosen.
pub(in crate::ops) struct Table<J: Job> {
    rows: &'static [&'static Algorithm<J>],
    variants: Variants,
}

/// A decision, and the variants that it chose from.
type Decided<J> = (Arc<Usable>, &'static Algorithm<J>, <J as Job>::Plan);

/// Decisions on a device. Finding the cheapest of hundreds of plans takes longer on the host than a launch.
struct Decisions<J: Job>(RwLock<HashMap<J::Signature, Decided<J>>>);

/// Maximum number of stored decisions. At this number all are discarded, so that sizes that never recur do not stay forever.
const MAX_STORED_DECISIONS: usize = 4096;

impl<J: Job> Table<J> {
    /// Builds the table of the job `name`; `kernels` are its rows' kernels.
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

    /// Returns the row for this request, and its plan.
    ///
    /// # Errors
    /// `Unsupported` with each row's reason if no row supports the request.
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
        if decisions.len() >= MAX_STORED_DECISIONS {
            decisions.clear();
        }
        decisions.insert(signature, (usable, row, plan.clone()));
        Ok((row, plan))
    }

    /// Returns the cheapest row that supports the request and passes its self-test.
    fn cheapest(
        &self,
        request: &J::Request<'_>,
        usable: &Usable,
    ) -> Option<(&'static Algorithm<J>, J::Plan)> {
        let rows = usable.kernels.iter().filter_map(|kernel| self.by_name(kernel.name));
        let mut found: Vec<(f64, &'static Algorithm<J>, J::Plan)> = Vec::with_capacity(self.rows.len());
        for (i, row) in rows.enumerate().filter(|(_, row)| (row.supports)(request).is_ok()) {
            let (micros, plan) = row.priced(request);
            // The wanted row is used even if it is slower.
            found.push((if i == 0 && usable.wanted { f64::NEG_INFINITY } else { micros }, row, plan));
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.into_iter().find(|(_, row, _)| row.passes(request)).map(|(_, row, plan)| (row, plan))
    }

    fn none(&'static self, request: &J::Request<'_>) -> Error {
        let reasons = self.explain(request).into_iter().map(|row| format!("{}: {}", row.name, row.outcome()));
        Error::unsupported(format!(
            "{}: no algorithm supports {} on {}: {}",
            self.variants.name(),
            J::describe(request),
            J::device(request).capabilities().id,
            reasons.collect::<Vec<_>>().join("; ")
        ))
    }

    /// Returns whether this row can be used on this device.
    pub fn has(&'static self, row: &Algorithm<J>, request: &J::Request<'_>) -> bool {
        self.usable(request).kernels.iter().any(|k| k.name == row.name())
    }

    /// Returns whether this row can be used on this device and supports the request.
    pub fn takes(&'static self, row: &Algorithm<J>, request: &J::Request<'_>) -> bool {
        self.has(row, request) && (row.supports)(request).is_ok()
    }

    /// Returns every row with its estimate, or with the reason why it does not apply.
    pub fn explain(&'static self, request: &J::Request<'_>) -> Vec<Row> {
        let device = J::device(request);
        // Choose first: a row that fails its self-test is then in quarantine.
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

    /// Runs the request with the chosen row.
    ///
    /// # Errors
    /// Errors of [`Table::choose`], and of launches.
    pub fn run(&'static self, request: &J::Request<'_>) -> Result<J::Output> {
        let (row, plan) = self.choose(request)?;
        match (row.run)(request, &plan) {
            // The driver's assembler rejected this compilation of the kernel: use another row.
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

    /// Runs the request with the row of this name.
    ///
    /// # Errors
    /// `Unsupported` if it does not apply; `Internal` if no row has this name.
    pub fn with(&'static self, name: &str, request: &J::Request<'_>) -> Result<J::Output> {
        let row = self.by_name(name);
        let row =
            row.ok_or_else(|| Error::internal(format!("{}: no algorithm {name}", self.variants.name())))?;
        (row.supports)(request).map_err(|why| Error::unsupported(format!("{name}: {why}")))?;
        (row.run)(request, &(row.estimate)(request).1)
    }

    /// Returns the rows that support a request, in the table's order, with their estimates and plans, for comparison.
    #[cfg(test)]
    pub fn all(&'static self, request: &J::Request<'_>) -> Vec<(&'static Algorithm<J>, f64, J::Plan)> {
        let rows = self.rows.iter().copied();
        let rows = rows.filter(|row| self.takes(row, request) && row.passes(request));
        rows.map(|row| (row, row.priced(request))).map(|(row, (micros, plan))| (row, micros, plan)).collect()
    }
}

/// A table's report of one row for a request.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kernel's name.
    pub name: &'static str,
    /// Estimated microseconds and the plan if it supports the request; otherwise the reason why not.
    pub estimate: Result<(f64, String), String>,
    /// The constants of the device model in the estimate.
    pub models: &'static [&'static Model],
    /// Whether this row runs.
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
