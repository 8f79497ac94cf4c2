//! From what each instruction did to what each source line did.

use crate::counters::{LineCounters, Tally};
use crate::exec::bytecode::Code;
use crate::program::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lines that executed something, in the order of file and line. What came out of a macro counts for the line that uses it.
pub fn lines(program: &Program, code: &Code, tallies: &[Tally]) -> Vec<LineCounters> {
    let sources = &program.hir().sources;
    let mut found: BTreeMap<(String, u32), Tally> = BTreeMap::new();
    for (span, tally) in code.spans.iter().zip(tallies).filter(|(_, t)| t.executions > 0) {
        let place = sources.locate(sources.outermost(*span));
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
