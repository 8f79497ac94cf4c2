//! Runs a graph of operations: one call after the other, or by replaying captured commands.
//!
//! Operations are first called by name in a dry run, which checks every shape before any allocation.

use super::spec::{GraphInput, GraphNode, Spec, ValueType, WeightInfo};
use super::weights::GraphWeights;
use crate::graph::{BufferPlan, Graph, Trace};
use crate::ops::find;
use crate::{Device, Error, Lazy, Result, Tensor, no_grad, unfused};
use netcl_kernel::checked_only;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls all operations in order, for `rows` rows. Values that are no longer needed are freed.
///
/// # Errors
/// Errors of an operation, with its number and layer; `Format` if a result does not match the graph.
pub(super) fn evaluate(
    spec: &Spec,
    weights: &[Tensor],
    inputs: &[Tensor],
    rows: usize,
) -> Result<Vec<Tensor>> {
    let last = spec.last_uses();
    let given = inputs.iter().chain(weights).map(|t| Some(t.detach()));
    let mut values: Vec<Option<Tensor>> = given.collect();
    for (at, node) in spec.nodes.iter().enumerate() {
        let results = no_grad(|| call(spec, at, &values, rows)).map_err(|e| e.context(spec.called(at)))?;
        for made in &node.results {
            let y = results.get(made.of).ok_or_else(|| {
                Error::format(format!("{}: result {} of {}", spec.called(at), made.of, results.len()))
            })?;
            agrees(&made.form, y, rows).map_err(|e| e.context(spec.called(at)))?;
            values.push(Some(y.clone()));
        }
        drop(results);
        node.inputs.iter().flatten().filter(|id| last[**id] == at).for_each(|id| values[*id] = None);
    }
    let missing = || Error::internal("a result of a graph of operations is missing");
    spec.outputs.iter().map(|id| values.get(*id).cloned().flatten().ok_or_else(missing)).collect()
}

fn call(spec: &Spec, at: usize, values: &[Option<Tensor>], rows: usize) -> Result<Vec<Tensor>> {
    let node = &spec.nodes[at];
    let inputs: Vec<Option<&Tensor>> =
        node.inputs.iter().map(|id| id.and_then(|id| values.get(id)?.as_ref())).collect();
    let attributes = node.attributes.iter().map(|(name, setting)| Ok((name.as_str(), setting.at(rows)?)));
    let attributes = attributes.collect::<Result<Vec<_>>>()?;
    find(&node.op)?.invoke(&inputs, &attributes)
}

fn agrees(form: &ValueType, y: &Tensor, rows: usize) -> Result<()> {
    if form.dims(rows)? == y.dims() && form.dtype == y.dtype() {
        return Ok(());
    }
    Err(Error::format(format!("the result is {} {:?}, expected {form} for {rows} rows", y.dtype(), y.dims())))
}

/// A graph for one number of rows, ready for replay.
struct Ready {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    graph: Graph,
    /// Weights that the graph reads.
    _weights: Vec<Tensor>,
}

/// Captured graphs of a device, by the number of rows.
#[derive(Default)]
pub(super) struct Runner {
    ready: Mutex<BTreeMap<usize, Arc<Ready>>>,
}

impl Runner {
    /// Computes the results for checked inputs: `given` rows, computed as `rows` rows.
    pub fn run(
        &self,
        device: &Device,
        (spec, weights): (&Spec, &GraphWeights),
        inputs: &[Tensor],
        (given, rows): (usize, usize),
    ) -> Result<Vec<Tensor>> {
        if device.debug().needs_each() {
            return stepwise(device, (spec, weights), inputs, (given, rows));
        }
        // Locked until everything is enqueued, because the inputs and results of all runs share memory.
        let mut all = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = match all.get(&rows) {
            Some(ready) => Arc::clone(ready),
            None => {
                let ready = Arc::new(prepare(device, spec, &weights.all(device)?, rows)?);
                all.insert(rows, Arc::clone(&ready));
                ready
            }
        };
        for (to, from) in ready.inputs.iter().zip(inputs) {
            let from = no_grad(|| from.detach().contiguous())?;
            let size = from.dtype().size();
            device.copy(from.storage(), from.layout().offset * size, to.storage(), 0, from.count() * size)?;
        }
        ready.graph.replay()?;
        let each = ready.outputs.iter().zip(&spec.outputs);
        let forms = spec.forms();
        let out = each.map(|(y, id)| {
            let cut = if forms[*id].has_rows() { given } else { rows };
            let to = Tensor::empty(device, forms[*id].dims(cut)?, y.dtype())?;
            let size = y.dtype().size();
            device.copy(y.storage(), y.layout().offset * size, to.storage(), 0, to.count() * size)?;
            Ok(to)
        });
        out.collect()
    }
}

/// Runs operation by operation, for checks that replays do not perform.
fn stepwise(
    device: &Device,
    (spec, weights): (&Spec, &GraphWeights),
    inputs: &[Tensor],
    (given, rows): (usize, usize),
) -> Result<Vec<Tensor>> {
    let places = places(device, spec, rows)?;
    for (to, from) in places.iter().zip(inputs) {
        let first = no_grad(|| to.slice(0, 0..from.dims().first().copied().unwrap_or(0)));
        let to = if to.shape() == from.shape() { to.clone() } else { first? };
        to.assign(from)?;
    }
    let outputs = evaluate(spec, &weights.all(device)?, &places, rows)?;
    let forms = spec.forms();
    let cut = outputs.iter().zip(&spec.outputs).map(|(y, id)| match forms[*id].has_rows() {
        true => no_grad(|| y.slice(0, 0..forms[*id].dims(given)?[0])),
        false => Ok(y.clone()),
    });
    cut.collect()
}

/// Plans a graph's memory for `rows` rows. Compiles its kernels, but computes nothing.
pub(super) fn plan(device: &Device, spec: &Spec, weights: &[Tensor], rows: usize) -> Result<BufferPlan> {
    let inputs = places(device, spec, rows)?;
    let trace = Trace::dry_run(device, || evaluate(spec, weights, &inputs, rows))?;
    BufferPlan::new(device, &trace)
}

/// Allocates zeroed memory for the inputs.
fn places(device: &Device, spec: &Spec, rows: usize) -> Result<Vec<Tensor>> {
    let _tag = device.tag("graph");
    let place = |input: &GraphInput| Tensor::zeros(device, input.form.dims(rows)?, input.form.dtype);
    spec.inputs.iter().map(place).collect()
}

fn prepare(device: &Device, spec: &Spec, weights: &[Tensor], rows: usize) -> Result<Ready> {
    let inputs = places(device, spec, rows)?;
    // All shapes are checked before anything is allocated.
    unfused(|| checked_only(|| Trace::dry_run(device, || evaluate(spec, weights, &inputs, rows)).map(drop)))?;
    let (spec, weights) = folded(spec, weights, rows, !device.settings().no_fuse)?;
    let step = || -> Result<Vec<Tensor>> {
        let outputs = evaluate(&spec, &weights, &inputs, rows)?;
        outputs.iter().map(|y| no_grad(|| y.contiguous())).collect()
    };
    let trace = Trace::dry_run(device, step)?;
    let plan = BufferPlan::new(device, &trace)?;
    let (graph, outputs) = Graph::planned(device, &plan, step)?;
    Ok(Ready { inputs, outputs, graph, _weights: weights })
}

/// Computes all values that depend only on weights, and returns the graph with these values as additional weights.
fn folded(spec: &Spec, weights: &[Tensor], rows: usize, fuse: bool) -> Result<(Spec, Vec<Tensor>)> {
    let count = spec.inputs.len();
    let mut values: Vec<Option<Tensor>> = vec![None; count];
    values.extend(weights.iter().map(|w| Some(w.detach())));
    let (mut constant, last) = ([vec![false; count], vec![true; weights.len()]].concat(), spec.last_uses());
    let mut out = Spec { nodes: Vec::new(), ..spec.clone() };
    let mut rest = Vec::new();
    // Constant chains are computed on the host: they are small, and compiling a kernel takes longer.
    let scope = fuse.then(Lazy::on_host);
    for (at, node) in spec.nodes.iter().enumerate() {
        let first = values.len();
        let is_constant = node.inputs.iter().flatten().all(|id| constant[*id])
            && !node.results.iter().any(|made| made.form.has_rows());
        constant.extend(node.results.iter().map(|_| is_constant));
        if !is_constant {
            values.extend(node.results.iter().map(|_| None));
            rest.push((first, at));
            continue;
        }
        let results = no_grad(|| call(spec, at, &values, rows)).map_err(|e| e.context(spec.called(at)))?;
        values.extend(node.results.iter().map(|made| results.get(made.of).cloned()));
        drop(results);
        // Intermediate constants are not kept as weights.
        let made = |id: &usize| *id >= spec.first_made() && last[*id] == at;
        node.inputs.iter().flatten().copied().filter(made).for_each(|id| values[id] = None);
    }
    scope.map(Lazy::finish).transpose()?;
    let mut all = weights.to_vec();
    all.extend(values.iter().skip(spec.first_made()).flatten().cloned());
    // New numbers of the values: inputs, weights and computed constants, then the rest.
    let mut numbers: Vec<usize> = (0..spec.first_made()).collect();
    let mut next = spec.first_made();
    for value in values.iter().skip(spec.first_made()) {
        numbers.push(if value.is_some() { next } else { 0 });
        next += usize::from(value.is_some());
    }
    for (first, at) in rest {
        for made in 0..spec.nodes[at].results.len() {
            numbers[first + made] = next;
            next += 1;
        }
        let node = &spec.nodes[at];
        let inputs = node.inputs.iter().map(|id| id.map(|id| numbers[id])).collect();
        out.nodes.push(GraphNode { inputs, ..node.clone() });
    }
    out.weights = all
        .iter()
        .map(|w| WeightInfo {
            name: String::new(),
            dims: w.dims().to_vec(),
            dtype: w.dtype(),
            hash: String::new(),
        })
        .collect();
    out.outputs = spec.outputs.iter().map(|id| numbers[*id]).collect();
    Ok((out, all))
}
