//! Which kernels compute a tree: one, unless reductions go over different axes or too few rows to keep a device busy.
//!
//! A kernel has a space, the shape that its elements are in, of which the last axes may be reduced. A reduction is computed inside
//! of it where its argument has that shape and its axes are those. Every other one is cut off: kernels before compute it.

use super::node::{Kind, Nodes, Reduction, trimmed};

/// One generated kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    /// Sizes, without leading ones.
    pub space: Vec<usize>,
    /// How many axes reductions go over.
    pub reduced: usize,
    /// How many axes there are below those. Where there are any, the kernel walks down columns: its outputs are reductions, and values for
    /// each element that need none.
    pub below: usize,
    /// Rows are taken in parts: the outputs are reductions, whose parts a further launch puts together.
    pub parts: bool,
    pub outputs: Vec<usize>,
    /// What is read from memory: inputs, and results of kernels before.
    pub leaves: Vec<usize>,
    /// How many outputs [`Job::is_column`] is true of.
    pub columns: usize,
    /// The nodes that are or have scalars.
    pub scalars: Vec<usize>,
    /// Whether there is a costly function.
    pub costly: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Fused(Job),
    /// A reduction over axes that do not lie side by side, or above few columns, by the library's own kernels.
    Library(usize),
}

/// Results that one kernel writes at most.
const OUTPUTS: usize = 16;

/// Columns from which on a kernel walks down them.
const COLUMNS: usize = 16;

/// What a device makes of `(rows, elements a row)`.
pub(super) struct Walks<'a> {
    /// Whether the rows are too few and are taken in parts.
    pub few: &'a dyn Fn(usize, usize) -> bool,
    /// Whether a kernel that reduces rows can add up their columns besides, as each work-group has many rows and each work-item the same
    /// columns of them.
    pub columns: &'a dyn Fn(usize, usize) -> bool,
}

/// The steps for `roots`, in order.
pub(super) fn plan(nodes: &Nodes, roots: &[usize], walks: &Walks<'_>) -> Vec<Step> {
    let mut levels = Vec::new();
    let mut wanted = roots.to_vec();
    let mut moved = Vec::new();
    while !wanted.is_empty() {
        wanted.sort_unstable();
        wanted.dedup();
        let (level, mut next) = level(nodes, &wanted, walks, &mut moved);
        next.retain(|id| !matches!(nodes.kind(*id), Kind::Input(_)));
        levels.push(level);
        wanted = next;
    }
    let mut done = vec![false; nodes.all.len()];
    let mut steps = Vec::new();
    for mut step in levels.into_iter().rev().flatten() {
        let made = match &mut step {
            Step::Library(id) => std::slice::from_ref(id),
            Step::Fused(job) => {
                let before = job.outputs.len();
                job.outputs.retain(|id| !done[*id]);
                if job.outputs.len() != before {
                    job.leaves = leaves(nodes, job);
                }
                job.look(nodes);
                job.outputs.as_slice()
            }
        };
        if made.iter().all(|id| done[*id]) {
            continue;
        }
        made.iter().for_each(|id| done[*id] = true);
        steps.push(step);
    }
    steps
}

/// The steps that make `wanted`, and what has to be there before.
fn level(
    nodes: &Nodes,
    wanted: &[usize],
    walks: &Walks<'_>,
    moved: &mut Vec<usize>,
) -> (Vec<Step>, Vec<usize>) {
    let (mut jobs, mut steps, mut next): (Vec<Job>, Vec<Step>, Vec<usize>) = Default::default();
    for id in wanted {
        if let Kind::Reduce(_, mask) = nodes.kind(*id)
            && !mask.wrapping_add(1).is_power_of_two()
        {
            match columns(nodes, *id) {
                Some(job) => add(nodes, &mut jobs, job),
                None => {
                    next.push(nodes.all[*id].args[0]);
                    steps.push(Step::Library(*id));
                }
            }
            continue;
        }
        add(nodes, &mut jobs, place(nodes, *id, walks));
    }
    join_plain(nodes, &mut jobs);
    join_columns(nodes, &mut jobs, walks);
    for job in &mut jobs {
        job.leaves = leaves(nodes, job);
    }
    next.extend(first_those_that_give(nodes, &mut jobs, moved));
    for job in jobs {
        next.extend(&job.leaves);
        steps.push(Step::Fused(job));
    }
    (steps, next)
}

/// Kernels that compute a reduction inside that others of the level read go before these, once, and write it for them: it is not computed
/// twice. Their outputs.
fn first_those_that_give(nodes: &Nodes, jobs: &mut Vec<Job>, moved: &mut Vec<usize>) -> Vec<usize> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < jobs.len() {
        let job = &jobs[at];
        let inside = job.cone(nodes, &job.outputs);
        let gives = |id: &usize| job.computes(nodes, *id) && inside.contains(id);
        let others = || jobs.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, other)| other);
        let read = others().any(|other| other.leaves.iter().any(gives));
        let waits = others().any(|other| job.leaves.iter().any(|leaf| other.outputs.contains(leaf)));
        let again = job.outputs.iter().any(|id| moved.contains(id));
        let room = job.outputs.len() + 4 <= OUTPUTS;
        if job.parts || job.below > 0 || !read || waits || again || !room {
            at += 1;
            continue;
        }
        moved.extend(&job.outputs);
        out.extend(jobs.remove(at).outputs);
    }
    out
}

/// Adds an output to a kernel that walks over the same elements, or as a separate kernel.
fn add(nodes: &Nodes, jobs: &mut Vec<Job>, job: Job) {
    let alike = |other: &&mut Job| {
        let rows = (other.reduced, other.below, other.parts) == (job.reduced, job.below, job.parts);
        let room = other.outputs.len() < OUTPUTS;
        other.space == job.space && rows && room && (!job.ends_late() || independent(nodes, other, &job))
    };
    match jobs.iter_mut().find(alike) {
        Some(other) => other.outputs.extend(job.outputs),
        None => jobs.push(job),
    }
}

/// Whether no output of one kernel is computed from an output of the other.
fn independent(nodes: &Nodes, a: &Job, b: &Job) -> bool {
    let needs = |job: &Job, other: &Job| {
        let cone = nodes.cone(&job.outputs, |_| false);
        other.outputs.iter().any(|id| cone.binary_search(id).is_ok())
    };
    !needs(a, b) && !needs(b, a)
}

/// The kernel for a reduction of axes above others.
fn columns(nodes: &Nodes, id: usize) -> Option<Job> {
    let Kind::Reduce(_, mask) = nodes.kind(id) else { return None };
    let space = trimmed(nodes.shape(nodes.all[id].args[0]));
    let (below, reduced) = (mask.trailing_zeros() as usize, mask.count_ones() as usize);
    let side_by_side = (mask >> below).wrapping_add(1).is_power_of_two() && below + reduced <= space.len();
    let wide = side_by_side && space[space.len() - below..].iter().product::<usize>() >= COLUMNS;
    wide.then(|| Job {
        space: space.to_vec(),
        reduced,
        below,
        parts: false,
        outputs: vec![id],
        ..Job::default()
    })
}

/// Outputs without reductions go into a kernel with reductions of the same space, which reads the same elements; one that reduces rows
/// before one that walks down columns.
fn join_plain(nodes: &Nodes, jobs: &mut Vec<Job>) {
    let mut at = 0;
    while at < jobs.len() {
        let plain = jobs[at].reduced == 0
            && !nodes.cone(&jobs[at].outputs, |_| false).iter().any(|id| nodes.kind(*id).is_reduction());
        let room = OUTPUTS.saturating_sub(jobs[at].outputs.len());
        let fits = |job: &&Job| {
            job.reduced > 0 && !job.parts && job.space == jobs[at].space && job.outputs.len() <= room
        };
        let rows = jobs.iter().position(|job| fits(&job) && job.below == 0);
        match rows.or_else(|| jobs.iter().position(|job| fits(&job))) {
            Some(to) if plain => {
                let moved = std::mem::take(&mut jobs[at].outputs);
                jobs[to].outputs.extend(moved);
                jobs.remove(at);
            }
            _ => at += 1,
        }
    }
}

/// Sums over all rows go into the kernel that reduces these rows and so has read their elements: the gradients of a norm's weights are
/// added up beside that of its input.
fn join_columns(nodes: &Nodes, jobs: &mut Vec<Job>, walks: &Walks<'_>) {
    let mut at = 0;
    while at < jobs.len() {
        let from = &jobs[at];
        let over_rows = from.below > 0 && from.reduced + from.below == from.space.len();
        let sums = from.outputs.iter().all(|id| matches!(nodes.kind(*id), Kind::Reduce(Reduction::Sum, _)));
        let fits = |job: &Job| {
            let inner: usize = job.space[job.space.len() - job.reduced..].iter().product();
            let reads = || job.cone(nodes, &job.outputs).iter().any(|id| from.outputs.contains(id));
            // Sums of columns that the kernel already has are complete only after it.
            let sums = || Job { outputs: job.columns(nodes), ..Job::default() };
            (job.space == from.space && job.reduced == from.below && job.below == 0 && !job.parts)
                && job.outputs.len() + from.outputs.len() <= OUTPUTS
                && (walks.columns)(job.rows(), inner)
                && !reads()
                && independent(nodes, &sums(), from)
        };
        match jobs.iter().position(fits) {
            Some(to) if over_rows && sums => {
                let moved = std::mem::take(&mut jobs[at].outputs);
                jobs[to].outputs.extend(moved);
                jobs.remove(at);
            }
            _ => at += 1,
        }
    }
}

/// The kernel for one output.
fn place(nodes: &Nodes, id: usize, walks: &Walks<'_>) -> Job {
    let shape = trimmed(nodes.shape(id));
    let plain = Job {
        space: shape.to_vec(),
        reduced: 0,
        below: 0,
        parts: false,
        outputs: vec![id],
        ..Job::default()
    };
    let stops = |at: usize| nodes.kind(at).is_reduction() || nodes.kind(at) == Kind::Stored && at != id;
    for at in nodes.cone(&[id], stops).into_iter().rev() {
        let Kind::Reduce(_, mask) = nodes.kind(at) else { continue };
        let space = trimmed(nodes.shape(nodes.all[at].args[0]));
        let reduced = mask.trailing_ones() as usize;
        if mask >> reduced != 0 || reduced > space.len() {
            continue;
        }
        let parts = (walks.few)(rows(space, reduced), space[space.len() - reduced..].iter().product());
        let fits = shape == space || shape == kept(space, reduced);
        if at == id || fits && !parts {
            return Job { space: space.to_vec(), reduced, parts, ..plain };
        }
    }
    plain
}

fn rows(space: &[usize], reduced: usize) -> usize {
    space[..space.len() - reduced].iter().product()
}

/// The sizes that are left of a space, as [`trimmed`] gives them.
pub(super) fn kept(space: &[usize], reduced: usize) -> Vec<usize> {
    let mut dims = space.to_vec();
    let outer = dims.len() - reduced;
    dims[outer..].fill(1);
    dims.drain(..dims.iter().take_while(|n| **n == 1).count());
    dims
}

impl Job {
    /// Whether reductions are complete only after the kernel, so that none of its outputs may need another.
    fn ends_late(&self) -> bool {
        self.parts || self.below > 0
    }
    /// Notes what every launch asks for.
    fn look(&mut self, nodes: &Nodes) {
        let cone = self.cone(nodes, &self.outputs);
        self.columns = self.columns(nodes).len();
        self.costly = cone.iter().any(|id| nodes.kind(*id).is_costly());
        let scalar = |kind| matches!(kind, Kind::Const(_) | Kind::Unary(..) | Kind::UnaryGrad(..));
        self.scalars =
            cone.into_iter().filter(|id| !self.reads(nodes, *id) && scalar(nodes.kind(*id))).collect();
    }
    /// Whether output `id` of a kernel that reduces rows is a sum over all of them, for each column.
    pub fn is_column(&self, nodes: &Nodes, id: usize) -> bool {
        let Kind::Reduce(_, mask) = nodes.kind(id) else { return false };
        let above = mask.trailing_zeros() as usize == self.reduced && self.outputs.contains(&id);
        above
            && self.reduced > 0
            && self.below == 0
            && trimmed(nodes.shape(nodes.all[id].args[0])) == self.space
    }
    /// The outputs that [`Job::is_column`] is true of.
    pub fn columns(&self, nodes: &Nodes) -> Vec<usize> {
        self.outputs.iter().copied().filter(|id| self.is_column(nodes, *id)).collect()
    }
    /// Whether reduction `id` over a row is computed in this kernel, or is the output of one that walks down columns.
    pub fn computes(&self, nodes: &Nodes, id: usize) -> bool {
        let Kind::Reduce(_, mask) = nodes.kind(id) else { return false };
        if self.parts || self.below > 0 {
            return self.outputs.contains(&id);
        }
        self.reduced > 0
            && mask == (1 << self.reduced) - 1
            && trimmed(nodes.shape(nodes.all[id].args[0])) == self.space
    }
    /// Whether `id` is read from memory.
    pub fn reads(&self, nodes: &Nodes, id: usize) -> bool {
        match nodes.kind(id) {
            Kind::Input(_) => true,
            Kind::Stored => !self.outputs.contains(&id),
            Kind::Reduce(..) => !self.computes(nodes, id) && !self.is_column(nodes, id),
            _ => false,
        }
    }
    /// All that the kernel computes or reads, in order.
    pub fn cone(&self, nodes: &Nodes, roots: &[usize]) -> Vec<usize> {
        nodes.cone(roots, |id| self.reads(nodes, id))
    }
    /// Whether an output has one value a row.
    pub fn is_row(&self, nodes: &Nodes, id: usize) -> bool {
        self.reduced > 0 && trimmed(nodes.shape(id)) != self.space && !self.is_column(nodes, id)
    }
    pub fn rows(&self) -> usize {
        rows(&self.space, self.reduced + self.below)
    }
}

fn leaves(nodes: &Nodes, job: &Job) -> Vec<usize> {
    let mut found = job.cone(nodes, &job.outputs);
    found.retain(|id| job.reads(nodes, *id));
    found
}
