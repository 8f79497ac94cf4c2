//! Kernels that reduce rows: the passes over a row, the values kept between passes, and column sums in the same kernel.

use super::{Emitter, Keep, MAX_KEPT_ROW};
use crate::expr::node::{NodeKind, ReductionKind};
use netcl_kernel::generate::Step;
use std::fmt::Write as _;

/// Largest number of values per element that are kept in memory.
const KEPT_VALUES: usize = 4;

impl Emitter<'_> {
    pub(super) fn row_passes(&mut self) {
        let sites = self.all.iter().filter(|id| self.job.computes(self.nodes, **id)).count().max(1);
        let _ = writeln!(self.out, "ROW_SCRATCH(scratch, {sites});");
        self.begin_columns();
        self.read_still();
        for i in self.loaded_ahead() {
            let _ = writeln!(
                self.out,
                "FV n{i}[HELD]; UNROLL for (uint u = 0; u < HELD; u++) n{i}[u] = (FV)(0.0f);"
            );
        }
        self.load_row("get_group_id(0) < rows", |i| format!("o{i} + get_group_id(0) * t{i}_0"));
        self.out += "GROUP_ROWS(row, rows * parts) {\n";
        self.out += match self.in_parts() {
            true => "const ulong begin = row % parts * per, end = max(begin, min(inner, begin + per));\n",
            false => "const ulong begin = 0, end = inner;\n",
        };
        self.offsets();
        for i in self.loaded_ahead() {
            let _ = writeln!(
                self.out,
                "FV f{i}[HELD]; UNROLL for (uint u = 0; u < HELD; u++) f{i}[u] = n{i}[u];"
            );
        }
        self.load_row("row + get_num_groups(0) < rows", |i| format!("a{i} + get_num_groups(0) * t{i}_0"));
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
        self.out += "}\nROW_DONE\n}\n";
        self.end_columns();
    }

    /// Reads the elements that are the same for every row.
    fn read_still(&mut self) {
        for i in 0..self.form.leaves.len() {
            if !self.still(i) {
                continue;
            }
            let code = self.form.leaves[i].0.code();
            let _ = writeln!(
                self.out,
                "FV h{i}[HELD]; UNROLL for (uint u = 0; u < HELD; u++) {{\n\
                 const ulong i = (get_local_id(0) + (ulong)u * WG) * VW;\nif (i < inner) h{i}[u] = IN_V{code}(p{i} + o{i}, i);\n}}"
            );
        }
    }

    /// Initializes the column sums over a work-group's rows. They are in registers if each work-item keeps its vectors of a row. Otherwise
    /// they are in the memory of the result, which stays in a near cache.
    fn begin_columns(&mut self) {
        for (y, id) in self.job.outputs.clone().into_iter().enumerate() {
            if !self.job.is_column(self.nodes, id) {
                continue;
            }
            let _ = match self.form.keep {
                Keep::Registers(_) => {
                    writeln!(
                        self.out,
                        "FV t{id}[HELD]; UNROLL for (uint u = 0; u < HELD; u++) t{id}[u] = (FV)(0.0f);"
                    )
                }
                _ => writeln!(
                    self.out,
                    "__global float *t{id} = y{y} + get_group_id(0) * inner;\n\
                     for (ulong i = get_local_id(0) * VW; i < inner; i += WG * VW)\n\
                     for (ulong k = i; k < min(i + VW, inner); k++) t{id}[k] = 0.0f;"
                ),
            };
        }
    }

    /// Adds the elements of vector `u`, at index `i`, to their column sums.
    fn add_to_columns(&mut self, pass: usize, tail: bool) {
        for id in self.columns(pass) {
            let arg = self.nodes.all[id].args[0];
            let _ = match (self.form.keep, tail) {
                (Keep::Registers(_), _) => writeln!(self.out, "t{id}[u] += v{arg};"),
                (_, false) => writeln!(self.out, "STV_F32(t{id} + i, LDV_F32(t{id} + i) + v{arg});"),
                (_, true) => writeln!(
                    self.out,
                    "{{ float part[VW]; STOREN(v{arg}, part); for (int k = 0; k < lanes; k++) t{id}[i + k] += part[k]; }}"
                ),
            };
        }
    }

    fn end_columns(&mut self) {
        if !matches!(self.form.keep, Keep::Registers(_)) {
            return;
        }
        for (y, id) in self.job.outputs.clone().into_iter().enumerate() {
            if self.job.is_column(self.nodes, id) {
                let _ = writeln!(
                    self.out,
                    "UNROLL for (uint u = 0; u < HELD; u++) {{\nconst ulong i = (get_local_id(0) + (ulong)u * WG) * VW;\n\
                     if (i < inner) SV0(y{y}, get_group_id(0) * inner + i, t{id}[u]);\n}}"
                );
            }
        }
    }

    /// Selects the values of a pass to keep for later passes. These are costly functions. In registers, they are also the values from which
    /// later passes start, or the elements if there are fewer of those.
    fn worth_keeping(&self, pass: usize, roots: &[usize]) -> Vec<usize> {
        let (most, elements) = match self.form.keep {
            Keep::Nothing => return Vec::new(),
            Keep::Memory => (KEPT_VALUES, false),
            Keep::Registers(most) => (most, true),
        };
        let begins = self.begins(pass, roots);
        let read_again = self.elements_worth_keeping(pass, roots, (most, elements));
        match elements && begins.len() <= read_again.len().max(1).min(most) {
            true => begins.into_iter().filter(|id| !self.kept.contains(id)).collect(),
            false => read_again,
        }
    }

    /// Returns the elementwise values known after a pass from which nodes of later passes are computed.
    fn begins(&self, pass: usize, roots: &[usize]) -> Vec<usize> {
        let known = [self.cone(roots, &self.kept), self.kept.clone()].concat();
        let still = |id: usize| self.leaf(id).is_some_and(|i| self.still(i));
        let known = |id: usize| self.varies(id) && known.contains(&id) && !still(id);
        let later: Vec<usize> = (pass + 1..=self.passes()).flat_map(|p| self.roots(p)).collect();
        let cone = self.nodes.cone(&later, |id| self.job.reads(self.nodes, id) || known(id));
        cone.into_iter().filter(|id| known(*id)).collect()
    }

    fn elements_worth_keeping(
        &self,
        pass: usize,
        roots: &[usize],
        (most, elements): (usize, bool),
    ) -> Vec<usize> {
        let read = |id: usize| self.leaf(id).is_some_and(|i| !self.still(i));
        let worth = |id: usize| self.nodes.kind(id).is_costly() || elements && read(id);
        let new = |id: &usize| self.varies(*id) && !self.kept.contains(id) && worth(*id);
        let new: Vec<usize> = self.cone(roots, &self.kept).into_iter().filter(new).collect();
        let later: Vec<usize> = (pass + 1..=self.passes()).flat_map(|p| self.roots(p)).collect();
        let known = [self.kept.as_slice(), &new].concat();
        let needed = self.cone(&later, &known);
        let room = most.saturating_sub(self.kept.len());
        // Values computed last are the most expensive.
        new.into_iter().rev().filter(|id| needed.contains(id)).take(room).collect()
    }

    /// Returns the reductions of a pass with their arguments.
    fn reductions(&self, pass: usize) -> Vec<(usize, ReductionKind, usize)> {
        let computed = self.all.iter().filter(|id| self.job.computes(self.nodes, **id));
        let parts = computed.filter_map(|id| match self.nodes.kind(*id) {
            NodeKind::Reduce(how, _) => Some((*id, how, self.nodes.all[*id].args[0])),
            _ => None,
        });
        parts.filter(|(_, _, arg)| self.pass(*arg) == pass).collect()
    }

    /// Returns the outputs with one value per element that a pass writes.
    fn outputs(&self, pass: usize) -> Vec<usize> {
        let whole = |id: usize| !self.job.is_row(self.nodes, id) && !self.job.is_column(self.nodes, id);
        self.job.outputs.iter().copied().filter(|id| whole(*id) && self.pass(*id) == pass).collect()
    }

    /// Returns the column sums whose arguments a pass computes.
    fn columns(&self, pass: usize) -> Vec<usize> {
        let all = self.job.columns(self.nodes).into_iter();
        all.filter(|id| self.pass(self.nodes.all[*id].args[0]) == pass).collect()
    }

    fn roots(&self, pass: usize) -> Vec<usize> {
        let columns = self.columns(pass).into_iter().map(|id| self.nodes.all[id].args[0]);
        self.reductions(pass).iter().map(|r| r.2).chain(self.outputs(pass)).chain(columns).collect()
    }

    /// Returns the number of accumulators per reduction in a pass. A short body waits for its last addition, a long one does not.
    fn accumulators(&self, roots: &[usize]) -> usize {
        let nodes = self.cone(roots, &self.kept);
        let costly = nodes.iter().any(|id| !self.kept.contains(id) && self.nodes.kind(*id).is_costly());
        match nodes.len() {
            _ if costly || matches!(self.form.keep, Keep::Registers(_)) => 1,
            0..=5 => 4,
            6..=10 => 2,
            _ => 1,
        }
    }

    /// Emits one walk along a row: the reductions whose arguments are known, and the outputs.
    fn row_pass(&mut self, pass: usize) {
        let reductions = self.reductions(pass);
        let outputs = self.outputs(pass);
        let mut roots = self.roots(pass);
        if roots.is_empty() {
            return;
        }
        let mut keep = self.worth_keeping(pass, &roots);
        if pass == 0
            && let Some((with, kept)) = self.read_early(&roots)
        {
            (roots, keep) = (with, kept);
        }
        for id in &keep {
            let _ = match self.form.keep {
                Keep::Registers(_) => writeln!(self.out, "FV k{id}[HELD];"),
                _ => writeln!(self.out, "float k{id}[{MAX_KEPT_ROW} + VW];"),
            };
        }
        let count = if reductions.is_empty() { 1 } else { self.accumulators(&roots) };
        for (id, how, _) in &reductions {
            let start = if *how == ReductionKind::Sum { "0.0f" } else { "-INFINITY" };
            let all = vec![format!("(FV)({start})"); count].join(", ");
            let _ = writeln!(self.out, "FV s{id}[{count}] = {{{all}}}; float e{id} = {start};");
            if *how == ReductionKind::Max {
                let _ = writeln!(self.out, "UV q{id} = (UV)(0u); uint n{id} = 0;");
            }
        }
        self.vectors(count);
        self.ahead(pass);
        self.body(&roots, &keep, false);
        self.store(&outputs, false);
        let at = if count > 1 { "u" } else { "0" };
        for (id, how, arg) in &reductions {
            let _ = match how {
                ReductionKind::Sum => writeln!(self.out, "s{id}[{at}] += v{arg};"),
                ReductionKind::Max => writeln!(self.out, "TAKE_MAX(s{id}[{at}], q{id}, v{arg})"),
            };
        }
        self.add_to_columns(pass, false);
        self.out += "}\n}\n";
        if !self.form.whole {
            self.out += "{\nconst ulong i = begin + (end - begin) / VW * VW;\n";
            self.out += "if (i < end && (end - begin) / VW % WG == get_local_id(0)) {\nconst int lanes = (int)(end - i);\n";
            self.body(&roots, &keep, true);
            self.store(&outputs, true);
            self.rest(&reductions);
            self.add_to_columns(pass, true);
            self.out += "}\n}\n";
        }
        self.kept.extend(keep);
        self.joined(&reductions, count);
    }

    /// Returns the leaves to prefetch: a kernel with column sums loads the next row's elements while it processes the current row. Its
    /// work-groups have many rows each, and each row waits for its own sums.
    pub(super) fn loaded_ahead(&self) -> Vec<usize> {
        let many = self.job.columns > 0
            && self.form.outer == Some(1)
            && matches!(self.form.keep, Keep::Registers(_));
        let unit = |i: &usize| many && self.form.leaves[*i].1 == Step::Unit && !self.still(*i);
        (0..self.form.leaves.len()).filter(unit).collect()
    }

    /// Loads a row's vectors into `n0`, `n1`, … if the row exists. `behind` returns the row's offset in leaf `i`.
    fn load_row(&mut self, there: &str, behind: impl Fn(usize) -> String) {
        let leaves = self.loaded_ahead();
        if leaves.is_empty() {
            return;
        }
        let _ = writeln!(
            self.out,
            "if ({there}) UNROLL for (uint u = 0; u < HELD; u++) {{\n\
             const ulong i = (get_local_id(0) + (ulong)u * WG) * VW;\nif (i < inner) {{"
        );
        for i in leaves {
            let code = self.form.leaves[i].0.code();
            let _ = writeln!(self.out, "n{i}[u] = IN_V{code}(p{i} + {}, i);", behind(i));
        }
        self.out += "}\n}\n";
    }

    /// Prefetches the next row's elements during the current row. On CPUs, the first pass waits for memory, and the later passes leave
    /// memory idle.
    fn ahead(&mut self, pass: usize) {
        if pass != 1 || self.form.keep != Keep::Memory || self.form.outer != Some(1) {
            return;
        }
        for id in self.cone(&self.roots(0), &[]) {
            if let Some(i) = self.leaf(id).filter(|i| self.form.leaves[*i].1 == Step::Unit) {
                let _ = writeln!(self.out, "AHEAD(p{i} + a{i} + t{i}_0 + i);");
            }
        }
    }

    /// Emits the head of the loop over a work-item's vectors, `count` at a time.
    fn vectors(&mut self, count: usize) {
        self.out += &match (self.form.keep, count) {
            (Keep::Registers(_), _) => {
                "UNROLL for (uint u = 0; u < HELD; u++) {\nconst ulong i = (get_local_id(0) + (ulong)u * WG) * VW;\nif (i < end) {\n".to_owned()
            }
            (_, 1) => "for (ulong i = begin + get_local_id(0) * VW; i + VW <= end; i += WG * VW) {\n{\n".to_owned(),
            _ => format!(
                "for (ulong b = begin + get_local_id(0) * VW; b + VW <= end; b += {count} * WG * VW) {{\n\
                 UNROLL for (uint u = 0; u < {count}; u++) {{\nconst ulong i = b + (ulong)u * WG * VW;\nif (i + VW > end) break;\n"
            ),
        };
        self.out += "const int lanes = VW;\n";
    }

    /// Returns the roots of the first pass, including elements that only later passes need, and which of them are kept. All elements of a
    /// row are requested before anything waits for a reduction. `None` if the registers do not suffice.
    fn read_early(&self, roots: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
        let Keep::Registers(most) = self.form.keep else { return None };
        let later: Vec<usize> = (1..=self.passes()).flat_map(|pass| self.roots(pass)).collect();
        let unit =
            |id: usize| self.leaf(id).is_some_and(|i| self.form.leaves[i].1 == Step::Unit && !self.still(i));
        let elements = self.cone(&later, &[]).into_iter().filter(|id| unit(*id));
        let with: Vec<usize> = roots.iter().copied().chain(elements).collect();
        let keep = self.begins(0, &with);
        (keep.len() <= most).then_some((with, keep))
    }

    /// Emits the results of a pass's reductions from the accumulators of all work-items. Sums are combined in pairs.
    fn joined(&mut self, reductions: &[(usize, ReductionKind, usize)], count: usize) {
        let share = |id: usize, how: ReductionKind| {
            let mut parts: Vec<String> = (0..count).map(|u| format!("s{id}[{u}]")).collect();
            while parts.len() > 1 {
                let join = |pair: &[String]| match (how, pair) {
                    (ReductionKind::Sum, [a, b]) => format!("({a} + {b})"),
                    (ReductionKind::Max, [a, b]) => format!("JOIN_MAX({a}, {b})"),
                    (_, rest) => rest.concat(),
                };
                parts = parts.chunks(2).map(join).collect();
            }
            parts.concat()
        };
        let of = |wanted: ReductionKind| reductions.iter().filter(move |r| r.1 == wanted).map(|r| r.0);
        for id in of(ReductionKind::Max) {
            let (site, all) = (self.site(), share(id, ReductionKind::Max));
            let _ = writeln!(
                self.out,
                "ROW_MAX(m{id}, scratch, {site}, {all}, q{id}, e{id}, n{id})\nconst FV v{id} = (FV)(m{id});"
            );
        }
        let sums: Vec<usize> = of(ReductionKind::Sum).collect();
        for pair in sums.chunks(2) {
            let (site, a) = (self.site(), share(pair[0], ReductionKind::Sum));
            let _ = match pair {
                [x, y] => {
                    let b = share(*y, ReductionKind::Sum);
                    writeln!(
                        self.out,
                        "const float2 w{x} = ROW_SUM_2(scratch, {site}, {a}, e{x}, {b}, e{y});\n\
                         const FV v{x} = (FV)(w{x}.x), v{y} = (FV)(w{x}.y);"
                    )
                }
                _ => {
                    let id = pair[0];
                    writeln!(self.out, "const FV v{id} = (FV)(ROW_SUM(scratch, {site}, {a}, e{id}));")
                }
            };
        }
    }

    /// Returns the slot of the next reduction in the kernel's local memory.
    fn site(&mut self) -> usize {
        self.sites += 1;
        self.sites - 1
    }

    /// Adds the elements after the last whole vector to the reductions one by one.
    fn rest(&mut self, reductions: &[(usize, ReductionKind, usize)]) {
        for (id, how, arg) in reductions {
            let add = match how {
                ReductionKind::Sum => format!("e{id} += part[k];"),
                ReductionKind::Max => format!("TAKE_MAX_1(e{id}, n{id}, part[k])"),
            };
            let _ = writeln!(
                self.out,
                "{{ float part[VW]; STOREN(v{arg}, part); for (int k = 0; k < lanes; k++) {add} }}"
            );
        }
    }
}
