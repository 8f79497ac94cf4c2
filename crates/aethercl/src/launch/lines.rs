//! Maps counters of instructions to source lines.

use crate::counters::{LineCounters, Tally};
use crate::exec::bytecode::Code;
use crate::program::Program;
use crate::source::Span;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns counters of all executed lines, ordered by file and line. Code from a macro counts for the line that uses the macro.
pub fn lines(program: &Program, code: &Code, tallies: &[Tally]) -> Vec<LineCounters> {
    let sources = &program.hir().sources;
    let mut found: BTreeMap<(String, u32), Tally> = BTreeMap::new();
    let written = |span: &&Span| **span != Span::default();
    // Instructions without a source position, such as the end of a kernel, count for the preceding line.
    let mut last = code.spans.iter().find(written).copied().unwrap_or_default();
    for (span, tally) in code.spans.iter().zip(tallies) {
        last = if written(&span) { *span } else { last };
        if tally.executions == 0 {
            continue;
        }
        let place = sources.locate(sources.outermost(last));
        let line = found.entry((place.file, place.line)).or_default();
        let most = line.executions.max(tally.executions);
        line.add(tally);
        line.executions = most;
    }
    let mut names: Vec<Arc<str>> = Vec::new();
    let mut out = Vec::with_capacity(found.len());
    for ((file, line), tally) in found {
        if names.last().is_none_or(|last| **last != *file) {
            names.push(file.into());
        }
        if let Some(file) = names.last() {
            out.push(LineCounters { file: Arc::clone(file), line, tally });
        }
    }
    out
}
