//! Runs trees: caches plans and sources per device, binds tensors, and launches kernels.

use super::columns;
use super::emit::{Keep, KernelLayout, MAX_KEPT_ROW, arguments, text};
use super::node::{NodeKind, Nodes, ReductionKind};
use super::plan::{FusedKernel, PlanStep, Walks, plan};
use crate::ops::map::{CPU_CHUNK, map_into, row_grid, smallest};
use crate::ops::{RESIDENT, largest_group, row_groups, sum_parts};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use netcl_kernel::generate::{FUSED, Step};
use netcl_kernel::hash::Mix;
use netcl_kernel::tune::Tuning;
use netcl_kernel::{Launch, Text};
use std::collections::{HashMap, HashSet};
use std::hash::Hash as _;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Minimum number of elements in a part of a row. For fewer, a second launch costs more than it saves.
const PART: usize = 8 << 10;

/// Columns per work-item on a CPU at a time. Their sums stay in the L1 cache, and reads are contiguous.
const CPU_COLUMNS: usize = 2048;
/// Maximum number of rows that are added in sequence, and the minimum if a column is split into parts.
const MAX_ADDED: usize = 1024;
const MIN_ADDED: usize = 16;
/// Lanes of the widest vectors.
const MAX_LANES: usize = 16;
/// Maximum number of vectors of a row that a work-item keeps in registers, and the registers that they use.
const HELD: usize = 8;
const REGISTERS: usize = 96;

/// Values per element that a kernel with column sums keeps, and registers for everything that does not grow with them.
const KEPT_BESIDE: usize = 3;
const OTHER_REGISTERS: usize = 48;
/// Registers of each of [`RESIDENT`] work-items.
const RESIDENT_REGISTERS: usize = 32;
/// Rows that a work-item of a GPU processes in sequence if the kernel does not reduce rows, so that values common to all rows are read
/// once. Also the rows that it loads at once if the kernel walks down columns.
const AT_A_TIME: usize = 2;
/// Work-groups per resident work-group of a GPU, for kernels that read several tensors along a row. Values that belong to columns are read
/// once for all rows of a group.
const WAVES: usize = 4;

/// Hashes a tree and its roots. Scalars are excluded because they are arguments.
fn key(nodes: &Nodes, roots: &[usize]) -> u128 {
    let mut mix = Mix::default();
    for node in &nodes.all {
        let kind = match node.kind {
            NodeKind::Const(_) => NodeKind::Const(0),
            NodeKind::Unary(row, _) => NodeKind::Unary(row, [0; 2]),
            NodeKind::UnaryGrad(row, _) => NodeKind::UnaryGrad(row, [0; 2]),
            kind => kind,
        };
        (kind, &node.args, &node.shape).hash(&mut mix);
    }
    roots.hash(&mut mix);
    mix.bits()
}

type Source = (&'static str, Text);

struct PlannedKernel {
    steps: Vec<PlanStep>,
    texts: RwLock<HashMap<(usize, KernelLayout), Source>>,
}

/// Plans of a device.
#[derive(Default)]
struct Plans(RwLock<HashMap<u128, Arc<PlannedKernel>>>);

/// Returns a kernel name for the profiler and the cache, derived from the source. Equal sources share a name.
fn interned(text: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let name = format!("fused_{}", Text::new(text).digits());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    match names.get(name.as_str()) {
        Some(known) => known,
        None => {
            let kept: &'static str = Box::leak(name.into_boxed_str());
            names.insert(kept);
            kept
        }
    }
}

fn planned(device: &Device, nodes: &Nodes, roots: &[usize]) -> Arc<PlannedKernel> {
    let plans = device.extension(|_| Plans::default());
    let key = key(nodes, roots);
    if let Some(found) = plans.0.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Arc::clone(found);
    }
    let capabilities = device.capabilities();
    let busy = if capabilities.is_cpu() { 8 } else { capabilities.compute_units.max(1) as usize };
    let few = |rows: usize, n: usize| rows > 0 && rows < busy && n >= 2 * PART;
    let columns = |rows: usize, n: usize| {
        let kept = n <= MAX_KEPT_ROW && (capabilities.is_cpu() || n.is_multiple_of(MAX_LANES));
        kept && rows >= MIN_ADDED * busy
    };
    let walks = Walks { few: &few, columns: &columns };
    let made = Arc::new(PlannedKernel { steps: plan(nodes, roots, &walks), texts: RwLock::default() });
    plans.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&made));
    made
}

/// Computes the tensors of `roots`, stored as `dtypes`.
pub(super) fn run(
    nodes: &Nodes,
    device: &Device,
    (roots, dtypes): (&[usize], &[DType]),
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let mut run = Run::new(nodes, device, (roots, dtypes), inputs);
    run.all()?;
    roots.iter().zip(dtypes).map(|(id, dtype)| run.value(*id)?.to_dtype(*dtype)).collect()
}

/// Computes `roots` into the tensors `to`, in their storage types. Returns the sources of the kernels.
pub(super) fn run_into(
    nodes: &Nodes,
    device: &Device,
    (roots, to): (&[usize], &[Tensor]),
    inputs: &[Tensor],
) -> Result<Vec<String>> {
    // Kernels declare that their results do not share memory with their inputs.
    if to.iter().any(|y| inputs.iter().any(|x| x.storage().whole().same(y.storage().whole()))) {
        return Err(Error::internal("fuse: a result shares memory with an input"));
    }
    let dtypes: Vec<DType> = to.iter().map(Tensor::dtype).collect();
    let mut run = Run::new(nodes, device, (roots, &dtypes), inputs);
    run.given = roots.iter().copied().zip(to.iter().cloned()).collect();
    run.all()?;
    for (id, y) in roots.iter().zip(to) {
        let value = run.value(*id)?;
        // Copies results that are inputs, and f32 values that other kernels have read again.
        if !value.storage().same(y.storage()) {
            map_into("x0", &[&value], &[], y)?;
        }
    }
    Ok(run.shown)
}

/// Returns the sources of the kernels that would compute `roots`.
pub(super) fn sources(
    nodes: &Nodes,
    device: &Device,
    (roots, dtypes): (&[usize], &[DType]),
    inputs: &[Tensor],
) -> Result<Vec<String>> {
    let mut run = Run::new(nodes, device, (roots, dtypes), inputs);
    run.all()?;
    Ok(run.shown)
}

struct Run<'a> {
    nodes: &'a Nodes,
    device: &'a Device,
    planned: Arc<PlannedKernel>,
    values: HashMap<usize, Tensor>,
    dtypes: HashMap<usize, DType>,
    inputs: &'a [Tensor],
    /// Destinations of results.
    given: HashMap<usize, Tensor>,
    shown: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(
        nodes: &'a Nodes,
        device: &'a Device,
        (roots, dtypes): (&[usize], &[DType]),
        inputs: &'a [Tensor],
    ) -> Self {
        let planned = planned(device, nodes, roots);
        let mut stored: HashMap<usize, DType> = roots.iter().copied().zip(dtypes.iter().copied()).collect();
        // Values that other kernels read again are stored unrounded, in f32.
        for step in &planned.steps {
            match step {
                PlanStep::Fused(job) => stored.extend(job.leaves.iter().map(|id| (*id, DType::F32))),
                PlanStep::Library(id) => stored.extend([(nodes.all[*id].args[0], DType::F32)]),
            }
        }
        let (values, given) = (HashMap::new(), HashMap::new());
        Self { nodes, device, planned, values, dtypes: stored, inputs, given, shown: Vec::new() }
    }

    fn value(&self, id: usize) -> Result<Tensor> {
        if let Some(found) = self.values.get(&id) {
            return Ok(found.clone());
        }
        match self.nodes.kind(id) {
            NodeKind::Input(i) => Ok(self.inputs[i].detach()),
            kind => Err(Error::internal(format!("fuse: {} is read before it is computed", kind.name()))),
        }
    }

    fn dtype(&self, id: usize) -> DType {
        self.dtypes.get(&id).copied().unwrap_or(DType::F32)
    }

    fn all(&mut self) -> Result<()> {
        let planned = Arc::clone(&self.planned);
        for (number, step) in planned.steps.iter().enumerate() {
            match step {
                PlanStep::Fused(job) => self.fused(number, job)?,
                PlanStep::Library(id) => {
                    let y = self.library(*id)?;
                    self.values.insert(*id, y);
                }
            }
        }
        Ok(())
    }

    /// Computes a reduction with the library's kernel.
    fn library(&self, id: usize) -> Result<Tensor> {
        let NodeKind::Reduce(how, mask) = self.nodes.kind(id) else {
            return Err(Error::internal("fuse: not a reduction"));
        };
        let x = self.value(self.nodes.all[id].args[0])?;
        let x = if x.dtype().is_float() { x } else { x.to_dtype(DType::F32)? };
        let rank = x.shape().rank();
        let axes: Vec<isize> = (0..rank)
            .filter(|bit| mask & (1 << bit) != 0)
            .map(|bit| (rank - 1 - bit).cast_signed())
            .collect();
        let y = match how {
            ReductionKind::Sum => x.sum_f32(&axes, true)?,
            ReductionKind::Max => x.max(&axes, true)?,
        };
        y.to_dtype(self.dtype(id))
    }

    fn fused(&mut self, number: usize, job: &FusedKernel) -> Result<()> {
        let leaves = job.leaves.iter().map(|id| self.value(*id)).collect::<Result<Vec<_>>>()?;
        let mut bound = Bound::new(job, leaves)?;
        bound.columns = job.columns;
        bound.bucket = bound.class(job, job.outputs.iter().map(|id| self.dtype(*id)));
        let parts = if job.parts || job.below > 0 { bound.parts(self.device, job) } else { 1 };
        let halves = job.outputs.iter().all(|id| self.dtype(*id).size() == 2);
        let mut outputs = Vec::with_capacity(job.outputs.len());
        for id in &job.outputs {
            let given = self.given.get(id).filter(|y| y.dtype() == self.dtype(*id));
            outputs.push(match (job.parts, given) {
                _ if job.below > 0 && self.nodes.kind(*id).is_reduction() => {
                    Tensor::empty(self.device, [job.rows(), parts, bound.inner], DType::F32)?
                }
                _ if job.is_column(self.nodes, *id) => {
                    let groups = bound.groups_with_columns(self.device, job.rows());
                    Tensor::empty(self.device, [1, groups, bound.inner], DType::F32)?
                }
                (true, _) => Tensor::empty(self.device, [job.rows(), parts], DType::F32)?,
                (false, Some(y)) => y.clone(),
                (false, None) => Tensor::empty(self.device, self.nodes.shape(*id), self.dtype(*id))?,
            });
        }
        if outputs.iter().any(|y| y.count() > 0) {
            let (scalars, literals) = arguments(self.nodes, job);
            let form = KernelLayout { literals, ..bound.form(job, &outputs) };
            let source = self.source(number, job, &form);
            let launch = bound.launch(job, (&form, source, &scalars), &outputs, parts)?;
            launch.define("OUT", i64::from(halves)).run()?;
        }
        for (id, y) in job.outputs.iter().zip(outputs) {
            let in_parts = job.parts || job.is_column(self.nodes, *id) || parts > 1;
            let y = match (in_parts && self.nodes.kind(*id).is_reduction(), self.nodes.kind(*id)) {
                _ if y.count() == 0 => y.reshape(self.nodes.shape(*id))?.to_dtype(self.dtype(*id))?,
                (false, _) => y.to_dtype(self.dtype(*id))?,
                (true, NodeKind::Reduce(ReductionKind::Max, _)) => {
                    y.max(&[1], false)?.to_dtype(self.dtype(*id))?
                }
                (true, _) => y.sum_stored(&[1], self.dtype(*id))?,
            };
            self.values.insert(*id, y.reshape(self.nodes.shape(*id))?);
        }
        Ok(())
    }

    fn source(&mut self, number: usize, job: &FusedKernel, form: &KernelLayout) -> Source {
        let key = (number, form.clone());
        let found = self.planned.texts.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((name, made)) = found {
            self.shown.push(made.as_str().to_owned());
            return (name, made);
        }
        let made =
            if job.below > 0 { columns::text(self.nodes, job, form) } else { text(self.nodes, job, form) };
        let name = interned(&made);
        let made = made.replace("NAME", name);
        tracing::debug!("{name}:\n{}{made}", super::show::tree(self.nodes, &job.outputs));
        self.shown.push(made.clone());
        let source = (name, Text::new(&made));
        self.planned.texts.write().unwrap_or_else(PoisonError::into_inner).insert(key, source.clone());
        source
    }
}

/// The leaves of a kernel and their layout in its space.
struct Bound {
    leaves: Vec<Tensor>,
    outer: Vec<usize>,
    inner: usize,
    /// Strides of the outer axes and along a row, for each leaf.
    strides: Vec<(Vec<usize>, usize)>,
    /// Number of rows to walk down, and each leaf's stride between them.
    deep: (usize, Vec<usize>),
    /// Number of column sums computed together with row reductions.
    columns: usize,
    /// See [`Bound::class`].
    bucket: u64,
}

/// Returns a leaf's strides over a space, 0 where it repeats.
fn strides_in(x: &Tensor, space: &[usize]) -> Vec<usize> {
    let (rank, dims, strides) = (space.len(), x.dims(), &x.layout().strides);
    let at = |axis: usize| {
        (axis + dims.len()).checked_sub(rank).filter(|at| dims[*at] != 1).map_or(0, |at| strides[at])
    };
    (0..rank).map(at).collect()
}

/// Merges axes that all operands traverse contiguously.
fn merged(dims: &[usize], strides: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); strides.len()];
    for (d, size) in dims.iter().enumerate().filter(|(_, n)| **n != 1) {
        let even =
            !sizes.is_empty() && out.iter().zip(strides).all(|(m, s)| m.last() == Some(&(s[d] * size)));
        match sizes.last_mut() {
            Some(last) if even => {
                *last *= size;
                out.iter_mut().for_each(|m| m.truncate(m.len() - 1));
            }
            _ => sizes.push(*size),
        }
        out.iter_mut().zip(strides).for_each(|(m, s)| m.push(s[d]));
    }
    (sizes, out)
}

impl Bound {
    fn new(job: &FusedKernel, mut leaves: Vec<Tensor>) -> Result<Self> {
        let last = job.space.len();
        let middle = last - job.below;
        let first = middle - job.reduced;
        let runs = [first..middle, middle..last];
        for x in &mut leaves {
            let strides = strides_in(x, &job.space);
            let one = |run: &Range<usize>| {
                merged(&job.space[run.clone()], &[strides[run.clone()].to_vec()]).0.len() <= 1
            };
            if job.reduced > 0 && !runs.iter().all(one) {
                let dims = x.dims()[x.shape().rank().saturating_sub(job.space.len())..].to_vec();
                *x = x.reshape(dims)?.expand(Shape::from(job.space.clone()))?.contiguous()?;
            }
        }
        let strides: Vec<Vec<usize>> = leaves.iter().map(|x| strides_in(x, &job.space)).collect();
        // First, each leaf is merged alone. Together, the leaves then have one axis, or an axis along which some repeat.
        let run = |run: &Range<usize>| {
            let dims = &job.space[run.clone()];
            let of =
                |s: &Vec<usize>| merged(dims, &[s[run.clone()].to_vec()]).1[0].last().copied().unwrap_or(0);
            (dims.iter().product::<usize>(), strides.iter().map(of).collect::<Vec<_>>())
        };
        let above = strides.iter().map(|s| s[..first].to_vec()).collect::<Vec<_>>();
        let (mut outer, mut steps) = merged(&job.space[..first], &above);
        let mut deep = (1, vec![0; leaves.len()]);
        let (inner, along) = match (job.reduced, job.below) {
            (0, _) => {
                let inner = outer.pop().unwrap_or(1);
                (inner, steps.iter_mut().map(|s| s.pop().unwrap_or(0)).collect())
            }
            (_, 0) => run(&runs[0]),
            _ => {
                deep = run(&runs[0]);
                run(&runs[1])
            }
        };
        let strides = steps.into_iter().zip(along).collect();
        Ok(Self { leaves, outer, inner, strides, deep, columns: 0, bucket: 0 })
    }

    fn step(&self, leaf: usize) -> Step {
        match self.strides[leaf].1 {
            0 => Step::Zero,
            1 => Step::Unit,
            _ => Step::Strided,
        }
    }

    fn form(&self, job: &FusedKernel, outputs: &[Tensor]) -> KernelLayout {
        let leaves: Vec<_> = self.leaves.iter().enumerate().map(|(i, x)| (x.dtype(), self.step(i))).collect();
        let flat =
            job.reduced == 0 && self.outer.is_empty() && leaves.iter().all(|leaf| leaf.1 != Step::Strided);
        let chunked = outputs.first().is_none_or(|y| y.device().capabilities().is_cpu());
        let keep = match outputs.first() {
            Some(y) if job.reduced > 0 && job.below == 0 && !job.parts => self.keep(y.device(), outputs),
            _ => Keep::Nothing,
        };
        let whole = self.inner.is_multiple_of(MAX_LANES) || matches!(keep, Keep::Registers(_));
        let outputs = outputs.iter().map(Tensor::dtype).collect();
        let outer = (!flat).then_some(self.outer.len());
        let still = match chunked || !whole || job.reduced == 0 {
            true => Vec::new(),
            false => (0..self.leaves.len()).map(|i| self.is_still(i, job.below > 0, keep)).collect(),
        };
        KernelLayout { leaves, outputs, outer, keep, still, whole, literals: Vec::new() }
    }

    /// Returns whether a leaf has the same elements in every row of a work-item.
    fn is_still(&self, leaf: usize, down: bool, keep: Keep) -> bool {
        let same = if down { self.deep.1[leaf] == 0 } else { self.strides[leaf].0.iter().all(|s| *s == 0) };
        same && self.step(leaf) == Step::Unit && (down || matches!(keep, Keep::Registers(_)))
    }

    /// Returns where a row is kept between passes.
    fn keep(&self, device: &Device, outputs: &[Tensor]) -> Keep {
        if device.capabilities().is_cpu() {
            return if self.inner <= MAX_KEPT_ROW { Keep::Memory } else { Keep::Nothing };
        }
        match self.lanes(outputs, (false, false)) {
            Some(lanes) => match self.held(device, self.inner, lanes) {
                held @ 1..=HELD => {
                    let values = REGISTERS / (held.next_power_of_two() * lanes);
                    Keep::Registers(values.saturating_sub(self.columns))
                }
                _ => Keep::Nothing,
            },
            None => Keep::Nothing,
        }
    }

    /// Returns the number of vectors of a row per work-item.
    fn held(&self, device: &Device, n: usize, lanes: usize) -> usize {
        n.div_ceil(lanes * self.group(device, n))
    }

    /// Returns the class of shapes for tuned parameters: how the kernel walks, bits per element, row size in powers of four, and whether
    /// there is a costly function.
    fn class(&self, job: &FusedKernel, outputs: impl Iterator<Item = DType>) -> u64 {
        let walk = match (job.reduced, job.below, job.parts) {
            (0, ..) => u64::from(!self.outer.is_empty()),
            (_, 0, false) if self.columns > 0 => 5,
            (_, 0, false) => 2,
            (_, 0, true) => 3,
            _ => 4,
        };
        let size = smallest(self.leaves.iter().map(Tensor::dtype).chain(outputs));
        let row = if walk == 0 { 0 } else { u64::from(self.inner.max(1).ilog2() / 2).min(15) };
        1 + (walk << 8 | row << 4 | (size as u64 / 2) << 1 | u64::from(job.costly))
    }

    /// Returns the size in bytes of the smallest element that is read.
    fn smallest_leaf(&self) -> usize {
        smallest(self.leaves.iter().map(Tensor::dtype))
    }

    /// Returns the number of work-items that share a row of `n` elements.
    fn group(&self, device: &Device, n: usize) -> usize {
        if device.capabilities().is_cpu() {
            return 1;
        }
        let value = |name| Tuning::value(device, &FUSED, self.bucket, name);
        let vectors = n.div_ceil(value("VW"));
        // Other kept values of a row and column sums also need registers.
        let share = match (self.columns, self.leaves.len()) {
            (0, 1) => value("SHARE") * 2,
            (0, _) => value("SHARE"),
            _ => (value("SHARE") / 2).max(1),
        };
        vectors.div_ceil(share).next_power_of_two().clamp(32, 512).min(largest_group(device))
    }

    /// Returns the number of parts that each row is split into.
    fn parts(&self, device: &Device, job: &FusedKernel) -> usize {
        if job.below > 0 {
            return self.parts_of_columns(device, job.rows());
        }
        let wanted = sum_parts(device, job.rows() * self.inner);
        wanted.div_ceil(job.rows().max(1)).clamp(1, (self.inner / PART).max(1))
    }

    /// Returns the number of parts that columns are split into. It does not depend on the number of CPU cores, which must not affect
    /// results.
    fn parts_of_columns(&self, device: &Device, rows: usize) -> usize {
        let (deep, elements) = (self.deep.0, rows * self.deep.0 * self.inner);
        if device.capabilities().is_cpu() {
            let wanted = sum_parts(device, elements).div_ceil(rows.max(1));
            return wanted.max(deep / MAX_ADDED).clamp(1, deep.div_ceil(MIN_ADDED).max(1));
        }
        let items = rows * self.inner.div_ceil(16 / self.smallest_leaf());
        let wanted = (device.capabilities().compute_units.max(1) as usize * RESIDENT).div_ceil(items.max(1));
        wanted.max(deep / MAX_ADDED).clamp(1, deep.div_ceil(MIN_ADDED).max(1))
    }

    /// Returns the lanes per vector: 16 bytes or the tuned number, on GPUs, if the layout of all operands allows it.
    fn lanes(&self, outputs: &[Tensor], (flat, rows_of_one): (bool, bool)) -> Option<usize> {
        let device = outputs.first().map(Tensor::device).filter(|d| !d.capabilities().is_cpu())?;
        let unit = |i: &usize| self.step(*i) == Step::Unit;
        let units: Vec<usize> = (0..self.leaves.len()).filter(unit).collect();
        let size = smallest(units.iter().map(|i| &self.leaves[*i]).chain(outputs).map(Tensor::dtype));
        let span = Tuning::value(device, &FUSED, self.bucket, "SPAN");
        let lanes = (span / size).max(2);
        let even = |n: usize| n.is_multiple_of(lanes);
        let aligned = units.iter().all(|i| {
            let strides = || self.strides[*i].0.iter().chain([&self.deep.1[*i]]);
            even(self.leaves[*i].layout().offset) && (flat || strides().all(|s| even(*s)))
        });
        (aligned && (flat || even(self.inner)) && !rows_of_one).then_some(lanes)
    }

    fn launch(
        &self,
        job: &FusedKernel,
        (form, (name, text), scalars): (&KernelLayout, Source, &[f32]),
        outputs: &[Tensor],
        parts: usize,
    ) -> Result<Launch<'static>> {
        let Some(device) = outputs.first().map(Tensor::device) else {
            return Err(Error::internal("fuse: a kernel does not have an output"));
        };
        let flat = form.outer.is_none();
        let lanes = self.lanes(outputs, (flat, parts > 1 && job.below == 0));
        let mut launch = FUSED
            .launch(name)
            .bucket(self.bucket)
            .define("TEXT", text)
            .define("CHUNKED", device.capabilities().is_cpu());
        if let Some(lanes) = lanes {
            launch = launch.define("VW", lanes).define("ALIGNED_VECTORS", 1);
        }
        for x in &self.leaves {
            launch = launch.read_base(x).scalar(x.layout().offset);
        }
        for y in outputs {
            launch = launch.write_base(y);
        }
        for scalar in scalars {
            launch = launch.scalar(*scalar);
        }
        if flat {
            return Ok(self.flat_geometry(launch.scalar(self.inner), device, lanes));
        }
        for size in &self.outer {
            launch = launch.scalar(*size);
        }
        for (i, (outer, inner)) in self.strides.iter().enumerate() {
            for stride in outer {
                launch = launch.scalar(*stride);
            }
            if self.step(i) == Step::Strided {
                launch = launch.scalar(*inner);
            }
        }
        let rows: usize = self.outer.iter().product();
        launch = launch.scalar(rows).scalar(self.inner);
        if job.below > 0 {
            return Ok(self.column_geometry(launch, device, (lanes, job.costly), (rows, parts)));
        }
        if job.reduced == 0 {
            let value = |name| Tuning::value(device, &FUSED, self.bucket, name);
            let lanes = lanes.unwrap_or_else(|| value("VW"));
            let wg = if device.capabilities().is_cpu() { 1 } else { value("WG") };
            let (local, mut groups) = row_grid(device, wg, lanes, rows, self.inner);
            groups[1] = groups[1].div_ceil(AT_A_TIME);
            return Ok(launch.local(local).groups3(groups));
        }
        // Parts start at whole vectors.
        let per = self.inner.div_ceil(parts).next_multiple_of(64);
        let wg = self.group(device, per.min(self.inner));
        if let (Keep::Registers(_), Some(lanes)) = (form.keep, lanes) {
            launch = launch.define("HELD", self.held(device, self.inner, lanes));
        }
        let launch = if device.capabilities().is_cpu() { launch } else { launch.define("WG", wg) };
        let groups = self.groups_of_rows(device, (rows, parts), wg, per);
        Ok(launch.scalar(parts).scalar(per).groups(groups))
    }

    /// Returns the number of work-groups of a kernel that reduces rows, with `wg` work-items for `per` elements each.
    fn groups_of_rows(&self, device: &Device, (rows, parts): (usize, usize), wg: usize, per: usize) -> usize {
        match (self.columns, self.leaves.len()) {
            (0, 2..) if wg > 1 => {
                let resident = device.capabilities().compute_units.max(1) as usize * (RESIDENT / wg);
                (rows * parts).min(WAVES * resident)
            }
            (0, _) => row_groups(device, rows * parts, per.min(self.inner)),
            _ => self.groups_with_columns(device, rows),
        }
    }

    /// Returns the number of work-groups of a kernel with row reductions and column sums; each group writes partial sums. On GPUs, it is
    /// the number of groups that registers allow to be resident. On CPUs it does not depend on the number of cores, see
    /// [`Bound::parts_of_columns`].
    fn groups_with_columns(&self, device: &Device, rows: usize) -> usize {
        let capabilities = device.capabilities();
        let busy = match capabilities.is_cpu() {
            true => sum_parts(device, rows * self.inner),
            false => {
                let group = self.group(device, self.inner);
                let values = self.inner.div_ceil(group) * (self.columns + KEPT_BESIDE);
                let resident = RESIDENT * RESIDENT_REGISTERS / (values + OTHER_REGISTERS);
                capabilities.compute_units.max(1) as usize * (resident / group).max(1)
            }
        };
        busy.max(rows / MAX_ADDED).clamp(1, (rows * 2 / MIN_ADDED).max(1))
    }

    fn column_geometry(
        &self,
        launch: Launch<'static>,
        device: &Device,
        (lanes, costly): (Option<usize>, bool),
        (rows, parts): (usize, usize),
    ) -> Launch<'static> {
        let (deep, strides) = &self.deep;
        let per = deep.div_ceil(parts);
        let launch = strides.iter().fold(launch.scalar(*deep), |launch, stride| launch.scalar(*stride));
        let launch = launch.scalar(parts).scalar(per);
        let value = |name| Tuning::value(device, &FUSED, self.bucket, name);
        if device.capabilities().is_cpu() {
            let groups = row_groups(device, rows * parts, per * self.inner);
            let chunk = self.inner.next_power_of_two().clamp(64, CPU_COLUMNS);
            return launch.define("DEEP", 1).define("CHUNK", chunk).local([1, 1, 1]).groups3([1, groups, 1]);
        }
        let lanes = lanes.unwrap_or_else(|| value("VW"));
        let (local, groups) = row_grid(device, value("WG"), lanes, rows * parts, self.inner);
        // Exact f32 functions need the registers of a second row.
        let deep = if costly && self.smallest_leaf() == 4 { 1 } else { AT_A_TIME };
        launch.define("DEEP", deep).define("CHUNK", lanes).local(local).groups3(groups)
    }

    fn flat_geometry(
        &self,
        launch: Launch<'static>,
        device: &Device,
        lanes: Option<usize>,
    ) -> Launch<'static> {
        let (n, capabilities) = (self.inner, device.capabilities());
        let units = capabilities.compute_units.max(1) as usize;
        if capabilities.is_cpu() {
            return launch.groups(n.div_ceil(CPU_CHUNK).clamp(1, units * 4));
        }
        let value = |name| Tuning::value(device, &FUSED, self.bucket, name);
        let lanes = lanes.unwrap_or_else(|| value("VW"));
        launch.groups(n.div_ceil(lanes * value("WG")).min(units * 32))
    }
}
