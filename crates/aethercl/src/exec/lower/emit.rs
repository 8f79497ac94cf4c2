//! Registers, constants, labels and instructions while a kernel is lowered.

use super::super::bytecode::{Address, Code, File, Inst, JumpTarget, Object, Reg, Slot, preset};
use super::super::lanes;
use crate::source::Span;
use std::collections::HashMap;

/// Maximum bytes of one variable, and of all variables of a space together: offsets have 32 bits with a margin on both sides.
pub const MAX_BYTES: u64 = 1 << 30;

/// The limit that a kernel's bytecode exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// A register file.
    Registers(File),
    /// The waiting masks.
    Masks,
    /// Private or local memory.
    Bytes(&'static str),
}

/// A value of one lane register: a constant, or in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Val {
    /// A constant; 32-bit values have zero upper bits.
    Const(u64),
    /// In a register that only this value uses.
    Reg(Reg),
    /// In a register that others also read and no one changes.
    Pinned(Reg),
}

impl Val {
    /// Returns true if all lanes have the same value.
    pub fn is_uniform(self) -> bool {
        match self {
            Val::Const(_) => true,
            Val::Reg(r) | Val::Pinned(r) => r.file == File::Uniform,
        }
    }

    /// Returns the same value for several readers.
    pub fn pinned(self) -> Val {
        match self {
            Val::Reg(r) if !r.variable => Val::Pinned(r),
            v => v,
        }
    }

    /// Returns true if it is a variable's register, which a later assignment changes.
    pub fn is_variable(self) -> bool {
        matches!(self, Val::Reg(r) if r.variable)
    }
}

/// The code of a kernel during lowering.
pub struct Emitter {
    /// Emitted code.
    pub code: Code,
    /// Source position of the code being emitted.
    pub span: Span,
    constants: HashMap<u64, Reg>,
    free: [Vec<u16>; 3],
    /// Temporaries of the statement being lowered.
    temporaries: Vec<Reg>,
    labels: Vec<JumpTarget>,
    free_slots: Vec<Slot>,
    last_label: usize,
    /// The exceeded limit, if any: numbers allocated after it must not be used.
    pub full: Option<Full>,
}

impl Emitter {
    /// Returns an empty kernel.
    pub fn new(name: &str) -> Emitter {
        let code = Code {
            name: name.to_string(),
            uniforms: preset::COUNT,
            words: preset::LANES,
            longs: preset::LANES,
            granule: 16,
            ..Code::default()
        };
        Emitter {
            code,
            span: Span::default(),
            constants: HashMap::new(),
            free: [Vec::new(), Vec::new(), Vec::new()],
            temporaries: Vec::new(),
            labels: Vec::new(),
            free_slots: Vec::new(),
            last_label: 0,
            full: None,
        }
    }

    /// Adds an instruction.
    pub fn push(&mut self, inst: Inst) {
        self.code.insts.push(inst);
        self.code.spans.push(self.span);
    }

    /// Allocates a register that lives until [`Emitter::release`].
    pub fn allocate(&mut self, file: File, variable: bool) -> Reg {
        let count = match file {
            File::Uniform => &mut self.code.uniforms,
            File::Word => &mut self.code.words,
            File::Long => &mut self.code.longs,
        };
        let index = self.free[file as usize].pop().unwrap_or_else(|| {
            let index = *count;
            match index.checked_add(1) {
                Some(more) => *count = more,
                None => self.full = Some(Full::Registers(file)),
            }
            index
        });
        Reg { file, variable, index }
    }

    /// Allocates a register that lives until the end of the statement.
    pub fn temporary(&mut self, file: File) -> Reg {
        let reg = self.allocate(file, false);
        self.temporaries.push(reg);
        reg
    }

    /// Allocates a register that lives until the end of the statement and that branches write.
    pub fn temporary_variable(&mut self, file: File) -> Reg {
        let reg = self.allocate(file, true);
        self.temporaries.push(reg);
        reg
    }

    /// Makes a register live until the end of the statement.
    pub fn hold(&mut self, reg: Reg) {
        self.temporaries.push(reg);
    }

    /// Releases a register.
    pub fn release(&mut self, reg: Reg) {
        self.free[reg.file as usize].push(reg.index);
    }

    /// Returns the number of live temporaries, as a mark for later.
    pub fn mark(&self) -> usize {
        self.temporaries.len()
    }

    /// Releases the temporaries allocated since the mark.
    pub fn release_since(&mut self, mark: usize) {
        while self.temporaries.len() > mark {
            if let Some(reg) = self.temporaries.pop() {
                self.release(reg);
            }
        }
    }

    /// Removes a temporary allocated since the mark from the statement; returns false if it is not such a temporary.
    pub fn adopt(&mut self, reg: Reg, mark: usize) -> bool {
        let same = |r: &Reg| r.file == reg.file && r.index == reg.index;
        match self.temporaries.iter().skip(mark).position(same) {
            Some(at) => {
                self.temporaries.remove(mark + at);
                true
            }
            None => false,
        }
    }

    /// Returns the register that holds a value.
    pub fn reg(&mut self, value: Val) -> Reg {
        match value {
            Val::Reg(reg) | Val::Pinned(reg) => reg,
            Val::Const(bits) => {
                if let Some(reg) = self.constants.get(&bits) {
                    return *reg;
                }
                // Never released: a later iteration of a loop may use a constant.
                let reg = Reg { file: File::Uniform, variable: false, index: self.code.uniforms };
                match self.code.uniforms.checked_add(1) {
                    Some(more) => self.code.uniforms = more,
                    None => self.full = Some(Full::Registers(File::Uniform)),
                }
                self.code.constants.push((reg.index, bits));
                self.constants.insert(bits, reg);
                reg
            }
        }
    }

    /// Returns a new jump label.
    pub fn label(&mut self) -> JumpTarget {
        self.labels.push(JumpTarget::MAX);
        self.labels.len() as JumpTarget - 1
    }

    /// Places the label here.
    pub fn bind(&mut self, label: JumpTarget) {
        self.last_label = self.code.insts.len();
        self.labels[label as usize] = self.code.insts.len() as JumpTarget;
    }

    /// Allocates a waiting mask until [`Emitter::release_slot`].
    pub fn slot(&mut self) -> Slot {
        self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.code.masks;
            match slot.checked_add(1) {
                Some(more) => self.code.masks = more,
                None => self.full = Some(Full::Masks),
            }
            slot
        })
    }

    /// Releases a waiting mask.
    pub fn release_slot(&mut self, slot: Slot) {
        self.free_slots.push(slot);
    }

    /// Returns a list of registers for an instruction.
    pub fn list(&mut self, values: &[Val]) -> u32 {
        let regs: Vec<Reg> = values.iter().map(|v| self.reg(*v)).collect();
        self.code.lists.extend(regs);
        (self.code.lists.len() - values.len()) as u32
    }

    /// Returns an address for an instruction.
    pub fn address(&mut self, address: Address) -> u32 {
        self.code.addresses.push(address);
        self.code.addresses.len() as u32 - 1
    }

    /// Returns start and end of an object after those that end at `used`.
    fn behind(&mut self, used: u32, bytes: u32, align: u64, space: &'static str) -> (u32, u32) {
        let start = u64::from(used).checked_next_multiple_of(align).unwrap_or(u64::MAX);
        let end = start.saturating_add(u64::from(bytes));
        if end > MAX_BYTES {
            self.full = Some(Full::Bytes(space));
            return (0, 0);
        }
        // Not above `MAX_BYTES`.
        (start as u32, end as u32)
    }

    /// Allocates the next object in private memory.
    pub fn private_object(&mut self, name: &str, bytes: u32, align: u64) -> (u32, u32) {
        let (offset, end) = self.behind(self.code.private_bytes, bytes, align.max(4), "private");
        self.code.private_bytes = end;
        self.code.private_objects.push(Object { name: name.to_string(), offset, bytes });
        (self.code.private_objects.len() as u32 - 1, offset)
    }

    /// Allocates the next object in local memory.
    pub fn local_object(&mut self, name: &str, bytes: u32, align: u64) -> (u32, u32) {
        let (offset, end) = self.behind(self.code.local_bytes, bytes, align.max(8), "local");
        self.code.local_bytes = end;
        self.code.local_objects.push(Object { name: name.to_string(), offset, bytes });
        (self.code.local_objects.len() as u32 - 1, offset)
    }

    /// Replaces label numbers in instructions with their targets.
    pub fn finish(mut self) -> Code {
        for inst in &mut self.code.insts {
            if let Inst::Jump { to }
            | Inst::JumpIf { to, .. }
            | Inst::JumpIfNone { to }
            | Inst::IfBegin { to, .. }
            | Inst::IfElse { to, .. }
            | Inst::LoopCond { to, .. } = inst
            {
                *to = self.labels[*to as usize];
            }
        }
        self.code
    }

    /// Makes the instruction that wrote temporary `from` write `to` instead, if no instruction since then is affected.
    pub fn retarget(&mut self, from: Reg, to: Reg, window: usize) -> bool {
        let start = self.code.insts.len().saturating_sub(window).max(self.last_label);
        for at in (start..self.code.insts.len()).rev() {
            let inst = self.code.insts[at];
            if inst.is_control() {
                return false;
            }
            if inst.writes(&self.code, from) {
                return self.code.set_destination(at, from, to);
            }
            if inst.touches(&self.code, to) || inst.touches(&self.code, from) {
                return false;
            }
        }
        false
    }

    fn result(&mut self, file: File, operands: &[Val]) -> Reg {
        let uniform = operands.iter().all(|v| v.is_uniform());
        self.temporary(if uniform { File::Uniform } else { file })
    }
}

/// One method per table of operations: folds constants, otherwise emits an instruction.
macro_rules! operation {
    ($name:ident, $op:ident, $one:path, $file:ident, $in:ty, $out:ty, unary) => {
        /// Returns the operation's result.
        pub fn $name(&mut self, op: lanes::$op, a: Val) -> Val {
            if let Val::Const(x) = a {
                return Val::Const(u64::from($one(op, x as $in)));
            }
            let dst = self.result(File::$file, &[a]);
            let a = self.reg(a);
            self.push(Inst::$op { op, dst, a });
            Val::Reg(dst)
        }
    };
    ($name:ident, $op:ident, $one:path, $file:ident, $in:ty, $out:ty, binary) => {
        /// Returns the operation's result.
        pub fn $name(&mut self, op: lanes::$op, a: Val, b: Val) -> Val {
            if let (Val::Const(x), Val::Const(y)) = (a, b) {
                return Val::Const(u64::from($one(op, x as $in, y as $in)));
            }
            let dst = self.result(File::$file, &[a, b]);
            let (a, b) = (self.reg(a), self.reg(b));
            self.push(Inst::$op { op, dst, a, b });
            Val::Reg(dst)
        }
    };
    ($name:ident, $op:ident, $one:path, $file:ident, $in:ty, $out:ty, ternary) => {
        /// Returns the operation's result.
        pub fn $name(&mut self, op: lanes::$op, a: Val, b: Val, c: Val) -> Val {
            if let (Val::Const(x), Val::Const(y), Val::Const(z)) = (a, b, c) {
                return Val::Const(u64::from($one(op, x as $in, y as $in, z as $in)));
            }
            let dst = self.result(File::$file, &[a, b, c]);
            let s = [self.reg(a), self.reg(b), self.reg(c)];
            self.push(Inst::$op { op, dst, s });
            Val::Reg(dst)
        }
    };
}

impl Emitter {
    operation!(binary32, Binary32, lanes::one_binary32, Word, u32, u32, binary);
    operation!(binary64, Binary64, lanes::one_binary64, Long, u64, u64, binary);
    operation!(compare64, Compare64, lanes::one_compare64, Word, u64, u32, binary);
    operation!(ternary32, Ternary32, lanes::one_ternary32, Word, u32, u32, ternary);
    operation!(ternary64, Ternary64, lanes::one_ternary64, Long, u64, u64, ternary);
    operation!(unary32, Unary32, lanes::one_unary32, Word, u32, u32, unary);
    operation!(unary64, Unary64, lanes::one_unary64, Long, u64, u64, unary);
    operation!(widen, Widen, lanes::one_widen, Long, u32, u64, unary);
    operation!(narrow, Narrow, lanes::one_narrow, Word, u64, u32, unary);

    /// Emits a mathematical function without a SIMD form.
    pub fn math(&mut self, op: crate::builtins::math::Math1, a: Val, wide: bool) -> Val {
        let dst = self.result(if wide { File::Long } else { File::Word }, &[a]);
        let a = self.reg(a);
        self.push(if wide { Inst::Math64 { op, dst, a } } else { Inst::Math32 { op, dst, a } });
        Val::Reg(dst)
    }
}
