//! Records what a function computes as a graph of operations.
//!
//! The function runs. Every operation is recorded as a call by name, and the device's commands are observed. A function is rejected if it
//! could give another result elsewhere: a kernel outside of operations that reads data derived from the inputs, a result that is read on
//! the host, memory that is overwritten, or an operation that gives another result when called by its name.

use super::spec::{GraphInput, GraphNode, KernelUse, NodeResult, Setting, Spec, ValueType, WeightInfo};
use crate::graph::Trace;
use crate::ops::observe::{self, Called};
use crate::ops::{copied, find};
use crate::shape::Layout;
use crate::{DType, Device, Error, Result, Tensor, no_grad, unfused};
use netcl_device::record::{Command, Mode, Recording};
use std::collections::{HashMap, HashSet};

/// A function to record: tensors in, tensors out.
pub(super) type Function<'a> = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a;

/// A graph, with the weights that the function used.
pub(super) struct Captured {
    pub spec: Spec,
    pub weights: Vec<Tensor>,
}

/// Identifies memory and the view of it.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ViewKey(u64, usize, Vec<usize>, Vec<usize>, usize, DType);

impl ViewKey {
    pub fn of(t: &Tensor) -> Self {
        let Layout { shape, strides, offset } = t.layout();
        // Strides of axes with at most one element are irrelevant.
        let told = |(size, stride): (&usize, &usize)| if *size > 1 { *stride } else { 0 };
        let strides = shape.dims().iter().zip(strides).map(told).collect();
        let storage = t.storage();
        Self(storage.number(), storage.start(), shape.dims().to_vec(), strides, *offset, t.dtype())
    }
}

/// A value before it has its final number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Input(usize),
    Weight(usize),
    /// Index of the operation and of its result.
    Made(usize, usize),
}

/// Records `f` with `inputs`, given as names and contents.
pub(super) fn capture(device: &Device, inputs: &[(&str, &Tensor)], f: &Function<'_>) -> Result<Captured> {
    let bytes = inputs.iter().map(|(_, x)| x.to_bytes()).collect::<Result<Vec<_>>>()?;
    let upload = || -> Result<Vec<Tensor>> {
        let each = inputs.iter().zip(&bytes);
        each.map(|((_, x), bytes)| Tensor::from_bytes(device, x.shape(), bytes, x.dtype())).collect()
    };
    let run = |xs: &[Tensor]| no_grad(|| f(xs));
    // First, kernels are compiled and verified, and values that are cached between calls are created.
    let given = upload()?;
    drop(run(&given)?);
    unfused(|| Trace::dry_run(device, || run(&given)))
        .map_err(|e| e.context("cannot record a graph of operations"))?;
    drop(given);
    let session = device.record(Mode::Watch)?;
    let xs = upload()?;
    let (outputs, called) = observe::watch(|| run(&xs));
    let recording = session.stop()?;
    let outputs = outputs?;
    check_commands(&recording, &called, xs.len())?;
    let mut noting = Noting::new(&xs);
    called.iter().enumerate().try_for_each(|(at, called)| noting.add(at, called, &recording))?;
    noting.check_versions(&called)?;
    noting.finish(device, inputs, &xs, &outputs)
}

/// Rejects commands outside of operations that use data derived from the inputs. The inputs are the first `inputs` allocations.
fn check_commands(recording: &Recording, called: &[Called], inputs: usize) -> Result<()> {
    let mut own = vec![false; recording.commands.len()];
    let count = own.len();
    for called in called {
        own[called.commands.start.min(count)..called.commands.end.min(count)].fill(true);
    }
    let mut depend: HashSet<usize> = (0..inputs).collect();
    for (command, own) in recording.commands.iter().zip(&own) {
        if *own {
            depend.extend(command.touched().iter().filter_map(|touched| touched.allocation));
        }
    }
    for (command, own) in recording.commands.iter().zip(&own) {
        let runs = matches!(command, Command::Launch { .. } | Command::Copy { .. });
        let touches = command.touched().iter().any(|t| t.allocation.is_some_and(|i| depend.contains(&i)));
        if runs && !own && touches {
            return Err(Error::unsupported(format!(
                "the kernel {} runs outside of an operation that can be called by name, on data that depends on the inputs: \
                 a graph of operations cannot contain it",
                command.name()
            )));
        }
    }
    Ok(())
}

struct Noting {
    values: HashMap<ViewKey, Value>,
    /// Buffers with data derived from the inputs.
    depend: HashSet<u64>,
    weights: Vec<Tensor>,
    nodes: Vec<(GraphNode, Vec<Option<Value>>)>,
}

impl Noting {
    fn new(xs: &[Tensor]) -> Self {
        let values = xs.iter().enumerate().map(|(i, x)| (ViewKey::of(x), Value::Input(i))).collect();
        let depend = xs.iter().map(|x| x.storage().number()).collect();
        Self { values, depend, weights: Vec::new(), nodes: Vec::new() }
    }

    /// Rejects memory that changed after an operation read or wrote it.
    fn check_versions(&self, called: &[Called]) -> Result<()> {
        let mut all = called.iter().flat_map(|called| &called.versions);
        let Some((t, _)) = all.find(|(t, version)| version.is_stale_in(t.storage())) else { return Ok(()) };
        let what = match (self.values.get(&ViewKey::of(t)), t.name()) {
            (_, Some(name)) => name.to_owned(),
            (Some(Value::Input(i)), _) => format!("input {i}"),
            (Some(Value::Made(at, _)), _) => format!("the result of {}", self.nodes[*at].0.op),
            _ => "a constant".into(),
        };
        Err(Error::unsupported(format!(
            "{what} is overwritten within the function: a graph of operations cannot contain it; record the model in evaluation mode, \
             not in training mode"
        )))
    }

    fn given(&mut self, called: &Called, x: &Tensor) -> Result<Value> {
        if let Some(value) = self.values.get(&ViewKey::of(x)) {
            return Ok(*value);
        }
        if self.depend.contains(&x.storage().number()) {
            return Err(Error::unsupported(format!(
                "{} has a view of shape {} as an input that no operation created: a graph of operations cannot contain it; \
                 use slice, reshape or permute",
                called.name,
                x.shape()
            )));
        }
        let value = Value::Weight(self.weights.len());
        self.values.insert(ViewKey::of(x), value);
        self.weights.push(x.clone());
        Ok(value)
    }

    fn add(&mut self, at: usize, called: &Called, recording: &Recording) -> Result<()> {
        let inputs = called
            .inputs
            .iter()
            .map(|x| x.as_ref().map(|x| self.given(called, x)).transpose())
            .collect::<Result<Vec<_>>>()?;
        let depends = called.inputs.iter().flatten().any(|x| self.depend.contains(&x.storage().number()));
        let taken = by_name(called)?;
        let mut results = Vec::with_capacity(taken.len());
        for (i, (y, of)) in called.results.iter().zip(taken).enumerate() {
            self.values.insert(ViewKey::of(y), Value::Made(at, i));
            if depends {
                self.depend.insert(y.storage().number());
            }
            results.push(NodeResult { of, form: ValueType::fixed(y.dims(), y.dtype()) });
        }
        let mut attributes: Vec<(String, Setting)> = called
            .attributes
            .iter()
            .map(|(name, v)| ((*name).to_owned(), Setting::Plain(v.clone())))
            .collect();
        // Attributes are sorted as in a file.
        attributes.sort_by(|a, b| a.0.cmp(&b.0));
        let kernels = kernels(called, recording);
        let layer = layer(called);
        let node =
            GraphNode { op: called.name.into(), layer, inputs: Vec::new(), attributes, results, kernels };
        self.nodes.push((node, inputs));
        Ok(())
    }

    fn finish(
        self,
        device: &Device,
        inputs: &[(&str, &Tensor)],
        xs: &[Tensor],
        outputs: &[Tensor],
    ) -> Result<Captured> {
        let ends = outputs.iter().enumerate().map(|(i, y)| match self.values.get(&ViewKey::of(y)) {
            Some(value) => Ok(*value),
            None => Err(Error::unsupported(format!(
                "result {i} of the function, {y:?}, does not come from an operation that can be called by name"
            ))),
        });
        let ends = ends.collect::<Result<Vec<_>>>()?;
        let (nodes, weights) = live(&self.nodes, &ends);
        let mut numbers: HashMap<(usize, usize), usize> = HashMap::new();
        let mut next = inputs.len() + weights.len();
        for at in &nodes {
            for i in 0..self.nodes[*at].0.results.len() {
                numbers.insert((*at, i), next);
                next += 1;
            }
        }
        let number = |value: &Value| match value {
            Value::Input(i) => *i,
            Value::Weight(w) => inputs.len() + weights.iter().position(|known| known == w).unwrap_or(0),
            Value::Made(at, i) => numbers.get(&(*at, *i)).copied().unwrap_or(0),
        };
        let numbered = |at: &usize| {
            let (node, given) = &self.nodes[*at];
            GraphNode {
                inputs: given.iter().map(|value| value.as_ref().map(number)).collect(),
                ..node.clone()
            }
        };
        let named = |((name, _), x): (&(&str, &Tensor), &Tensor)| GraphInput {
            name: (*name).into(),
            form: ValueType::fixed(x.dims(), x.dtype()),
        };
        let kept: Vec<&Tensor> = weights.iter().map(|w| &self.weights[*w]).collect();
        let spec = Spec {
            any_rows: false,
            rows: xs.first().and_then(|x| x.dims().first().copied()).unwrap_or(1),
            device: device.capabilities().id.clone(),
            inputs: inputs.iter().zip(xs).map(named).collect(),
            weights: named_weights(&kept),
            nodes: nodes.iter().map(numbered).collect(),
            outputs: ends.iter().map(number).collect(),
        };
        // The function's own tensors may change afterwards.
        let weights = kept.into_iter().map(|w| no_grad(|| copied(&w.detach()))).collect::<Result<_>>()?;
        Ok(Captured { spec, weights })
    }
}

/// Returns the operations and weights that `ends` depend on, in order.
fn live(nodes: &[(GraphNode, Vec<Option<Value>>)], ends: &[Value]) -> (Vec<usize>, Vec<usize>) {
    let (mut used, mut weights) = (vec![false; nodes.len()], HashSet::new());
    let mut open: Vec<Value> = ends.to_vec();
    while let Some(value) = open.pop() {
        match value {
            Value::Input(_) => {}
            Value::Weight(w) => {
                weights.insert(w);
            }
            Value::Made(at, _) if used[at] => {}
            Value::Made(at, _) => {
                used[at] = true;
                open.extend(nodes[at].1.iter().flatten());
            }
        }
    }
    let mut weights: Vec<usize> = weights.into_iter().collect();
    weights.sort_unstable();
    (used.iter().enumerate().filter(|(_, used)| **used).map(|(at, _)| at).collect(), weights)
}

/// Returns unique names for the weights.
fn named_weights(weights: &[&Tensor]) -> Vec<WeightInfo> {
    let mut taken: HashSet<String> = HashSet::new();
    let mut out = Vec::with_capacity(weights.len());
    for (i, weight) in weights.iter().enumerate() {
        let base = weight.name().filter(|n| !n.is_empty()).map_or(format!("constant.{i}"), str::to_owned);
        let mut name = base.clone();
        let mut count = 1;
        while !taken.insert(name.clone()) {
            count += 1;
            name = format!("{base}.{count}");
        }
        let (dims, dtype) = (weight.dims().to_vec(), weight.dtype());
        out.push(WeightInfo { name, dims, dtype, hash: String::new() });
    }
    out
}

/// Calls the operation by its name. Returns, for each result of the operation, the index of the call's result.
pub(super) fn by_name(called: &Called) -> Result<Vec<usize>> {
    let name = called.name;
    let inputs: Vec<Option<&Tensor>> = called.inputs.iter().map(Option::as_ref).collect();
    let again = no_grad(|| find(name)?.invoke(&inputs, &called.attributes))
        .map_err(|e| e.context(format!("a graph of operations cannot contain {name}")))?;
    let mut left = again.iter().enumerate();
    let mut taken = Vec::with_capacity(called.results.len());
    for y in &called.results {
        let found = left.by_ref().find_map(|(i, other)| match same(y, other) {
            Ok(true) => Some(Ok(i)),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        });
        match found.transpose()? {
            Some(i) => taken.push(i),
            None => {
                return Err(Error::unsupported(format!(
                    "a graph of operations cannot contain {name}: a call by its name does not give its result of shape {}",
                    y.shape()
                )));
            }
        }
    }
    Ok(taken)
}

fn same(y: &Tensor, other: &Tensor) -> Result<bool> {
    if (y.shape(), y.dtype()) != (other.shape(), other.dtype()) {
        return Ok(false);
    }
    Ok(ViewKey::of(y) == ViewKey::of(other) || y.to_bytes()? == other.to_bytes()?)
}

/// Returns the current layer, or the common prefix of the parameters' names.
fn layer(called: &Called) -> String {
    if !called.layer.is_empty() {
        return called.layer.clone();
    }
    let mut names = called.inputs.iter().flatten().filter_map(|x| x.name()?.rsplit_once('.')).map(|n| n.0);
    let Some(first) = names.next() else { return String::new() };
    if names.all(|name| name == first) { first.to_owned() } else { String::new() }
}

/// Returns the launches of an operation.
fn kernels(called: &Called, recording: &Recording) -> Vec<KernelUse> {
    let told: HashMap<usize, &str> =
        recording.described.iter().map(|(at, text)| (*at, text.as_str())).collect();
    let range = called.commands.start..called.commands.end.min(recording.commands.len());
    let launches = range.filter_map(|at| match &recording.commands[at] {
        Command::Launch { range, label, .. } => Some(KernelUse {
            variant: label.variant.into(),
            name: label.name.into(),
            defines: told.get(&at).copied().unwrap_or_default().into(),
            global: range.global,
            local: range.local,
        }),
        _ => None,
    });
    launches.collect()
}
