//! Deferred ops, as one tree with several results.

use super::super::node::{NodeKind, Nodes, trimmed};
use super::{images, term};
use crate::tape::{self, DeferredNode, Term};
use crate::tensor::{WeakTensor, is_same};
use crate::{DType, Device, Layout, Result, Shape, Tensor};
use netcl_device::deferred::Promise;
use netcl_device::driver::Access;
use netcl_device::{Buffer, WeakBuffer};
use std::collections::{HashMap, HashSet};

/// Maximum number of ops in a group, and of tensors that it reads. Larger kernels would need too many registers and arguments.
const OPS: usize = 64;
const INPUTS: usize = 16;

/// The result of an op, which the caller may hold.
pub(super) struct DeferredResult {
    pub buffer: WeakBuffer,
    layout: Layout,
    pub dtype: DType,
    pub node: usize,
    /// Index of the result on the tape.
    pub slot: Option<usize>,
    pub tensor: WeakTensor,
}

/// A deferred product: an input of the tree that is not computed yet.
pub(super) struct DeferredProduct {
    pub op: &'static str,
    pub term: Term,
    /// Inputs: x, w and an optional bias.
    pub of: Vec<Tensor>,
    /// Its index in the tree's inputs.
    pub input: usize,
    node: usize,
    pub later: Option<DeferredNode>,
}

/// The deferred ops of a device.
pub(super) struct Group {
    pub device: Device,
    pub layer: u32,
    /// Whether tensors are images in the order `(N, C, H, W)` and nodes `(N, H, W, C)`.
    images: bool,
    pub nodes: Nodes,
    pub inputs: Vec<Tensor>,
    pub products: Vec<DeferredProduct>,
    /// Numbers of the input buffers.
    read: HashSet<u64>,
    pub entries: Vec<DeferredResult>,
    /// Entries by the number of their buffer.
    by_buffer: HashMap<u64, usize>,
    /// Place on the tape of the results that need gradients.
    pub later: Option<DeferredNode>,
    pub ops: Vec<&'static str>,
}

/// Returns whether an elementwise op's result is an image with adjacent channels, like one of its inputs.
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

/// Kind of an operand.
enum Operand {
    /// A deferred value, and whether the operand shares its place on the tape. If it does not, no gradient flows from here.
    Waits(usize, bool),
    /// Computed memory.
    There,
    /// A view of deferred memory that differs from the op's result. The op must run first.
    View,
}

impl Group {
    /// Starts a group with this op.
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

    /// Returns the product whose result is `x`.
    fn product(&self, x: &Tensor) -> Option<&DeferredProduct> {
        let same = |product: &&DeferredProduct| self.inputs[product.input].storage().same(x.storage());
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
        // Rows that a reduction left are broadcast like the tensor, which may have lost axes.
        let alike = trimmed(self.nodes.shape(entry.node)) == trimmed(&self.shape_of(x));
        let slot = self.later.as_ref().and_then(|later| later.slot_of(x));
        let own = slot.is_some() && slot == entry.slot;
        match x.requires_grad() {
            // A view, or another place on the tape for the same memory.
            _ if !same || !alike => Operand::View,
            true if !own => Operand::View,
            gradient => Operand::Waits(entry.node, gradient || entry.slot.is_none()),
        }
    }

    /// Returns a tensor's shape in its node's order of axes.
    fn shape_of(&self, x: &Tensor) -> Shape {
        if self.images { images::nodes_shape(x) } else { x.shape().clone() }
    }

    /// Returns the function that views a tensor in its node's order of axes, off the tape.
    pub fn views(&self) -> fn(&Tensor) -> Tensor {
        if self.images { images::as_nodes } else { Tensor::detach }
    }

    /// Views a tensor in its node's order of axes.
    pub fn as_node(&self, x: &Tensor) -> Tensor {
        self.views()(x)
    }

    /// Returns the function that converts the gradient of a node to the gradient of its tensor, which has the given shape.
    pub fn gradients(&self) -> fn(&Tensor, &Shape) -> Result<Tensor> {
        if self.images { images::gradient } else { |grad, shape| grad.reshape(shape) }
    }

    /// Allocates a result of this shape, and returns its tensor.
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

    /// Returns whether the op's axes match those of the group.
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
        // Channel values as they are broadcast, and values computed from them.
        images::is_line(&shape)
            || shape.rank() == 4 && (inputs.iter().any(waits) || is_of_images(term, inputs))
    }

    /// Returns whether an op with these inputs can be deferred in this group. A product cannot follow deferred ops.
    pub fn takes(&self, device: &Device, term: &Term, inputs: &[&Tensor]) -> bool {
        let room = self.ops.len() < OPS && self.inputs.len() + inputs.len() <= INPUTS;
        let ready = |x: &&Tensor| match self.operand(x) {
            Operand::Waits(..) => !term.is_product(),
            Operand::There => true,
            Operand::View => false,
        };
        room && self.device.same(device) && self.suits(term, inputs) && inputs.iter().all(ready)
    }

    /// Adds a product. Returns its result, which is computed later.
    fn add_product(&mut self, op: &'static str, term: &Term, inputs: &[&Tensor]) -> Result<Tensor> {
        let (shape, dtype) = term::result(op, term, inputs)?;
        let mut y = self.result(shape, dtype)?;
        let mut later = tape::records(inputs).then(|| DeferredNode::new(op));
        if let Some(later) = &mut later {
            y = later.result(&y).0;
        }
        self.read.extend(inputs.iter().map(|x| x.storage().number()));
        let (input, of) = (self.inputs.len(), inputs.iter().map(|x| (*x).clone()).collect());
        let node = self.nodes.input(input, &self.shape_of(&y));
        self.inputs.push(y.clone());
        self.products.push(DeferredProduct { op, term: term.clone(), of, input, node, later });
        self.ops.push(op);
        Ok(y)
    }

    /// Adds an op. Returns its result, which is computed later.
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
            node = self.nodes.made(NodeKind::Detach, &[node])?;
        }
        self.ops.push(op);
        let (y, slot) = match gradient {
            true => {
                let (y, slot) = self.later.get_or_insert_with(|| DeferredNode::new("lazy")).result(&y);
                (y, Some(slot))
            }
            false => (y, None),
        };
        self.by_buffer.insert(y.storage().number(), self.entries.len());
        let (buffer, layout) = (y.storage().weak(), y.layout().clone());
        let tensor = y.weak();
        self.entries.push(DeferredResult { buffer, layout, dtype, node, slot, tensor });
        Ok(y)
    }

    fn argument(&mut self, x: &Tensor) -> Result<usize> {
        if let Operand::Waits(node, whole) = self.operand(x) {
            return if whole { Ok(node) } else { self.nodes.made(NodeKind::Detach, &[node]) };
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

    /// Returns whether the group must be computed before a command that accesses `buffer` in this way.
    pub fn meets(&self, buffer: &Buffer, access: Access) -> bool {
        let number = buffer.number();
        let product = |p: &DeferredProduct| self.inputs[p.input].storage().number() == number;
        self.by_buffer.contains_key(&number)
            || self.products.iter().any(product)
            || access == Access::Write && self.read.contains(&number)
    }
}
