//! From what each instruction did to what each source line did.

use crate::counters::{LineCounters, Tally};
use crate::exec::bytecode::Code;
use crate::program::Program;
use crate::source::Span;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lines that executed something, in the order of file and line. What came out of a macro counts for the line that uses it.
pub fn lines(program: &Program, code: &Code, tallies: &[Tally]) -> Vec<LineCounters> {
    let sources = &program.hir().sources;
    let mut found: BTreeMap<(String, u32), Tally> = BTreeMap::new();
    let written = |span: &&Span| **span != Span::default();
    // What stands for nothing in the text, as a kernel's end does, counts for the line before it.
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
