//! Generates the epilogue of a product's kernel from the ops after the product.

use super::super::emit::filled;
use super::super::node::{NodeKind, Nodes, trimmed, unary_of};
use crate::{DType, Shape, Tensor};
use netcl_kernel::Text;
use std::fmt::Write as _;

/// Maximum number of additional results that a kernel writes, and of tensors that it reads.
const OUTPUTS: usize = 4;
const INPUTS: usize = 8;

/// Shape of an input relative to the product.
#[derive(Clone, Copy, PartialEq)]
enum OperandShape {
    /// One element per element of the product, dense.
    Element,
    /// One per column, or per row.
    Column,
    Row,
    /// A single element.
    One,
}

/// An expression of a product in OpenCL C.
pub(super) struct ProductEpilogue {
    pub functions: Text,
    pub parameters: Text,
    pub arguments: Text,
    /// Indices of the tree's inputs that it reads.
    pub inputs: Vec<usize>,
    pub scalars: Vec<f32>,
}

fn place(x: &Tensor, product: &Shape) -> Option<OperandShape> {
    let (rows, columns) = product.rows_cols();
    let (is, whole) = (trimmed(x.shape()), trimmed(product));
    match x.is_contiguous() {
        true if x.count() == 1 => Some(OperandShape::One),
        true if is == whole => Some(OperandShape::Element),
        true if is == [columns] => Some(OperandShape::Column),
        true if x.count() == rows && x.shape().rank() > 1 && x.shape().last() == 1 => {
            let dims = &x.dims()[..x.shape().rank() - 1];
            let outer = &product.dims()[..product.rank() - 1];
            (trimmed(&Shape::from(dims)) == trimmed(&Shape::from(outer))).then_some(OperandShape::Row)
        }
        _ => None,
    }
}

impl ProductEpilogue {
    /// Builds the epilogue that computes `roots` from the product, which is input number `product`. The first root becomes C, the others
    /// are additional results. `None` if the product's kernel cannot provide all values that they need in one place.
    pub fn of(nodes: &Nodes, roots: &[(usize, DType)], product: usize, inputs: &[Tensor]) -> Option<Self> {
        let (shape, dtype) = (inputs[product].shape(), inputs[product].dtype());
        let ids: Vec<usize> = roots.iter().map(|(root, _)| *root).collect();
        let fits = |(i, (root, is)): (usize, &(usize, DType))| {
            trimmed(nodes.shape(*root)) == trimmed(shape) && is.is_float() && (i > 0 || *is == dtype)
        };
        if roots.len() > 1 + OUTPUTS || !roots.iter().enumerate().all(fits) {
            return None;
        }
        let cone = nodes.cone(&ids, |_| false);
        let mut read = Vec::new();
        for id in &cone {
            match nodes.kind(*id) {
                NodeKind::Input(i) if i != product => read.push((*id, i, place(&inputs[i], shape)?)),
                NodeKind::Reduce(..) | NodeKind::Stored => return None,
                _ => {}
            }
        }
        if read.len() > INPUTS {
            return None;
        }
        let mut text = Writer { nodes, product, inputs, read, roots, scalars: Vec::new(), cone };
        let functions = text.function(true) + &text.function(false) + &text.warm();
        let (parameters, arguments) = text.parameters();
        Some(Self {
            functions: Text::new(&functions),
            parameters: Text::new(&parameters),
            arguments: Text::new(&arguments),
            inputs: text.read.iter().map(|(_, i, _)| *i).collect(),
            scalars: text.scalars,
        })
    }
}

struct Writer<'a> {
    nodes: &'a Nodes,
    product: usize,
    inputs: &'a [Tensor],
    /// Nodes that are read, with their inputs and shapes.
    read: Vec<(usize, usize, OperandShape)>,
    roots: &'a [(usize, DType)],
    scalars: Vec<f32>,
    cone: Vec<usize>,
}

impl Writer<'_> {
    /// Returns the parameters, and the same list as arguments.
    fn parameters(&self) -> (String, String) {
        let (mut parameters, mut arguments) = (String::new(), String::new());
        // Writing to a String cannot fail.
        for (at, (_, i, _)) in self.read.iter().enumerate() {
            let _ = write!(
                parameters,
                ", __global const {} *e{at}, ulong f{at}",
                self.inputs[*i].dtype().c_type()
            );
            let _ = write!(arguments, ", e{at}, f{at}");
        }
        for (at, (_, dtype)) in self.roots.iter().enumerate().skip(1) {
            let _ = write!(parameters, ", __global {} *g{at}", dtype.c_type());
            let _ = write!(arguments, ", g{at}");
        }
        for at in 0..self.scalars.len() {
            let _ = write!(parameters, ", float h{at}");
            let _ = write!(arguments, ", h{at}");
        }
        (parameters, arguments)
    }

    /// Generates `tree_warm`, which prefetches the values for a row's elements from `at` on, on CPUs.
    fn warm(&self) -> String {
        let mut out = String::from("static inline void tree_warm(ulong at TREE_PARAMETERS) {\n");
        for (at, _) in self.read.iter().enumerate().filter(|(_, read)| read.2 == OperandShape::Element) {
            let _ = writeln!(out, "WARM(e{at} + f{at} + at);");
        }
        out + "}\n"
    }

    /// Generates `tree_v` for vectors, or `tree_1` for one element, which fills all lanes.
    fn function(&mut self, vector: bool) -> String {
        let (what, name) = if vector { ("FV", "tree_v") } else { ("float", "tree_1") };
        let mut out = format!(
            "static inline {what} {name}({what} sum, ulong row, ulong column, ulong n TREE_PARAMETERS) {{\n\
             const ulong at = row * n + column;\n"
        );
        self.scalars.clear();
        for id in self.cone.clone() {
            let value = self.value(id, vector);
            let _ = writeln!(out, "const FV v{id} = (FV)({value});");
        }
        for (at, (root, dtype)) in self.roots.iter().enumerate().skip(1) {
            let _ = match (vector, dtype) {
                (true, DType::F16) => writeln!(out, "STV_F16(g{at} + at, v{root});"),
                (true, DType::Bf16) => writeln!(out, "STV_BF16(g{at} + at, v{root});"),
                (true, _) => writeln!(out, "STV_F32(g{at} + at, v{root});"),
                (false, DType::F16) => writeln!(out, "vstore_half_rte(TREE_FIRST(v{root}), at, g{at});"),
                (false, DType::Bf16) => writeln!(out, "g{at}[at] = bf16_of(TREE_FIRST(v{root}));"),
                (false, _) => writeln!(out, "g{at}[at] = TREE_FIRST(v{root});"),
            };
        }
        let root = self.roots[0].0;
        out + &if vector {
            format!("return v{root};\n}}\n")
        } else {
            format!("return TREE_FIRST(v{root});\n}}\n")
        }
    }

    fn value(&mut self, id: usize, vector: bool) -> String {
        let node = &self.nodes.all[id];
        let (kind, args): (NodeKind, Vec<String>) =
            (node.kind, node.args.iter().map(|a| format!("v{a}")).collect());
        if kind == NodeKind::Input(self.product) {
            return "sum".into();
        }
        if let Some(at) = self.read.iter().position(|(read, ..)| *read == id) {
            let (_, i, place) = self.read[at];
            let code = self.inputs[i].dtype().code();
            let (index, lanes) = match place {
                OperandShape::Element => ("at", vector),
                OperandShape::Column => ("column", vector),
                OperandShape::Row => ("row", false),
                OperandShape::One => ("0", false),
            };
            let load = if lanes { "IN_V" } else { "IN_1" };
            return format!("{load}{code}(e{at} + f{at}, {index})");
        }
        let own: Vec<u32> = match kind {
            NodeKind::Const(bits) => vec![bits],
            NodeKind::Unary(row, bits) => bits.into_iter().take(unary_of(row).scalars.len()).collect(),
            _ => Vec::new(),
        };
        let names: Vec<String> = (0..own.len()).map(|i| format!("h{}", self.scalars.len() + i)).collect();
        self.scalars.extend(own.into_iter().map(f32::from_bits));
        match (kind, kind.text()) {
            (NodeKind::Const(_), _) => names[0].clone(),
            (NodeKind::Cast(dtype), _) => format!("ROUNDED{}({})", dtype.code(), args[0]),
            (_, Some(text)) => filled(text, &args, &names),
            _ => args[0].clone(),
        }
    }
}
