//! Ops that wait, as one tree of several results.

use super::super::node::{Kind, Nodes, trimmed};
use super::{images, term};
use crate::tape::{self, Later, Term};
use crate::tensor::{WeakTensor, is_same};
use crate::{DType, Device, Layout, Result, Shape, Tensor};
use netcl_device::deferred::Promise;
use netcl_device::driver::Access;
use netcl_device::{Buffer, WeakBuffer};
use std::collections::{HashMap, HashSet};

/// Ops in a group, and tensors that it reads, at most: kernels of more take registers that they do not have, and arguments.
const OPS: usize = 64;
const INPUTS: usize = 16;

/// The result of an op, which whoever called it holds.
pub(super) struct Entry {
    pub buffer: WeakBuffer,
    layout: Layout,
    pub dtype: DType,
    pub node: usize,
    /// Which result it is on the tape.
    pub slot: Option<usize>,
    pub tensor: WeakTensor,
}

/// A product that waits: an input of the tree that is not there yet.
pub(super) struct Product {
    pub op: &'static str,
    pub term: Term,
    /// x, w and perhaps a bias.
    pub of: Vec<Tensor>,
    /// Which input it is.
    pub input: usize,
    node: usize,
    pub later: Option<Later>,
}

/// What waits on a device.
pub(super) struct Group {
    pub device: Device,
    pub layer: u32,
    /// Whether tensors are images `(N, C, H, W)` and nodes `(N, H, W, C)`.
    images: bool,
    pub nodes: Nodes,
    pub inputs: Vec<Tensor>,
    pub products: Vec<Product>,
    /// Numbers of the inputs' buffers.
    read: HashSet<u64>,
    pub entries: Vec<Entry>,
    /// Entries by the numbers of their buffers.
    by_buffer: HashMap<u64, usize>,
    /// Where those are on the tape that take gradients.
    pub later: Option<Later>,
    pub ops: Vec<&'static str>,
}

/// Whether an element-wise op's result is an image whose channels are neighbours, as one of its inputs is.
fn is_of_images(term: &Term, inputs: &[&Tensor]) -> bool {
    if !term.is_elementwise() || !inputs.iter().any(|x| images::is_image(x.layout())) {
        return false;
    }
    broadcast(inputs)
        .is_ok_and(|shape| inputs.iter().any(|x| *x.shape() == shape && images::is_image(x.layout())))
}

fn broadcast(inputs: &[&Tensor]) -> Result<Shape> {
    inputs.iter().try_fold(Shape::default(), |shape, x| shape.broadcast(x.shape(), ""))
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
    /// For a group that begins with this op.
    pub fn new(device: &Device, term: &Term, inputs: &[&Tensor]) -> Self {
        Self {
            device: device.clone(),
            layer: tape::current_layer(),
            images: matches!(term, Term::Convolution { .. }) || is_of_images(term, inputs),
            nodes: Nodes::default(),
            inputs: Vec::new(),
            products: Vec::new(),
            read: HashSet::new(),
            entries: Vec::new(),
            by_buffer: HashMap::new(),
            later: None,
            ops: Vec::new(),
        }
    }

    /// The product that `x` is the memory of.
    fn product(&self, x: &Tensor) -> Option<&Product> {
        let same = |product: &&Product| self.inputs[product.input].storage().same(x.storage());
        self.products.iter().find(same)
    }

    fn operand(&self, x: &Tensor) -> Operand {
        if let Some(product) = self.product(x) {
            let y = &self.inputs[product.input];
            let own = product.later.as_ref().is_some_and(|later| later.slot_of(x).is_some());
            return match x.requires_grad() {
                _ if x.layout() != y.layout() || x.dtype() != y.dtype() => Operand::View,
                true if !own => Operand::View,
                gradient => Operand::Waits(product.node, gradient || product.later.is_none()),
            };
        }
        let Some(entry) = self.by_buffer.get(&x.storage().number()).map(|at| &self.entries[*at]) else {
            return Operand::There;
        };
        let same = *x.layout() == entry.layout && x.dtype() == entry.dtype;
        // Rows that a reduction left broadcast as the tensor does, which may have lost axes.
        let alike = trimmed(self.nodes.shape(entry.node)) == trimmed(&self.shape_of(x));
        let slot = self.later.as_ref().and_then(|later| later.slot_of(x));
        let own = slot.is_some() && slot == entry.slot;
        match x.requires_grad() {
            // A view, or somebody else's place on the tape over the same memory.
            _ if !same || !alike => Operand::View,
            true if !own => Operand::View,
            gradient => Operand::Waits(entry.node, gradient || entry.slot.is_none()),
        }
    }

    /// A tensor's shape as its node has it.
    fn shape_of(&self, x: &Tensor) -> Shape {
        if self.images { images::nodes_shape(x) } else { x.shape().clone() }
    }

    /// What sees a tensor as its node is read and written, off the tape.
    pub fn views(&self) -> fn(&Tensor) -> Tensor {
        if self.images { images::as_nodes } else { Tensor::detach }
    }

    /// That of a tensor.
    pub fn as_node(&self, x: &Tensor) -> Tensor {
        self.views()(x)
    }

    /// What makes the gradient of a tensor of this shape of that of its node.
    pub fn gradients(&self) -> fn(&Tensor, &Shape) -> Result<Tensor> {
        if self.images { images::gradient } else { |grad, shape| grad.reshape(shape) }
    }

    /// Memory for a result of this shape, and the tensor that it is.
    fn result(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let y = match self.images {
            true => {
                let memory = Tensor::empty(&self.device, images::memory(&shape), dtype)?;
                images::as_tensor(&memory, shape.rank())
            }
            false => Tensor::empty(&self.device, shape, dtype)?,
        };
        y.storage().set_promise(Promise::Open);
        Ok(y)
    }

    /// Whether the op's axes are those of the group.
    fn suits(&self, term: &Term, inputs: &[&Tensor]) -> bool {
        let convolution = matches!(term, Term::Convolution { .. });
        if !self.images {
            return !convolution && !is_of_images(term, inputs);
        }
        if convolution || !term.is_elementwise() {
            return convolution;
        }
        let waits = |x: &&Tensor| matches!(self.operand(x), Operand::Waits(..));
        let Ok(shape) = broadcast(inputs) else { return false };
        // Values of channels as they broadcast, and what is made of them.
        images::is_line(&shape)
            || shape.rank() == 4 && (inputs.iter().any(waits) || is_of_images(term, inputs))
    }

    /// Whether an op of these inputs can wait in this group. A product waits for nothing.
    pub fn takes(&self, device: &Device, term: &Term, inputs: &[&Tensor]) -> bool {
        let room = self.ops.len() < OPS && self.inputs.len() + inputs.len() <= INPUTS;
        let ready = |x: &&Tensor| match self.operand(x) {
            Operand::Waits(..) => !term.is_product(),
            Operand::There => true,
            Operand::View => false,
        };
        room && self.device.same(device) && self.suits(term, inputs) && inputs.iter().all(ready)
    }

    /// Adds a product; its result, which is written later.
    fn add_product(&mut self, op: &'static str, term: &Term, inputs: &[&Tensor]) -> Result<Tensor> {
        let (shape, dtype) = term::result(op, term, inputs)?;
        let mut y = self.result(shape, dtype)?;
        let mut later = tape::records(inputs).then(|| Later::new(op));
        if let Some(later) = &mut later {
            y = later.result(&y).0;
        }
        self.read.extend(inputs.iter().map(|x| x.storage().number()));
        let (input, of) = (self.inputs.len(), inputs.iter().map(|x| (*x).clone()).collect());
        let node = self.nodes.input(input, &self.shape_of(&y));
        self.inputs.push(y.clone());
        self.products.push(Product { op, term: term.clone(), of, input, node, later });
        self.ops.push(op);
        Ok(y)
    }

    /// Adds an op; its result, which is written later.
    pub fn add(&mut self, op: &'static str, term: &Term, inputs: &[&Tensor]) -> Result<Tensor> {
        if term.is_product() {
            return self.add_product(op, term, inputs);
        }
        let (shape, dtype) = term::result(op, term, inputs)?;
        let mut args = Vec::with_capacity(inputs.len());
        for x in inputs {
            args.push(self.argument(x)?);
        }
        let mut node = term::node(&mut self.nodes, term, &args)?;
        let y = self.result(shape, dtype)?;
        let gradient = tape::records(inputs) && dtype.is_float();
        if !gradient && inputs.iter().any(|x| x.requires_grad()) {
            node = self.nodes.made(Kind::Detach, &[node])?;
        }
        self.ops.push(op);
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
        Ok(self.nodes.input(number, &self.shape_of(x)))
    }

    /// Whether the group has to be computed before a command that uses `buffer` so.
    pub fn meets(&self, buffer: &Buffer, access: Access) -> bool {
        let number = buffer.number();
        let product = |p: &Product| self.inputs[p.input].storage().number() == number;
        self.by_buffer.contains_key(&number)
            || self.products.iter().any(product)
            || access == Access::Write && self.read.contains(&number)
    }
}
