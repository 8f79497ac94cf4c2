//! The nodes of a tree, each stored once, and simplifications that are known before execution.

use crate::ops::elementwise::{BINARY, BinaryRow, UNARY, UnaryRow};
use crate::ops::mask::{COMPARISONS, WHERE};
use crate::{DType, Error, Result, Shape};
use netcl_device::quick::QuickMap;
use netcl_kernel::hash::Mix;
use std::collections::HashMap;

/// Kind of a reduction over axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReductionKind {
    Sum,
    Max,
}

/// Operation of a node. Row numbers refer to [`UNARY`], [`BINARY`] and [`COMPARISONS`]; floats are stored as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeKind {
    /// The input with this index.
    Input(usize),
    Const(u32),
    Unary(usize, [u32; 2]),
    /// Derivative of a unary row, as a C expression of what the row saves and the gradient of the result.
    UnaryGrad(usize, [u32; 2]),
    Binary(usize),
    /// Derivative with respect to the first or second operand, as an expression of both and the gradient of the result.
    BinaryGrad(usize, bool),
    Compare(usize),
    Where,
    Cast(DType),
    /// The same values, broadcast to a larger shape.
    Expand,
    /// The same values, but gradients stop here.
    Detach,
    /// The same values, written to memory, so that all kernels that read them see the same bits.
    Stored,
    /// Reduction over the axes of a mask, whose lowest bit is the last axis. The axes remain with size 1.
    Reduce(ReductionKind, u32),
}

/// A node. Its arguments are nodes with smaller indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ExprNode {
    pub kind: NodeKind,
    pub args: Vec<usize>,
    pub shape: Shape,
}

/// All nodes so far; equal nodes are stored once.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    pub all: Vec<ExprNode>,
    /// Nodes by hash; on a collision, the next free hash.
    known: QuickMap<u64, usize>,
}

/// Returns the sizes without leading ones. They are equal for shapes that broadcast to each other.
pub(super) fn trimmed(shape: &Shape) -> &[usize] {
    let dims = shape.dims();
    &dims[dims.iter().take_while(|n| **n == 1).count()..]
}

pub(super) fn unary_row(name: &str) -> Result<usize> {
    let found = UNARY.iter().position(|row| row.name == name);
    found.ok_or_else(|| Error::unsupported(format!("{name} is not an elementwise op of one tensor")))
}

pub(super) fn binary_row(name: &str) -> Result<usize> {
    let found = BINARY.iter().position(|row| row.name == name);
    found.ok_or_else(|| Error::unsupported(format!("{name} is not an elementwise op of two tensors")))
}

impl NodeKind {
    /// Returns the C expression in the arguments `x0`, `x1`, … and the scalars `s0`, `s1`, if the node has one.
    pub fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::Unary(row, _) => UNARY[row].y,
            Self::UnaryGrad(row, _) => UNARY[row].dx,
            Self::Binary(row) => BINARY[row].y,
            Self::BinaryGrad(row, second) => {
                if second {
                    BINARY[row].db
                } else {
                    BINARY[row].da
                }
            }
            Self::Compare(row) => COMPARISONS[row].y,
            Self::Where => WHERE,
            _ => return None,
        })
    }
    pub fn scalars(self) -> [f32; 2] {
        match self {
            Self::Unary(_, bits) | Self::UnaryGrad(_, bits) => bits.map(f32::from_bits),
            _ => [0.0; 2],
        }
    }
    pub fn name(self) -> String {
        match self {
            Self::Input(i) => format!("x{i}"),
            Self::Const(bits) => format!("{:?}", f32::from_bits(bits)),
            Self::Unary(row, _) => UNARY[row].name.into(),
            Self::UnaryGrad(row, _) => format!("{}_grad", UNARY[row].name),
            Self::Binary(row) => BINARY[row].name.into(),
            Self::BinaryGrad(row, second) => {
                format!("{}_grad_{}", BINARY[row].name, if second { "b" } else { "a" })
            }
            Self::Compare(row) => COMPARISONS[row].name.into(),
            Self::Where => "where".into(),
            Self::Cast(dtype) => dtype.to_string(),
            Self::Expand => "expand".into(),
            Self::Detach => "detach".into(),
            Self::Stored => "stored".into(),
            Self::Reduce(ReductionKind::Sum, _) => "sum".into(),
            Self::Reduce(ReductionKind::Max, _) => "max".into(),
        }
    }
    /// Returns whether recomputing a value costs more than reading it from the L1 cache.
    pub fn is_costly(self) -> bool {
        const FUNCTIONS: [&str; 10] =
            ["EXP", "exp", "log", "pow", "sin(", "cos(", "tanh", "sigmoid", "silu", "gelu"];
        self.text().is_some_and(|text| FUNCTIONS.iter().any(|name| text.contains(name)))
    }
    pub fn is_reduction(self) -> bool {
        matches!(self, Self::Reduce(..))
    }
}

pub(super) fn unary_of(row: usize) -> &'static UnaryRow {
    &UNARY[row]
}
pub(super) fn binary_of(row: usize) -> &'static BinaryRow {
    &BINARY[row]
}

/// Step of the differences for derivatives of rows that have a C expression, but not a function in f64.
const STEP: f64 = 1e-5;

/// Computes the value of an elementwise node. Derivatives are central differences, with an error of about 1e-9 away from kinks.
pub(super) fn value(kind: NodeKind, x: &[f64]) -> f64 {
    let scalars = kind.scalars().map(f64::from);
    let x0 = x.first().copied().unwrap_or(0.0);
    match kind {
        NodeKind::Const(bits) => f64::from(f32::from_bits(bits)),
        NodeKind::Unary(row, _) => (unary_of(row).f)(x0, scalars),
        NodeKind::Binary(row) => (binary_of(row).f)(x0, x[1]),
        NodeKind::UnaryGrad(row, _) => {
            let f = |x| (unary_of(row).f)(x, scalars);
            slope(f, x0) * x[1]
        }
        NodeKind::BinaryGrad(row, second) => {
            let f = binary_of(row).f;
            x[2] * if second { slope(|b| f(x0, b), x[1]) } else { slope(|a| f(a, x[1]), x0) }
        }
        NodeKind::Compare(row) => f64::from((COMPARISONS[row].f)(x0, x[1])),
        NodeKind::Where => {
            if x0 == 0.0 {
                x[2]
            } else {
                x[1]
            }
        }
        NodeKind::Cast(dtype @ (DType::I32 | DType::U32)) => dtype.round(x0.round_ties_even()),
        NodeKind::Cast(dtype) => dtype.round(x0),
        NodeKind::Input(_)
        | NodeKind::Expand
        | NodeKind::Detach
        | NodeKind::Stored
        | NodeKind::Reduce(..) => x0,
    }
}

fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let h = STEP * x.abs().max(1.0);
    (f(x + h) - f(x - h)) / (2.0 * h)
}

impl Nodes {
    pub fn shape(&self, id: usize) -> &Shape {
        &self.all[id].shape
    }
    pub fn kind(&self, id: usize) -> NodeKind {
        self.all[id].kind
    }
    fn constant(&self, id: usize) -> Option<f32> {
        match self.all[id].kind {
            NodeKind::Const(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    fn keep(&mut self, kind: NodeKind, args: Vec<usize>, shape: Shape) -> usize {
        let node = ExprNode { kind, args, shape };
        let mut hash = Mix::of(&node) as u64;
        while let Some(id) = self.known.get(&hash) {
            if self.all[*id] == node {
                return *id;
            }
            hash = hash.wrapping_add(1);
        }
        self.all.push(node);
        self.known.insert(hash, self.all.len() - 1);
        self.all.len() - 1
    }

    pub fn input(&mut self, number: usize, shape: &Shape) -> usize {
        self.keep(NodeKind::Input(number), Vec::new(), shape.clone())
    }
    pub fn number(&mut self, value: f32) -> usize {
        self.keep(NodeKind::Const(value.to_bits()), Vec::new(), Shape::default())
    }

    /// Adds a node over others. Its shape is broadcast, and constants are folded.
    ///
    /// # Errors
    /// `Shape` if the arguments cannot be broadcast.
    pub fn made(&mut self, kind: NodeKind, args: &[usize]) -> Result<usize> {
        let name = || kind.name();
        let mut shape = self.shape(args[0]).clone();
        for arg in &args[1..] {
            shape = shape.broadcast(self.shape(*arg), &name())?;
        }
        if let Some(value) = self.folded(kind, args) {
            let value = self.number(value);
            return self.expanded(value, &shape);
        }
        let same = match self.same_as(kind, args) {
            Some(id) => Some(id),
            None => self.simpler(kind, args)?,
        };
        match same {
            Some(id) if *self.shape(id) == shape => Ok(id),
            Some(id) => self.expanded(id, &shape),
            None => Ok(self.keep(kind, args.to_vec(), shape)),
        }
    }

    /// Returns a cheaper node with the same value up to rounding. 1 + tanh u becomes 2 sigmoid(2u), which needs one exponential and one
    /// division, and keeps the digits of small values. Factors of a product that cancel are removed.
    fn simpler(&mut self, kind: NodeKind, args: &[usize]) -> Result<Option<usize>> {
        let scaled = unary_row("mul_scalar")?;
        match kind {
            NodeKind::Unary(row, [one, _])
                if unary_of(row).name == "add_scalar" && f32::from_bits(one) == 1.0 =>
            {
                let NodeKind::Unary(inner, _) = self.kind(args[0]) else { return Ok(None) };
                if unary_of(inner).name != "tanh" {
                    return Ok(None);
                }
                let twice = NodeKind::Unary(scaled, [2.0f32.to_bits(), 0]);
                let doubled = self.made(twice, &[self.all[args[0]].args[0]])?;
                let sigmoid = self.made(NodeKind::Unary(unary_row("sigmoid")?, [0; 2]), &[doubled])?;
                self.made(twice, &[sigmoid]).map(Some)
            }
            NodeKind::Binary(row) if binary_of(row).name == "mul" => {
                let factor = |id: usize| match self.kind(id) {
                    NodeKind::Unary(row, [bits, _]) if row == scaled => Some(f32::from_bits(bits)),
                    _ => None,
                };
                match (factor(args[0]), factor(args[1])) {
                    (Some(a), Some(b)) if a * b == 1.0 => {
                        let [a, b] = [args[0], args[1]].map(|id| self.all[id].args[0]);
                        self.made(kind, &[a, b]).map(Some)
                    }
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Returns the value if all arguments are constants.
    fn folded(&self, kind: NodeKind, args: &[usize]) -> Option<f32> {
        let known: Option<Vec<f64>> = args.iter().map(|a| self.constant(*a).map(f64::from)).collect();
        if matches!(kind, NodeKind::UnaryGrad(..) | NodeKind::BinaryGrad(..) | NodeKind::Stored) {
            return None;
        }
        Some(value(kind, &known?) as f32)
    }

    /// Returns the argument that has the node's value bit by bit.
    fn same_as(&self, kind: NodeKind, args: &[usize]) -> Option<usize> {
        let is = |at: usize, value: f32| {
            args.get(at).and_then(|a| self.constant(*a)).is_some_and(|c| c.to_bits() == value.to_bits())
        };
        let inverse = |of: &str| matches!(kind, NodeKind::Unary(row, _) if unary_of(row).name == of);
        match kind {
            NodeKind::Binary(row) => match binary_of(row).name {
                "mul" if is(1, 1.0) => Some(args[0]),
                "mul" if is(0, 1.0) => Some(args[1]),
                "div" if is(1, 1.0) => Some(args[0]),
                "sub" if is(1, 0.0) => Some(args[0]),
                _ => None,
            },
            NodeKind::Unary(row, scalars) => match unary_of(row).name {
                "mul_scalar" if f32::from_bits(scalars[0]) == 1.0 => Some(args[0]),
                // neg applied twice cancels; abs or relu applied twice equals once.
                "neg" if self.all[args[0]].kind == kind => Some(self.all[args[0]].args[0]),
                "abs" | "relu" if self.all[args[0]].kind == kind && (inverse("abs") || inverse("relu")) => {
                    Some(args[0])
                }
                _ => None,
            },
            NodeKind::Cast(_) | NodeKind::Detach | NodeKind::Stored if self.all[args[0]].kind == kind => {
                Some(args[0])
            }
            _ => None,
        }
    }

    /// Broadcasts a node to `shape`.
    ///
    /// # Errors
    /// `Shape` if this is not possible.
    pub fn expanded(&mut self, id: usize, shape: &Shape) -> Result<usize> {
        if self.shape(id) == shape {
            return Ok(id);
        }
        if self.shape(id).broadcast(shape, "expand")? != *shape {
            return Err(Error::shape(format!(
                "expand: shape {} does not broadcast to {shape}",
                self.shape(id)
            )));
        }
        Ok(self.keep(NodeKind::Expand, vec![id], shape.clone()))
    }

    /// Adds a reduction over the axes of `mask`, which remain with size 1.
    ///
    /// # Errors
    /// `Shape` for a maximum over an empty axis.
    pub fn reduced(&mut self, how: ReductionKind, id: usize, mask: u32) -> Result<usize> {
        let shape = self.shape(id).clone();
        let rank = shape.rank();
        let size = |bit: usize| if bit < rank { shape.dims()[rank - 1 - bit] } else { 1 };
        let within = |bit: usize| mask & (1 << bit) != 0;
        let Some(top) = (0..rank).rev().find(|bit| within(*bit) && size(*bit) != 1) else { return Ok(id) };
        // Axes of size 1 inside of the outermost reduced axis also count as reduced, so that the axes are contiguous more often.
        let axes = (0..=top).filter(|bit| within(*bit) || size(*bit) == 1).fold(0, |m, bit| m | 1 << bit);
        let dims: Vec<usize> =
            (0..rank).rev().map(|bit| if axes & (1 << bit) != 0 { 1 } else { size(bit) }).collect();
        let kept = Shape::from(dims);
        if how == ReductionKind::Max && shape.count() == 0 && kept.count() > 0 {
            return Err(Error::shape(format!("max: cannot reduce an empty axis of shape {shape}")));
        }
        Ok(self.keep(NodeKind::Reduce(how, axes), vec![id], kept))
    }

    /// Sums over the axes that broadcasting from `shape` added or repeated. The rank stays the same.
    pub fn summed_to(&mut self, id: usize, shape: &Shape) -> Result<usize> {
        let from = self.shape(id).clone();
        let at = |s: &Shape, bit: usize| if bit < s.rank() { s.dims()[s.rank() - 1 - bit] } else { 1 };
        let mask =
            (0..from.rank()).filter(|bit| at(&from, *bit) != at(shape, *bit)).fold(0, |m, bit| m | 1 << bit);
        self.reduced(ReductionKind::Sum, id, mask)
    }

    /// Returns only the nodes that `roots` depend on, with renumbered inputs: the nodes, the roots, and the old numbers of the inputs.
    pub fn pruned(&self, roots: &[usize]) -> (Self, Vec<usize>, Vec<usize>) {
        let mut out = Self::default();
        let mut inputs = Vec::new();
        let mut at = HashMap::new();
        for id in self.cone(roots, |_| false) {
            let node = &self.all[id];
            let kind = match node.kind {
                NodeKind::Input(i) => {
                    inputs.push(i);
                    NodeKind::Input(inputs.len() - 1)
                }
                kind => kind,
            };
            let args = node.args.iter().filter_map(|arg| at.get(arg).copied()).collect();
            at.insert(id, out.keep(kind, args, node.shape.clone()));
        }
        (out, roots.iter().filter_map(|root| at.get(root).copied()).collect(), inputs)
    }

    /// Returns the nodes that `roots` depend on, including the roots, in order. Nodes for which `stops` is true are included, but not their
    /// arguments.
    pub fn cone(&self, roots: &[usize], stops: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut open = roots.to_vec();
        let mut seen = vec![false; self.all.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id], true) || stops(id) {
                continue;
            }
            open.extend(&self.all[id].args);
        }
        (0..self.all.len()).filter(|id| seen[*id]).collect()
    }
}
