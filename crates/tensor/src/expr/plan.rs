//! Plans the kernels for a tree: one, unless its reductions use different axes or too few rows to keep a device busy.
//!
//! A kernel has a space: the shape of its elements, whose last axes may be reduced. It computes a reduction if the argument has that shape
//! and the axes match. All other reductions are computed by earlier kernels.
//!
//! Reductions over axes that are not adjacent use the library's own kernels. Reductions over different runs of axes are separate kernels,
//! and a few long rows are split into parts. The gradient of a broadcast row is a sum over all rows. It becomes part of the kernel that
//! reduces these rows, or of one that walks down the columns (`columns.rs`).

use super::node::{NodeKind, Nodes, ReductionKind, trimmed};

/// One generated kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct FusedKernel {
    /// Sizes of the space, without leading ones.
    pub space: Vec<usize>,
    /// Number of reduced axes.
    pub reduced: usize,
    /// Number of axes after the reduced ones. If there are any, the kernel walks down columns: its outputs are reductions, and elementwise
    /// values that do not need a reduction.
    pub below: usize,
    /// Rows are split into parts. The outputs are partial reductions, which another launch combines.
    pub parts: bool,
    pub outputs: Vec<usize>,
    /// Values read from memory: inputs, and results of earlier kernels.
    pub leaves: Vec<usize>,
    /// Number of outputs for which [`FusedKernel::is_column`] is true.
    pub columns: usize,
    /// The nodes that are or have scalars.
    pub scalars: Vec<usize>,
    /// Whether the kernel contains a costly function.
    pub costly: bool,
}

#[derive(Clone, Debug)]
pub(super) enum PlanStep {
    Fused(FusedKernel),
    /// A reduction by the library's own kernels: over axes that are not adjacent, or with few columns.
    Library(usize),
}

/// Maximum number of results of one kernel.
const OUTPUTS: usize = 16;

/// Minimum number of columns for a kernel that walks down columns.
const COLUMNS: usize = 16;

/// Predicates of a device for `(rows, elements per row)`.
pub(super) struct Walks<'a> {
    /// Whether there are so few rows that they are split into parts.
    pub few: &'a dyn Fn(usize, usize) -> bool,
    /// Whether a kernel that reduces rows can also sum their columns. This requires many rows per work-group, and that each work-item has
    /// the same columns of all of them.
    pub columns: &'a dyn Fn(usize, usize) -> bool,
}

/// Returns the steps that compute `roots`, in order.
pub(super) fn plan(nodes: &Nodes, roots: &[usize], walks: &Walks<'_>) -> Vec<PlanStep> {
    let mut levels = Vec::new();
    let mut wanted = roots.to_vec();
    let mut moved = Vec::new();
    while !wanted.is_empty() {
        wanted.sort_unstable();
        wanted.dedup();
        let (level, mut next) = level(nodes, &wanted, walks, &mut moved);
        next.retain(|id| !matches!(nodes.kind(*id), NodeKind::Input(_)));
        levels.push(level);
        wanted = next;
    }
    let mut done = vec![false; nodes.all.len()];
    let mut steps = Vec::new();
    for mut step in levels.into_iter().rev().flatten() {
        let made = match &mut step {
            PlanStep::Library(id) => std::slice::from_ref(id),
            PlanStep::Fused(job) => {
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

/// Plans the steps that compute `wanted`, and the values that must be computed before.
fn level(
    nodes: &Nodes,
    wanted: &[usize],
    walks: &Walks<'_>,
    moved: &mut Vec<usize>,
) -> (Vec<PlanStep>, Vec<usize>) {
    let (mut jobs, mut steps, mut next): (Vec<FusedKernel>, Vec<PlanStep>, Vec<usize>) = Default::default();
    for id in wanted {
        if let NodeKind::Reduce(_, mask) = nodes.kind(*id)
            && !mask.wrapping_add(1).is_power_of_two()
        {
            match columns(nodes, *id) {
                Some(job) => add(nodes, &mut jobs, job),
                None => {
                    next.push(nodes.all[*id].args[0]);
                    steps.push(PlanStep::Library(*id));
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
        steps.push(PlanStep::Fused(job));
    }
    (steps, next)
}

/// Moves kernels forward that compute an inner reduction that others of the level read. They write it once, so that it is not computed
/// twice. Returns these outputs.
fn first_those_that_give(nodes: &Nodes, jobs: &mut Vec<FusedKernel>, moved: &mut Vec<usize>) -> Vec<usize> {
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

/// Adds an output to a kernel with the same elements, or as a separate kernel.
fn add(nodes: &Nodes, jobs: &mut Vec<FusedKernel>, job: FusedKernel) {
    let alike = |other: &&mut FusedKernel| {
        let rows = (other.reduced, other.below, other.parts) == (job.reduced, job.below, job.parts);
        let room = other.outputs.len() < OUTPUTS;
        other.space == job.space && rows && room && (!job.ends_late() || independent(nodes, other, &job))
    };
    match jobs.iter_mut().find(alike) {
        Some(other) => other.outputs.extend(job.outputs),
        None => jobs.push(job),
    }
}

/// Returns whether neither kernel's outputs depend on the other's.
fn independent(nodes: &Nodes, a: &FusedKernel, b: &FusedKernel) -> bool {
    let needs = |job: &FusedKernel, other: &FusedKernel| {
        let cone = nodes.cone(&job.outputs, |_| false);
        other.outputs.iter().any(|id| cone.binary_search(id).is_ok())
    };
    !needs(a, b) && !needs(b, a)
}

/// Builds the kernel for a reduction over axes that are followed by others.
fn columns(nodes: &Nodes, id: usize) -> Option<FusedKernel> {
    let NodeKind::Reduce(_, mask) = nodes.kind(id) else { return None };
    let space = trimmed(nodes.shape(nodes.all[id].args[0]));
    let (below, reduced) = (mask.trailing_zeros() as usize, mask.count_ones() as usize);
    let side_by_side = (mask >> below).wrapping_add(1).is_power_of_two() && below + reduced <= space.len();
    let wide = side_by_side && space[space.len() - below..].iter().product::<usize>() >= COLUMNS;
    wide.then(|| FusedKernel {
        space: space.to_vec(),
        reduced,
        below,
        parts: false,
        outputs: vec![id],
        ..FusedKernel::default()
    })
}

/// Merges outputs without reductions into a kernel with reductions over the same space, which reads the same elements. Kernels that reduce
/// rows are preferred to those that walk down columns.
fn join_plain(nodes: &Nodes, jobs: &mut Vec<FusedKernel>) {
    let mut at = 0;
    while at < jobs.len() {
        let plain = jobs[at].reduced == 0
            && !nodes.cone(&jobs[at].outputs, |_| false).iter().any(|id| nodes.kind(*id).is_reduction());
        let room = OUTPUTS.saturating_sub(jobs[at].outputs.len());
        let fits = |job: &&FusedKernel| {
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

/// Merges sums over all rows into the kernel that reduces these rows, because it already reads their elements. Thus a norm computes the
/// gradients of its weights and of its input in one kernel.
fn join_columns(nodes: &Nodes, jobs: &mut Vec<FusedKernel>, walks: &Walks<'_>) {
    let mut at = 0;
    while at < jobs.len() {
        let from = &jobs[at];
        let over_rows = from.below > 0 && from.reduced + from.below == from.space.len();
        let sums =
            from.outputs.iter().all(|id| matches!(nodes.kind(*id), NodeKind::Reduce(ReductionKind::Sum, _)));
        let fits = |job: &FusedKernel| {
            let inner: usize = job.space[job.space.len() - job.reduced..].iter().product();
            let reads = || job.cone(nodes, &job.outputs).iter().any(|id| from.outputs.contains(id));
            // A kernel's existing column sums are complete only after the kernel.
            let sums = || FusedKernel { outputs: job.columns(nodes), ..FusedKernel::default() };
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

/// Builds the kernel for one output.
fn place(nodes: &Nodes, id: usize, walks: &Walks<'_>) -> FusedKernel {
    let shape = trimmed(nodes.shape(id));
    let plain = FusedKernel {
        space: shape.to_vec(),
        reduced: 0,
        below: 0,
        parts: false,
        outputs: vec![id],
        ..FusedKernel::default()
    };
    let stops = |at: usize| nodes.kind(at).is_reduction() || nodes.kind(at) == NodeKind::Stored && at != id;
    for at in nodes.cone(&[id], stops).into_iter().rev() {
        let NodeKind::Reduce(_, mask) = nodes.kind(at) else { continue };
        let space = trimmed(nodes.shape(nodes.all[at].args[0]));
        let reduced = mask.trailing_ones() as usize;
        if mask >> reduced != 0 || reduced > space.len() {
            continue;
        }
        let parts = (walks.few)(rows(space, reduced), space[space.len() - reduced..].iter().product());
        let fits = shape == space || shape == kept(space, reduced);
        if at == id || fits && !parts {
            return FusedKernel { space: space.to_vec(), reduced, parts, ..plain };
        }
    }
    plain
}

fn rows(space: &[usize], reduced: usize) -> usize {
    space[..space.len() - reduced].iter().product()
}

/// Returns the remaining sizes of a space, in the form of [`trimmed`].
pub(super) fn kept(space: &[usize], reduced: usize) -> Vec<usize> {
    let mut dims = space.to_vec();
    let outer = dims.len() - reduced;
    dims[outer..].fill(1);
    dims.drain(..dims.iter().take_while(|n| **n == 1).count());
    dims
}

impl FusedKernel {
    /// Whether reductions are complete only after the kernel, so that outputs must not depend on each other.
    fn ends_late(&self) -> bool {
        self.parts || self.below > 0
    }
    /// Caches properties that every launch needs.
    fn look(&mut self, nodes: &Nodes) {
        let cone = self.cone(nodes, &self.outputs);
        self.columns = self.columns(nodes).len();
        self.costly = cone.iter().any(|id| nodes.kind(*id).is_costly());
        let scalar =
            |kind| matches!(kind, NodeKind::Const(_) | NodeKind::Unary(..) | NodeKind::UnaryGrad(..));
        self.scalars =
            cone.into_iter().filter(|id| !self.reads(nodes, *id) && scalar(nodes.kind(*id))).collect();
    }
    /// Whether output `id` of a kernel that reduces rows is a sum over all rows, one per column.
    pub fn is_column(&self, nodes: &Nodes, id: usize) -> bool {
        let NodeKind::Reduce(_, mask) = nodes.kind(id) else { return false };
        let above = mask.trailing_zeros() as usize == self.reduced && self.outputs.contains(&id);
        above
            && self.reduced > 0
            && self.below == 0
            && trimmed(nodes.shape(nodes.all[id].args[0])) == self.space
    }
    /// Returns the outputs for which [`FusedKernel::is_column`] is true.
    pub fn columns(&self, nodes: &Nodes) -> Vec<usize> {
        self.outputs.iter().copied().filter(|id| self.is_column(nodes, *id)).collect()
    }
    /// Whether reduction `id` over a row is computed in this kernel, or is the output of a kernel that walks down columns.
    pub fn computes(&self, nodes: &Nodes, id: usize) -> bool {
        let NodeKind::Reduce(_, mask) = nodes.kind(id) else { return false };
        if self.parts || self.below > 0 {
            return self.outputs.contains(&id);
        }
        self.reduced > 0
            && mask == (1 << self.reduced) - 1
            && trimmed(nodes.shape(nodes.all[id].args[0])) == self.space
    }
    /// Returns whether `id` is read from memory.
    pub fn reads(&self, nodes: &Nodes, id: usize) -> bool {
        match nodes.kind(id) {
            NodeKind::Input(_) => true,
            NodeKind::Stored => !self.outputs.contains(&id),
            NodeKind::Reduce(..) => !self.computes(nodes, id) && !self.is_column(nodes, id),
            _ => false,
        }
    }
    /// Returns all nodes that the kernel computes or reads, in order.
    pub fn cone(&self, nodes: &Nodes, roots: &[usize]) -> Vec<usize> {
        nodes.cone(roots, |id| self.reads(nodes, id))
    }
    /// Whether an output has one value per row.
    pub fn is_row(&self, nodes: &Nodes, id: usize) -> bool {
        self.reduced > 0 && trimmed(nodes.shape(id)) != self.space && !self.is_column(nodes, id)
    }
    pub fn rows(&self) -> usize {
        rows(&self.space, self.reduced + self.below)
    }
}

fn leaves(nodes: &Nodes, job: &FusedKernel) -> Vec<usize> {
    let mut found = job.cone(nodes, &job.outputs);
    found.retain(|id| job.reads(nodes, *id));
    found
}
