//! The text of a kernel.
//!
//! A kernel without reductions is a loop over elements. One with reductions takes a row in passes: a pass computes those whose
//! arguments need no others than the passes before gave. What is the same for a whole row is computed between passes.

use super::node::{Kind, Nodes, Reduction};
use super::plan::Job;
use crate::DType;
use crate::ops::map::places;
use netcl_kernel::generate::Step;
use std::collections::HashMap;
use std::fmt::Write as _;

/// How the operands of a kernel lie: what its text depends on beside the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Storage type and step along a row for each leaf.
    pub leaves: Vec<(DType, Step)>,
    /// Storage types of the outputs.
    pub outputs: Vec<DType>,
    /// Axes before the row; `None` for one loop over all elements.
    pub outer: Option<usize>,
    /// Rows are of at most [`KEPT`] elements and one work-item's own: what is costly and needed in several passes is kept.
    pub keep: bool,
}

/// Elements of a row that is kept between passes, 16 KiB each time: it stays in the first cache.
pub(super) const KEPT: usize = 4096;
/// Values of a row's elements that are kept at most.
const KEPT_VALUES: usize = 4;

struct Emitter<'a> {
    nodes: &'a Nodes,
    job: &'a Job,
    form: &'a Form,
    /// For each node of the kernel: the pass it is computed in, and whether it differs along a row.
    about: HashMap<usize, (usize, bool)>,
    all: Vec<usize>,
    /// Nodes whose values for the row are in private memory.
    kept: Vec<usize>,
    out: String,
}

/// The kernel as text, with `NAME` for its name.
pub(super) fn text(nodes: &Nodes, job: &Job, form: &Form) -> String {
    let all = job.cone(nodes, &job.outputs);
    let mut emitter =
        Emitter { nodes, job, form, about: HashMap::new(), all, kept: Vec::new(), out: String::new() };
    emitter.classify();
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

/// An expression with names in the place of its `x0`, `x1`, … and `s0`, `s1`.
fn filled(text: &str, names: &[String], scalars: [f32; 2]) -> String {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        found.extend(places(text, i).map(|at| (at, name.clone())));
    }
    let as_scalars = text.replace('x', "#").replace('s', "x");
    for (i, value) in scalars.into_iter().enumerate() {
        found.extend(places(&as_scalars, i).map(|at| (at, literal(value))));
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

impl Emitter<'_> {
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

    /// In the order that `run` binds them: inputs with their offsets, outputs, sizes, strides.
    fn parameters(&self) -> String {
        let mut out = String::new();
        for (i, (dtype, _)) in self.form.leaves.iter().enumerate() {
            let _ = write!(out, "__global const {} *p{i}, ulong o{i}, ", dtype.c_type());
        }
        for (i, dtype) in self.form.outputs.iter().enumerate() {
            let _ = write!(out, "__global {} *y{i}, ", dtype.c_type());
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
        if self.job.reduced > 0 {
            out += ", ulong parts, ulong per";
        }
        out
    }

    /// Where the row begins in each input.
    fn offsets(&mut self) {
        let count = self.form.leaves.len();
        for i in 0..count {
            let _ = write!(self.out, "ulong a{i} = o{i}; ");
        }
        let Some(outer) = self.form.outer.filter(|n| *n > 0) else { return };
        let row = if self.job.reduced > 0 { "row / parts" } else { "row" };
        let _ = write!(self.out, "{{ ulong q = {row}; ");
        for d in (0..outer).rev() {
            let _ = write!(self.out, "{{ const ulong c = q % d{d}; q /= d{d}; ");
            for i in 0..count {
                let _ = write!(self.out, "a{i} += c * t{i}_{d}; ");
            }
            self.out += "} ";
        }
        self.out += "}\n";
    }

    fn base(&self) -> &'static str {
        if self.form.outer.is_some() { "a" } else { "o" }
    }

    /// Computes node `id`; `tail` for what lies behind the last whole vector.
    fn node(&mut self, id: usize, tail: bool) {
        let node = &self.nodes.all[id];
        if let Some(i) = self.leaf(id) {
            let ((dtype, step), base) = (self.form.leaves[i], self.base());
            let code = dtype.code();
            let _ = match (step, tail) {
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
            (Kind::Const(bits), _) => literal(f32::from_bits(bits)),
            (Kind::Cast(dtype), _) => format!("ROUNDED{}({})", dtype.code(), names[0]),
            (kind, Some(text)) => filled(text, &names, kind.scalars()),
            _ => names[0].clone(),
        };
        let _ = writeln!(self.out, "const FV v{id} = (FV)({value});");
    }

    /// The nodes of a loop for `roots`: behind what is kept nothing is computed again.
    fn cone(&self, roots: &[usize], kept: &[usize]) -> Vec<usize> {
        self.nodes.cone(roots, |id| self.job.reads(self.nodes, id) || kept.contains(&id))
    }

    /// What is computed in the loop of a pass for `roots`, without what is the same for the row. `keep` is kept for later passes.
    fn body(&mut self, roots: &[usize], keep: &[usize], tail: bool) {
        for id in self.cone(roots, &self.kept) {
            if self.kept.contains(&id) {
                let _ = writeln!(self.out, "const FV v{id} = LOADN(k{id} + i);");
            } else if self.varies(id) {
                self.node(id, tail);
            }
            if keep.contains(&id) {
                let _ = writeln!(self.out, "STOREN(v{id}, k{id} + i);");
            }
        }
    }

    /// What of a pass is worth keeping: costly functions that later passes need.
    fn worth_keeping(&self, pass: usize, roots: &[usize]) -> Vec<usize> {
        if !self.form.keep {
            return Vec::new();
        }
        let new = |id: &usize| self.varies(*id) && !self.kept.contains(id) && is_costly(self.nodes.kind(*id));
        let costly: Vec<usize> = self.cone(roots, &self.kept).into_iter().filter(new).collect();
        let later: Vec<usize> = (pass + 1..=self.passes()).flat_map(|p| self.roots(p)).collect();
        let known = [self.kept.as_slice(), &costly].concat();
        let needed = self.cone(&later, &known);
        let room = KEPT_VALUES - self.kept.len();
        costly.into_iter().filter(|id| needed.contains(id)).take(room).collect()
    }

    /// What is the same for a row and known before pass `pass`.
    fn uniform(&mut self, pass: usize) {
        for id in self.all.clone() {
            if !self.varies(id) && self.pass(id) == pass && !self.job.computes(self.nodes, id) {
                self.node(id, false);
            }
        }
    }

    fn store(&mut self, roots: &[usize], tail: bool) {
        let at = if self.form.outer.is_some() { "row * inner + i" } else { "i" };
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

    /// Vectors, then what is left.
    fn element_loop(&mut self, end: &str) {
        let outputs = self.job.outputs.clone();
        let _ = writeln!(self.out, "for (; i + VW <= {end}; i += step) {{\nconst int lanes = VW;");
        self.body(&outputs, &[], false);
        self.store(&outputs, false);
        let _ = writeln!(self.out, "}}\nif (i < {end}) {{\nconst int lanes = (int)({end} - i);");
        self.body(&outputs, &[], true);
        self.store(&outputs, true);
        self.out += "}\n";
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

    fn row_passes(&mut self) {
        self.out += "GROUP_SCRATCH(scratch);\nGROUP_ROWS(row, rows * parts) {\n";
        self.out += "const ulong begin = row % parts * per, end = min(inner, begin + per);\n";
        self.offsets();
        for pass in 0..=self.passes() {
            self.uniform(pass);
            self.row_pass(pass);
        }
        self.out += "if (get_local_id(0) == 0) {\n";
        for (y, id) in self.job.outputs.clone().into_iter().enumerate() {
            if self.job.is_row(self.nodes, id) {
                let code = self.form.outputs[y].code();
                let _ = writeln!(self.out, "S1{code}(y{y}, row, FIRST(v{id}));");
            }
        }
        self.out += "}\n}\n";
    }

    /// The reductions of a pass with their arguments.
    fn reductions(&self, pass: usize) -> Vec<(usize, Reduction, usize)> {
        let computed = self.all.iter().filter(|id| self.job.computes(self.nodes, **id));
        let parts = computed.filter_map(|id| match self.nodes.kind(*id) {
            Kind::Reduce(how, _) => Some((*id, how, self.nodes.all[*id].args[0])),
            _ => None,
        });
        parts.filter(|(_, _, arg)| self.pass(*arg) == pass).collect()
    }

    /// The outputs with a value for each element that a pass writes.
    fn outputs(&self, pass: usize) -> Vec<usize> {
        let full = |id: &usize| !self.job.is_row(self.nodes, *id) && self.pass(*id) == pass;
        self.job.outputs.iter().copied().filter(full).collect()
    }

    fn roots(&self, pass: usize) -> Vec<usize> {
        self.reductions(pass).iter().map(|r| r.2).chain(self.outputs(pass)).collect()
    }

    /// One walk along a row: the reductions whose arguments are known, and the outputs.
    fn row_pass(&mut self, pass: usize) {
        let (reductions, outputs, roots) = (self.reductions(pass), self.outputs(pass), self.roots(pass));
        if roots.is_empty() {
            return;
        }
        let keep = self.worth_keeping(pass, &roots);
        for id in &keep {
            let _ = writeln!(self.out, "float k{id}[{KEPT} + VW];");
        }
        for (id, how, _) in &reductions {
            let start = if *how == Reduction::Sum { "0.0f" } else { "-INFINITY" };
            let _ = writeln!(self.out, "FV s{id} = (FV)({start}); float e{id} = {start};");
        }
        self.out += "{\nulong i = begin + get_local_id(0) * VW;\nfor (; i + VW <= end; i += WG * VW) {\nconst int lanes = VW;\n";
        self.body(&roots, &keep, false);
        self.store(&outputs, false);
        for (id, how, arg) in &reductions {
            let _ = match how {
                Reduction::Sum => writeln!(self.out, "s{id} += v{arg};"),
                Reduction::Max => writeln!(self.out, "s{id} = larger(s{id}, v{arg});"),
            };
        }
        self.out += "}\nif (i < end) {\nconst int lanes = (int)(end - i);\n";
        self.body(&roots, &keep, true);
        self.store(&outputs, true);
        self.rest(&reductions);
        self.out += "}\n}\n";
        self.kept.extend(keep);
        for (id, how, _) in &reductions {
            let _ = match how {
                Reduction::Sum => {
                    writeln!(self.out, "const FV v{id} = (FV)(ROW_SUM(scratch, s{id}, e{id}));")
                }
                Reduction::Max => {
                    writeln!(self.out, "ROW_MAX(m{id}, scratch, s{id}, e{id})\nconst FV v{id} = (FV)(m{id});")
                }
            };
        }
    }

    /// The lanes behind the last whole vector go into the reductions one by one.
    fn rest(&mut self, reductions: &[(usize, Reduction, usize)]) {
        for (id, how, arg) in reductions {
            let add = match how {
                Reduction::Sum => format!("e{id} += part[k];"),
                Reduction::Max => format!("e{id} = LARGER_1(e{id}, part[k]);"),
            };
            let _ = writeln!(
                self.out,
                "{{ float part[VW]; STOREN(v{arg}, part); for (int k = 0; k < lanes; k++) {add} }}"
            );
        }
    }
}

/// Whether computing a value again costs more than reading it from the first cache.
fn is_costly(kind: Kind) -> bool {
    const FUNCTIONS: [&str; 10] =
        ["EXP", "exp", "log", "pow", "sin(", "cos(", "tanh", "sigmoid", "silu", "gelu"];
    kind.text().is_some_and(|text| FUNCTIONS.iter().any(|name| text.contains(name)))
}
