//! Limits for a kernel after its calls are inlined and its short loops are unrolled.
//!
//! A short source can expand to any number of instructions: functions that each call the previous one twice double with every function. Lowering
//! counts visited nodes and emitted instructions, and stops with an error at a limit.

use super::super::bytecode::{Code, File};
use super::emit::{Full, MAX_BYTES};
use super::{Lower, Val, Value};
use crate::hir::Expr;
use crate::source::Span;
use crate::types::Type;

/// Statements, expressions and calls visited, and instructions emitted, in one pass over a kernel. The largest real kernels (hashcat's, with all
/// inlined code) fit. At the limit, lowering uses some 100 MB. The worst sources found take 12 s of CPU time to reach it.
pub const MAX_WORK: u64 = 4_000_000;
/// The same for all passes over a kernel: each pass follows from a fact that the previous one found.
const MAX_WORK_IN_ALL: u64 = 10 * MAX_WORK;
/// Maximum number of registers per file, and of waiting masks: their numbers have 16 bits.
pub const MAX_REGISTERS: usize = u16::MAX as usize;
/// Maximum number of elements of a value that is copied whole, such as a `struct`.
const MAX_LEAVES: u64 = 1 << 16;
/// Maximum number of values of one `printf`: an instruction counts them in 8 bits.
const MAX_PRINTED: usize = u8::MAX as usize;

/// Work spent so far.
#[derive(Debug, Default)]
pub struct Budget {
    /// Nodes visited in this pass.
    visited: u64,
    /// Work of the previous passes.
    before: u64,
}

impl Budget {
    /// Starts the next pass.
    pub fn next_pass(&mut self, code: &Code) {
        self.before += self.visited + code.insts.len() as u64;
        self.visited = 0;
    }
}

impl Full {
    /// Returns the budget as `more than …`.
    fn budget(self) -> String {
        match self {
            Full::Registers(File::Uniform) => {
                format!("{MAX_REGISTERS} constants and values that all work-items share")
            }
            Full::Registers(File::Word) => format!("{MAX_REGISTERS} registers of 32 bits"),
            Full::Registers(File::Long) => format!("{MAX_REGISTERS} registers of 64 bits"),
            Full::Masks => format!("{MAX_REGISTERS} nested branches in which work-items diverge"),
            Full::Bytes(space) => format!("{MAX_BYTES} bytes of {space} variables"),
        }
    }
}

impl Lower<'_> {
    /// Counts a node; reports an error if the kernel has become too large.
    pub(super) fn spend(&mut self) {
        self.budget.visited += 1;
        if self.error.is_some() {
            return;
        }
        let exceeded = match self.e.full {
            Some(full) => Some(full.budget()),
            None => (self.work() > MAX_WORK).then(|| format!("{MAX_WORK} instructions")),
        };
        if let Some(budget) = exceeded {
            let (span, message) = self.too_large(&budget);
            self.unsupported(span, message);
        } else if self.budget.before + self.work() > MAX_WORK_IN_ALL {
            let kernel = self.program.function(self.frames[0].function);
            let message =
                format!("the control flow of kernel `{}` could not be resolved in time", kernel.name);
            self.unsupported(kernel.span, message);
        }
    }

    /// Returns the nodes visited and instructions emitted in this pass.
    pub(super) fn work(&self) -> u64 {
        self.budget.visited + self.e.code.insts.len() as u64
    }

    /// Returns the function that causes the kernel's size: the innermost inlined function that took half of it.
    fn too_large(&self, budget: &str) -> (Span, String) {
        let kernel = &self.program.function(self.frames[0].function).name;
        let half = self.work() / 2;
        let Some(frame) = self.frames.iter().skip(1).rfind(|f| self.work() - f.start >= half) else {
            let message = format!(
                "kernel `{kernel}` needs more than {budget}: split it, or keep constants in a __constant array"
            );
            return (self.e.span, message);
        };
        let message = format!(
            "kernel `{kernel}` needs more than {budget}, most of them in this call of `{}`: calls are inlined, so a function counts once per call; \
             call it from fewer places, or in a loop",
            self.program.function(frame.function).name
        );
        (frame.call, message)
    }

    /// Returns a value for an expression after lowering has stopped.
    pub(super) fn no_value(&mut self, ty: Type) -> Value {
        vec![Val::Const(0); self.leaves(ty).len()]
    }

    /// Returns the size of a variable's type in 32 bits; reports an error if it does not fit.
    pub(super) fn bytes_of(&mut self, ty: Type, name: &str, span: Span) -> u32 {
        let bytes = self.program.types.size(ty);
        if bytes > MAX_BYTES {
            self.unsupported(
                span,
                format!("`{name}` has {bytes} bytes; a variable can have at most {MAX_BYTES}"),
            );
            return 0;
        }
        // Not above `MAX_BYTES`.
        bytes as u32
    }

    /// Returns the number of elements of a type in registers.
    pub(super) fn leaf_count(&mut self, ty: Type) -> u64 {
        let types = &self.program.types;
        if let Some(known) = self.leaf_counts.get(&ty) {
            return *known;
        }
        let count = match ty {
            Type::Void => 0,
            Type::Scalar(_) | Type::Atomic(_) | Type::Pointer(_) | Type::Event | Type::Sampler => 1,
            Type::Image(..) => 7,
            Type::Vector(_, n) => u64::from(n),
            Type::Array(id) => {
                let array = types.array(id);
                self.leaf_count(array.of).saturating_mul(array.len)
            }
            Type::Record(id) => {
                let record = types.record(id);
                if record.is_union || super::overlaps(types, record) {
                    record.size / 4 + record.size % 4
                } else {
                    let fields = record.fields.iter().filter(|f| !f.name.is_empty());
                    fields.fold(0u64, |n, f| n.saturating_add(self.leaf_count(f.ty)))
                }
            }
        };
        self.leaf_counts.insert(ty, count);
        count
    }

    /// Returns true if a value of the type can be moved by elements; reports an error if it has too many.
    pub(super) fn can_be_moved(&mut self, ty: Type) -> bool {
        let count = self.leaf_count(ty);
        if count <= MAX_LEAVES && self.program.types.size(ty) <= MAX_BYTES {
            return true;
        }
        let message = format!(
            "a value of {count} elements is copied as a whole; at most {MAX_LEAVES} are possible: copy it in a loop"
        );
        self.unsupported(self.e.span, message);
        false
    }

    /// Returns the number of values of a `printf`.
    pub(super) fn printed(&mut self, call: &Expr, values: usize) -> u8 {
        u8::try_from(values).unwrap_or_else(|_| {
            let message = format!(
                "a printf of {values} values, counting elements of vectors; at most {MAX_PRINTED} are possible"
            );
            self.unsupported(call.span, message);
            0
        })
    }

    /// Reports an error if the last instructions of a kernel exceeded a field.
    pub(super) fn check_full(&mut self) {
        if let (Some(full), None) = (self.e.full, &self.error) {
            self.error = Some(self.too_large(&full.budget()));
        }
    }
}
