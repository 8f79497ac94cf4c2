//! Generates the source of a kernel.
//!
//! A kernel without reductions is a loop over elements. A kernel with reductions processes a row in passes. Each pass computes the
//! reductions whose arguments only need results of earlier passes. Values that are constant along a row are computed between passes.
//!
//! All elements are loaded before the first reduction waits, and inputs of later passes stay in registers. Values that are equal in every
//! row are loaded once for all rows of a group. A kernel is named after the hash of its source and cached like any other. `expr::explain`
//! shows tree and source.

mod rows;

use super::node::{NodeKind, Nodes, unary_of};
use super::plan::FusedKernel;
use crate::DType;
use crate::ops::map::places;
use netcl_kernel::generate::Step;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Memory layout of a kernel's operands. Together with the tree, it determines the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KernelLayout {
    /// Storage type and step along a row for each leaf.
    pub leaves: Vec<(DType, Step)>,
    /// Storage types of the outputs.
    pub outputs: Vec<DType>,
    /// Number of axes before the row; `None` for one loop over all elements.
    pub outer: Option<usize>,
    pub keep: Keep,
    /// Marks leaves with the same elements in every row if each work-item reads them only once. Otherwise, all work-items would read the
    /// same few cache lines for each row, which exceeds the bandwidth of the last-level cache slices that hold them.
    pub still: Vec<bool>,
    /// Rows consist of whole vectors of any width, without a remainder.
    pub whole: bool,
    /// Bits of the scalars beyond the first [`ARGUMENTS`]; they are literals in the source.
    pub literals: Vec<u32>,
}

/// Where elementwise values of a row are kept if several passes need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Keep {
    Nothing,
    /// Private memory, for costly values in rows of at most [`MAX_KEPT_ROW`] elements that belong to one work-item (CPUs).
    Memory,
    /// Registers, for rows of which each work-item has `HELD` vectors: at most this many values, both elements and costly results.
    Registers(usize),
}

/// Largest number of elements of a row that is kept between passes: 32 KiB per value, which fits in the L2 cache.
pub(super) const MAX_KEPT_ROW: usize = 8192;
/// Largest number of scalars that are kernel arguments. Another argument value does not need another kernel.
const ARGUMENTS: usize = 64;

/// Returns the nodes that are or have scalars, each with its bits, in the order of the kernel's arguments.
fn scalars(nodes: &Nodes, job: &FusedKernel) -> Vec<(usize, u32)> {
    let mut out = Vec::new();
    for id in job.scalars.iter().copied() {
        match nodes.kind(id) {
            NodeKind::Const(bits) => out.push((id, bits)),
            NodeKind::Unary(row, bits) | NodeKind::UnaryGrad(row, bits) => {
                out.extend(bits.iter().take(unary_of(row).scalars.len()).map(|b| (id, *b)));
            }
            _ => {}
        }
    }
    out
}

/// Returns the scalars of a kernel: its arguments, and the bits of the scalars that are literals.
pub(super) fn arguments(nodes: &Nodes, job: &FusedKernel) -> (Vec<f32>, Vec<u32>) {
    let mut all: Vec<u32> = scalars(nodes, job).into_iter().map(|(_, bits)| bits).collect();
    let literals = all.split_off(all.len().min(ARGUMENTS));
    (all.into_iter().map(f32::from_bits).collect(), literals)
}

pub(super) struct Emitter<'a> {
    nodes: &'a Nodes,
    pub job: &'a FusedKernel,
    pub form: &'a KernelLayout,
    /// Pass in which each node of the kernel is computed, and whether the node varies along a row.
    about: HashMap<usize, (usize, bool)>,
    all: Vec<usize>,
    /// Nodes whose values for the row are kept.
    kept: Vec<usize>,
    /// Arguments or literals of the nodes with scalars.
    scalars: HashMap<usize, Vec<String>>,
    /// Number of reductions over a work-group so far.
    sites: usize,
    pub out: String,
}

/// Generates the kernel's source, with `NAME` for its name.
pub(super) fn text(nodes: &Nodes, job: &FusedKernel, form: &KernelLayout) -> String {
    let mut emitter = Emitter::new(nodes, job, form);
    emitter.out = format!("__kernel void NAME({}) {{\n", emitter.parameters());
    match (job.reduced > 0, form.outer.is_some()) {
        (true, _) => emitter.row_passes(),
        (false, true) => emitter.rows(),
        (false, false) => emitter.flat(),
    }
    emitter.out + "}\n"
}

fn literal(value: f32) -> String {
    if value.is_nan() {
        return "NAN".into();
    }
    let size = value.abs();
    let digits = format!("{size:e}");
    let digits = if digits.contains('.') { digits } else { digits.replacen('e', ".0e", 1) };
    let digits = if size.is_infinite() { "INFINITY".into() } else { digits + "f" };
    if value.is_sign_negative() { format!("(-{digits})") } else { digits }
}

/// Substitutes names for `x0`, `x1`, … and `s0`, `s1` in an expression.
pub(super) fn filled(text: &str, names: &[String], scalars: &[String]) -> String {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        found.extend(places(text, i).map(|at| (at, name.clone())));
    }
    let as_scalars = text.replace('x', "#").replace('s', "x");
    for (i, name) in scalars.iter().enumerate() {
        found.extend(places(&as_scalars, i).map(|at| (at, name.clone())));
    }
    found.sort_unstable();
    let (mut out, mut from) = (String::new(), 0);
    for (at, name) in found {
        out += &text[from..at];
        out += &name;
        from = at + 2;
    }
    out + &text[from..]
}

impl<'a> Emitter<'a> {
    pub fn new(nodes: &'a Nodes, job: &'a FusedKernel, form: &'a KernelLayout) -> Self {
        let all = job.cone(nodes, &job.outputs);
        let mut emitter = Self {
            nodes,
            job,
            form,
            about: HashMap::new(),
            all,
            kept: Vec::new(),
            scalars: HashMap::new(),
            sites: 0,
            out: String::new(),
        };
        for (slot, (id, bits)) in scalars(nodes, job).into_iter().enumerate() {
            let name = if slot < ARGUMENTS { format!("c{slot}") } else { literal(f32::from_bits(bits)) };
            emitter.scalars.entry(id).or_default().push(name);
        }
        emitter.classify();
        emitter
    }

    fn classify(&mut self) {
        for id in self.all.clone() {
            let node = &self.nodes.all[id];
            let about = match self.job.leaves.iter().position(|leaf| *leaf == id) {
                Some(leaf) => (0, self.form.leaves[leaf].1 != Step::Zero),
                None => {
                    let args = node.args.iter().map(|a| self.about.get(a).copied().unwrap_or((0, false)));
                    let (pass, varies) = args.fold((0, false), |(p, v), (q, w)| (p.max(q), v || w));
                    if self.job.computes(self.nodes, id) { (pass + 1, false) } else { (pass, varies) }
                }
            };
            self.about.insert(id, about);
        }
    }
    fn pass(&self, id: usize) -> usize {
        self.about.get(&id).map_or(0, |a| a.0)
    }
    fn varies(&self, id: usize) -> bool {
        self.about.get(&id).is_some_and(|a| a.1)
    }
    fn leaf(&self, id: usize) -> Option<usize> {
        self.job.leaves.iter().position(|leaf| *leaf == id)
    }
    fn passes(&self) -> usize {
        self.about.values().map(|a| a.0).max().unwrap_or(0)
    }

    pub fn still(&self, leaf: usize) -> bool {
        self.form.still.get(leaf) == Some(&true)
    }

    /// Lists the parameters in the order in which `run` binds them: inputs with their offsets, outputs, scalars, sizes, strides.
    pub fn parameters(&self) -> String {
        let mut out = String::new();
        for (i, (dtype, _)) in self.form.leaves.iter().enumerate() {
            let _ = write!(out, "__global const {} *restrict p{i}, ulong o{i}, ", dtype.c_type());
        }
        for (i, dtype) in self.form.outputs.iter().enumerate() {
            let _ = write!(out, "__global {} *restrict y{i}, ", dtype.c_type());
        }
        for slot in 0..self.scalars.values().map(Vec::len).sum::<usize>().min(ARGUMENTS) {
            let _ = write!(out, "float c{slot}, ");
        }
        let Some(outer) = self.form.outer else { return out + "ulong n" };
        for d in 0..outer {
            let _ = write!(out, "ulong d{d}, ");
        }
        for (i, (_, step)) in self.form.leaves.iter().enumerate() {
            for d in 0..outer {
                let _ = write!(out, "ulong t{i}_{d}, ");
            }
            if *step == Step::Strided {
                let _ = write!(out, "ulong r{i}, ");
            }
        }
        out += "ulong rows, ulong inner";
        if self.job.below > 0 {
            out += ", ulong deep";
            (0..self.form.leaves.len()).for_each(|i| out += &format!(", ulong q{i}"));
        }
        if self.job.reduced > 0 {
            out += ", ulong parts, ulong per";
        }
        out
    }

    /// Emits the offset of the row in each input.
    pub fn offsets(&mut self) {
        let count = self.form.leaves.len();
        for i in 0..count {
            let _ = write!(self.out, "ulong a{i} = o{i}; ");
        }
        let Some(outer) = self.form.outer.filter(|n| *n > 0) else { return };
        let row = if self.in_parts() { "row / parts" } else { "row" };
        let _ = write!(self.out, "{{ ulong q = {row}; ");
        for d in (0..outer).rev() {
            // The remaining quotient is the index on the first axis. This avoids a division, which costs more than loading a vector.
            let _ = match d {
                0 => write!(self.out, "{{ const ulong c = q; "),
                _ => write!(self.out, "{{ const ulong c = q % d{d}; q /= d{d}; "),
            };
            for i in 0..count {
                let _ = write!(self.out, "a{i} += c * t{i}_{d}; ");
            }
            self.out += "} ";
        }
        self.out += "}\n";
    }

    fn scalars_of(&self, id: usize) -> &[String] {
        self.scalars.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Whether rows or columns are split into parts.
    fn in_parts(&self) -> bool {
        self.job.parts || self.job.below > 0
    }

    fn base(&self) -> &'static str {
        match self.form.outer {
            Some(_) if self.job.below > 0 => "b",
            Some(_) => "a",
            None => "o",
        }
    }

    /// Emits node `id`. `tail` selects the elements after the last whole vector.
    fn node(&mut self, id: usize, tail: bool) {
        let node = &self.nodes.all[id];
        if let Some(i) = self.leaf(id) {
            let ((dtype, step), base) = (self.form.leaves[i], self.base());
            let code = dtype.code();
            let _ = match (step, tail) {
                _ if self.still(i) && self.job.below > 0 => writeln!(self.out, "const FV v{id} = h{i};"),
                _ if self.still(i) => writeln!(self.out, "const FV v{id} = h{i}[u];"),
                _ if self.loaded_ahead().contains(&i) => writeln!(self.out, "const FV v{id} = f{i}[u];"),
                (Step::Zero, _) => {
                    writeln!(self.out, "const FV v{id} = (FV)(IN_1{code}(p{i} + {base}{i}, 0));")
                }
                (Step::Unit, false) => {
                    writeln!(self.out, "const FV v{id} = IN_V{code}(p{i} + {base}{i}, i);")
                }
                (Step::Unit, true) => writeln!(self.out, "LANES(v{id}, IN_1{code}(p{i} + {base}{i}, i + k))"),
                (Step::Strided, _) => {
                    writeln!(self.out, "LANES(v{id}, IN_1{code}(p{i} + {base}{i}, (i + k) * r{i}))")
                }
            };
            return;
        }
        let names: Vec<String> = node.args.iter().map(|a| format!("v{a}")).collect();
        let value = match (node.kind, node.kind.text()) {
            (NodeKind::Const(_), _) => self.scalars_of(id)[0].clone(),
            (NodeKind::Cast(dtype), _) => format!("ROUNDED{}({})", dtype.code(), names[0]),
            (_, Some(text)) => {
                let text = filled(text, &names, self.scalars_of(id));
                match self.divisor(id) {
                    Some(of) => text.replace(&format!(" / v{of}"), &format!(" * d{of} * r{of}")),
                    None => text,
                }
            }
            _ => names[0].clone(),
        };
        let _ = writeln!(self.out, "const FV v{id} = (FV)({value});");
    }

    /// Returns the divisor of an elementwise node if it is constant along the row, so that elements are multiplied by its inverse.
    fn divisor(&self, id: usize) -> Option<usize> {
        let rows = self.job.reduced > 0 && self.job.below == 0 && self.varies(id) && self.leaf(id).is_none();
        let divides = rows && self.nodes.kind(id).text().is_some_and(|text| text.contains(" / x1"));
        self.nodes.all[id].args.get(1).copied().filter(|of| divides && !self.varies(*of))
    }

    /// Returns the nodes of a loop for `roots`. Values that are kept are not computed again.
    fn cone(&self, roots: &[usize], kept: &[usize]) -> Vec<usize> {
        self.nodes.cone(roots, |id| self.job.reads(self.nodes, id) || kept.contains(&id))
    }

    /// Emits the loop body of a pass for `roots`, without values that are constant along the row. `keep` is kept for later passes.
    pub fn body(&mut self, roots: &[usize], keep: &[usize], tail: bool) {
        for id in self.cone(roots, &self.kept) {
            if self.kept.contains(&id) {
                let _ = match self.form.keep {
                    Keep::Registers(_) => writeln!(self.out, "const FV v{id} = k{id}[u];"),
                    _ => writeln!(self.out, "const FV v{id} = LOADN(k{id} + i);"),
                };
            } else if self.varies(id) {
                self.node(id, tail);
            }
            if keep.contains(&id) {
                let _ = match self.form.keep {
                    Keep::Registers(_) => writeln!(self.out, "k{id}[u] = v{id};"),
                    _ => writeln!(self.out, "STOREN(v{id}, k{id} + i);"),
                };
            }
        }
    }

    /// Emits values that are constant along a row and known before pass `pass`.
    pub fn uniform(&mut self, pass: usize) {
        for id in self.all.clone() {
            let reduced = self.job.computes(self.nodes, id) || self.job.is_column(self.nodes, id);
            if !self.varies(id) && self.pass(id) == pass && !reduced {
                self.node(id, false);
            }
        }
        let divisors: Vec<usize> = self.all.iter().filter_map(|id| self.divisor(*id)).collect();
        for id in self.all.clone() {
            if divisors.contains(&id) && self.pass(id) == pass {
                let _ = writeln!(
                    self.out,
                    "const FV d{id} = (FV)(DIVISOR_SCALE(FIRST(v{id}))), r{id} = 1.0f / (v{id} * d{id});"
                );
            }
        }
    }

    pub fn store(&mut self, roots: &[usize], tail: bool) {
        let at = match self.form.outer {
            Some(_) if self.job.below > 0 => "(row / parts * deep + down) * inner + i",
            Some(_) => "row * inner + i",
            None => "i",
        };
        for id in roots {
            let Some(y) = self.job.outputs.iter().position(|o| o == id) else { continue };
            let code = self.form.outputs[y].code();
            let _ = match tail {
                false => writeln!(self.out, "SV{code}(y{y}, {at}, v{id});"),
                true => writeln!(
                    self.out,
                    "{{ float part[VW]; STOREN(v{id}, part); for (int k = 0; k < lanes; k++) S1{code}(y{y}, {at} + k, part[k]); }}"
                ),
            };
        }
    }

    /// Emits a loop over vectors, then the remaining elements.
    fn element_loop(&mut self, end: &str) {
        let outputs = self.job.outputs.clone();
        let _ = writeln!(self.out, "for (; i + VW <= {end}; i += step) {{\nconst int lanes = VW;");
        self.body(&outputs, &[], false);
        self.store(&outputs, false);
        self.out += "}\n";
        if !self.form.whole {
            let _ = writeln!(self.out, "if (i < {end}) {{\nconst int lanes = (int)({end} - i);");
            self.body(&outputs, &[], true);
            self.store(&outputs, true);
            self.out += "}\n";
        }
    }

    fn flat(&mut self) {
        self.out += "ITEM_RANGE\n";
        self.uniform(0);
        self.out += "ulong i = begin;\n";
        self.element_loop("end");
    }

    fn rows(&mut self) {
        self.out += "FOR_ROWS(row, rows, 1) {\n";
        self.offsets();
        self.uniform(0);
        self.out += "ulong i = get_global_id(0) * VW;\nconst ulong step = get_global_size(0) * VW;\n";
        self.element_loop("inner");
        self.out += "}\n";
    }
}
