//! Ops that wait, as one tree of several results.

use super::super::node::{Kind, Nodes, trimmed};
use super::super::{backward, run, show};
use super::term;
use crate::tape::{self, Later, Term};
use crate::tensor::{WeakTensor, is_same};
use crate::{DType, Device, Layout, Result, Tensor};
use netcl_device::deferred::Promise;
use netcl_device::driver::Access;
use netcl_device::{Buffer, WeakBuffer};
use std::collections::{HashMap, HashSet};

/// Ops in a group, and tensors that it reads, at most: kernels of more take registers that they do not have, and arguments.
const OPS: usize = 64;
const INPUTS: usize = 16;

/// The result of an op, which whoever called it holds.
struct Entry {
    buffer: WeakBuffer,
    layout: Layout,
    dtype: DType,
    node: usize,
    /// Which result it is on the tape.
    slot: Option<usize>,
    tensor: WeakTensor,
}

/// What waits on a device.
pub(super) struct Group {
    device: Device,
    layer: u32,
    nodes: Nodes,
    inputs: Vec<Tensor>,
    /// Numbers of the inputs' buffers.
    read: HashSet<u64>,
    entries: Vec<Entry>,
    /// Entries by the numbers of their buffers.
    by_buffer: HashMap<u64, usize>,
    /// Where those are on the tape that take gradients.
    later: Option<Later>,
    ops: Vec<&'static str>,
}

/// What an operand is.
enum Operand {
    /// A value that waits, and whether it is all of that: without, no gradient flows into it from here.
    Waits(usize, bool),
    /// Memory.
    There,
    /// Memory that is not written yet, seen in another way than its op left it: the op has to run first.
    View,
}

impl Group {
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            layer: tape::current_layer(),
            nodes: Nodes::default(),
            inputs: Vec::new(),
            read: HashSet::new(),
            entries: Vec::new(),
            by_buffer: HashMap::new(),
            later: None,
            ops: Vec::new(),
        }
    }

    fn operand(&self, x: &Tensor) -> Operand {
        let Some(entry) = self.by_buffer.get(&x.storage().number()).map(|at| &self.entries[*at]) else {
            return Operand::There;
        };
        let same = *x.layout() == entry.layout && x.dtype() == entry.dtype;
        // Rows that a reduction left broadcast as the tensor does, which may have lost axes.
        let alike = trimmed(self.nodes.shape(entry.node)) == trimmed(x.shape());
        let slot = self.later.as_ref().and_then(|later| later.slot_of(x));
        let own = slot.is_some() && slot == entry.slot;
        match x.requires_grad() {
            // A view, or somebody else's place on the tape over the same memory.
            _ if !same || !alike => Operand::View,
            true if !own => Operand::View,
            gradient => Operand::Waits(entry.node, gradient || entry.slot.is_none()),
        }
    }

    /// Whether an op of these inputs can wait in this group.
    pub fn takes(&self, device: &Device, inputs: &[&Tensor]) -> bool {
        let room = self.ops.len() < OPS && self.inputs.len() + inputs.len() <= INPUTS;
        let views = inputs.iter().any(|x| matches!(self.operand(x), Operand::View));
        room && !views && self.device.same(device)
    }

    /// Adds an op; its result, which is written later.
    pub fn add(&mut self, op: &'static str, term: Term, inputs: &[&Tensor]) -> Result<Tensor> {
        let (shape, dtype) = term::result(op, &term, inputs)?;
        let mut args = Vec::with_capacity(inputs.len());
        for x in inputs {
            args.push(self.argument(x)?);
        }
        let mut node = term::node(&mut self.nodes, &term, &args)?;
        let y = Tensor::empty(&self.device, shape, dtype)?;
        let gradient = tape::records(inputs) && dtype.is_float();
        if !gradient && inputs.iter().any(|x| x.requires_grad()) {
            node = self.nodes.made(Kind::Detach, &[node])?;
        }
        self.ops.push(op);
        y.storage().set_promise(Promise::Open);
        let (y, slot) = match gradient {
            true => {
                let (y, slot) = self.later.get_or_insert_with(|| Later::new("lazy")).result(&y);
                (y, Some(slot))
            }
            false => (y, None),
        };
        self.by_buffer.insert(y.storage().number(), self.entries.len());
        let (buffer, layout) = (y.storage().weak(), y.layout().clone());
        let tensor = y.weak();
        self.entries.push(Entry { buffer, layout, dtype, node, slot, tensor });
        Ok(y)
    }

    fn argument(&mut self, x: &Tensor) -> Result<usize> {
        if let Operand::Waits(node, whole) = self.operand(x) {
            return if whole { Ok(node) } else { self.nodes.made(Kind::Detach, &[node]) };
        }
        let number = match self.inputs.iter().position(|input| is_same(input, x)) {
            Some(number) => number,
            None => {
                self.read.insert(x.storage().number());
                self.inputs.push(x.clone());
                self.inputs.len() - 1
            }
        };
        Ok(self.nodes.input(number, x.shape()))
    }

    /// Whether the group has to be computed before a command that uses `buffer` so.
    pub fn meets(&self, buffer: &Buffer, access: Access) -> bool {
        let number = buffer.number();
        self.by_buffer.contains_key(&number) || access == Access::Write && self.read.contains(&number)
    }

    /// Computes what is still wanted and puts it on the tape; tree and kernels as text, if that is asked for.
    pub fn compute(self, explain: bool) -> Result<Option<String>> {
        let kept = self.entries.iter().filter_map(|entry| Some((entry, entry.buffer.upgrade()?)));
        let kept: Vec<(&Entry, Buffer)> = kept.collect();
        if kept.is_empty() {
            return Ok(None);
        }
        let roots: Vec<usize> = kept.iter().map(|(entry, _)| entry.node).collect();
        let (nodes, roots, numbers) = self.nodes.pruned(&roots);
        let inputs: Vec<&Tensor> = numbers.iter().map(|i| &self.inputs[*i]).collect();
        let plain: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
        let to = kept.iter().zip(&roots).map(|((entry, buffer), root)| {
            let layout = Layout::contiguous(nodes.shape(*root).clone());
            Tensor::from_parts(buffer.clone(), layout, entry.dtype, None)
        });
        let to: Vec<Tensor> = to.collect();
        let promised = |promise| kept.iter().for_each(|(_, buffer)| buffer.set_promise(promise));
        promised(Promise::Kept);
        let run = || run::run_into(&nodes, &self.device, (&roots, &to), &plain);
        let sources = match self.device.within((self.layer, "lazy"), run) {
            Ok(sources) => sources,
            Err(e) => {
                promised(Promise::Open);
                return Err(e.context(format!("lazy: {}", self.ops.join(", "))));
            }
        };
        promised(Promise::None);
        let shown = self.device.settings().debug.iter().any(|word| word == "fuse");
        let text =
            (explain || shown).then(|| format!("{}\n{}", show::tree(&nodes, &roots), sources.join("\n")));
        if let Some(text) = text.as_ref().filter(|_| shown) {
            tracing::info!("{}:\n{text}", self.ops.join(", "));
        }
        let results = kept.iter().zip(&roots);
        let results = results.filter_map(|((e, _), root)| Some((e.slot?, *root, e.tensor.clone())));
        let results: Vec<(usize, usize, WeakTensor)> = results.collect();
        let Some(later) = self.later.filter(|_| !results.is_empty()) else { return Ok(text) };
        later.done(&inputs, move |inputs, dys| {
            let used = results.iter().filter_map(|(slot, root, _)| Some((*root, dys.get(*slot)?.as_ref()?)));
            let given: (Vec<usize>, Vec<&Tensor>) = used.unzip();
            // Results whose own gradient somebody asked for get it from the rest of the tree too.
            let asked = results.iter().filter_map(|(_, root, x)| Some((*root, x.upgrade()?)));
            let asked: Vec<(usize, Tensor)> = asked.filter(|(_, x)| x.retains_grad()).collect();
            let nodes_asked: Vec<usize> = asked.iter().map(|(root, _)| *root).collect();
            let (grads, within) = backward(nodes, (&given.0, &given.1), inputs, &nodes_asked)?;
            for ((_, x), grad) in asked.iter().zip(within) {
                if let Some(grad) = grad {
                    tape::keep(x, grad.to_dtype(x.dtype())?.reshape(x.shape())?)?;
                }
            }
            Ok(grads)
        })?;
        Ok(text)
    }
}
