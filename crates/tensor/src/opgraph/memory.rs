//! Memory of a graph's buffers during a run.

use super::OpGraph;
use super::run::plan;
use crate::Result;
use crate::graph::BufferPlan;
use netcl_device::human;
use std::fmt;

/// The memory plan of a graph. Its text form has one line per buffer.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Number of rows.
    pub rows: usize,
    /// Memory assignments.
    pub plan: BufferPlan,
    /// Bytes of the weights, which have separate memory.
    pub weights: usize,
    /// Bytes of the inputs, which have separate memory.
    pub inputs: usize,
}

impl OpGraph {
    /// Plans the memory for `rows` rows on this device. Kernels are compiled, but nothing is computed.
    ///
    /// # Errors
    /// Errors of the operations, and of reading the weights.
    pub fn memory(&self, rows: usize) -> Result<Memory> {
        let rows = if self.spec.any_rows { self.bucket(rows) } else { self.spec.rows };
        let weights = self.weights.all(&self.device)?;
        let plan = plan(&self.device, &self.spec, &weights, rows)?;
        let mut inputs = 0;
        for input in &self.spec.inputs {
            inputs += input.form.dims(rows)?.iter().product::<usize>() * input.form.dtype.size();
        }
        let weights = weights.iter().map(|w| w.count() * w.dtype().size()).sum();
        Ok(Memory { rows, plan, weights, inputs })
    }
}

impl Memory {
    /// Returns the bytes that the buffers would need if they did not share memory.
    pub fn unshared(&self) -> usize {
        self.plan.assignments.iter().map(|a| a.range.bytes).sum()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        writeln!(f, "memory for {} rows: buffers by the command that needs them first", self.rows)?;
        writeln!(
            f,
            "{:>12} {:>12} {:>6} {:>6}  {:<20} made by",
            "place", "bytes", "from", "to", "operation"
        )?;
        let mut all: Vec<_> = plan.assignments.iter().filter(|a| a.range.commands.is_some()).collect();
        all.sort_by_key(|a| (a.range.commands, a.offset));
        for a in all {
            let Some((first, last)) = a.range.commands else { continue };
            let last = if last == usize::MAX { "end".into() } else { last.to_string() };
            writeln!(
                f,
                "{:>12} {:>12} {first:>6} {last:>6}  {:<20} {}",
                a.offset, a.range.bytes, a.range.op, a.range.made_by
            )?;
        }
        let (peak, at) = plan.peak;
        let name = plan.names.get(at).copied().unwrap_or_default();
        writeln!(f, "planned {} ({} commands)", human(plan.bytes as u64), plan.names.len())?;
        writeln!(f, "peak    {} at command {at} ({name})", human(peak as u64))?;
        writeln!(f, "without sharing {}", human(self.unshared() as u64))?;
        write!(f, "weights {}, inputs {}", human(self.weights as u64), human(self.inputs as u64))
    }
}
