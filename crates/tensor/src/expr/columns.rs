//! Source of a kernel that reduces axes in the middle or in front. Each work-item has `CHUNK` neighboring columns and processes the rows of
//! its part in order, `DEEP` at a time, so that memory is read contiguously. Other results of the same elements are written in the same
//! walk.

use super::emit::{Emitter, KernelLayout};
use super::node::{NodeKind, Nodes, ReductionKind};
use super::plan::FusedKernel;
use std::fmt::Write as _;

/// Generates the kernel's source, with `NAME` for its name. Reductions are (rows, parts, inner) in f32.
pub(super) fn text(nodes: &Nodes, job: &FusedKernel, form: &KernelLayout) -> String {
    let mut emitter = Emitter::new(nodes, job, form);
    let reductions: Vec<(usize, ReductionKind, usize)> = job
        .outputs
        .iter()
        .filter_map(|id| match nodes.kind(*id) {
            NodeKind::Reduce(how, _) => Some((*id, how, nodes.all[*id].args[0])),
            _ => None,
        })
        .collect();
    let head = format!("__kernel void NAME({}) {{\n", emitter.parameters());
    emitter.out += &head;
    emitter.out += "FOR_ROWS(row, rows * parts, 1) {\n";
    emitter.offsets();
    emitter.out += "const ulong first = row % parts * per, last = min(deep, first + per);\n";
    emitter.out += "for (ulong c = get_global_id(0) * CHUNK; c < inner; c += get_global_size(0) * CHUNK) {\n";
    for (id, how, _) in &reductions {
        let start = if *how == ReductionKind::Sum { "0.0f" } else { "-INFINITY" };
        let _ = writeln!(
            emitter.out,
            "FV s{id}[CHUNK / VW]; for (uint u = 0; u < CHUNK / VW; u++) s{id}[u] = (FV)({start});"
        );
        if *how == ReductionKind::Max {
            let _ = writeln!(
                emitter.out,
                "UV q{id}[CHUNK / VW]; for (uint u = 0; u < CHUNK / VW; u++) q{id}[u] = (UV)(0u);"
            );
        }
    }
    for (i, (dtype, _)) in form.leaves.iter().enumerate() {
        if !emitter.still(i) {
            continue;
        }
        let _ = writeln!(emitter.out, "const FV h{i} = IN_V{}(p{i} + a{i}, c);", dtype.code());
    }
    emitter.out += "ulong r = first;\nfor (; DEEP > 1 && r + DEEP <= last; r += DEEP)\nUNROLL for (uint next = 0; next < DEEP; next++) {\n";
    walked(&mut emitter, &reductions, "(r + next)");
    emitter.out += "}\nfor (; r < last; r++) {\n";
    walked(&mut emitter, &reductions, "r");
    emitter.out += "}\n";
    stored(&mut emitter, &reductions);
    emitter.out += "}\n}\n}\n";
    emitter.out
}

/// Emits the loop over the columns' elements of one row.
fn walked(emitter: &mut Emitter<'_>, reductions: &[(usize, ReductionKind, usize)], row: &str) {
    let _ = write!(emitter.out, "const ulong down = {row}; ");
    for i in 0..emitter.form.leaves.len() {
        let _ = write!(emitter.out, "const ulong b{i} = a{i} + down * q{i}; ");
    }
    emitter.uniform(0);
    emitter.out += "for (uint u = 0; u < CHUNK / VW; u++) {\nconst ulong i = c + (ulong)u * VW;\nif (i >= inner) break;\n";
    emitter.out += if emitter.form.whole { "{\n" } else { "if (i + VW <= inner) {\n" };
    taken(emitter, reductions, false);
    if !emitter.form.whole {
        emitter.out += "} else {\n";
        taken(emitter, reductions, true);
    }
    emitter.out += "}\n}\n";
}

fn taken(emitter: &mut Emitter<'_>, reductions: &[(usize, ReductionKind, usize)], tail: bool) {
    emitter.out += if tail { "const int lanes = (int)(inner - i);\n" } else { "const int lanes = VW;\n" };
    let is_reduction = |id: &usize| reductions.iter().any(|r| r.0 == *id);
    let whole: Vec<usize> = emitter.job.outputs.iter().copied().filter(|id| !is_reduction(id)).collect();
    let roots: Vec<usize> = reductions.iter().map(|r| r.2).chain(whole.iter().copied()).collect();
    emitter.body(&roots, &[], tail);
    emitter.store(&whole, tail);
    for (id, how, arg) in reductions {
        let _ = match how {
            ReductionKind::Sum => writeln!(emitter.out, "s{id}[u] += v{arg};"),
            ReductionKind::Max => writeln!(emitter.out, "TAKE_MAX(s{id}[u], q{id}[u], v{arg})"),
        };
    }
}

fn stored(emitter: &mut Emitter<'_>, reductions: &[(usize, ReductionKind, usize)]) {
    emitter.out += "for (uint u = 0; u < CHUNK / VW; u++) {\nconst ulong i = c + (ulong)u * VW;\nif (i >= inner) break;\n";
    for (id, how, _) in reductions {
        let Some(y) = emitter.job.outputs.iter().position(|output| output == id) else { continue };
        let _ = match how {
            ReductionKind::Sum => writeln!(emitter.out, "const FV v{id} = s{id}[u];"),
            // A maximum that is NaN is restored from the collected NaN bits.
            ReductionKind::Max => writeln!(
                emitter.out,
                "const FV v{id} = AS_FV(q{id}[u]) == AS_FV(q{id}[u]) ? s{id}[u] : (FV)(NAN);"
            ),
        };
        let _ = match emitter.form.whole {
            true => writeln!(emitter.out, "SV0(y{y}, row * inner + i, v{id});"),
            false => writeln!(
                emitter.out,
                "{{ float part[VW]; STOREN(v{id}, part); for (int k = 0; k < VW && i + k < inner; k++) y{y}[row * inner + i + k] = part[k]; }}"
            ),
        };
    }
    emitter.out += "}\n";
}
