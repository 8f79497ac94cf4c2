//! The instructions of a lowered kernel.
//!
//! A kernel is one linear list: calls are inlined, and control flow consists of jumps and masks. There are three register files: one value for the
//! whole work-group, 32 bits per lane, 64 bits per lane. The current mask selects the running lanes. `if`, loops and early exits move lanes between
//! it and numbered masks, in which lanes wait for the place where they continue.

use super::lanes::{Binary32, Binary64, Compare64, Narrow, Ternary32, Ternary64, Unary32, Unary64, Widen};
pub use super::operand::{Address, Extend, File, Index, MemType, Reg};
use crate::builtins::math::Math1;
use crate::hir::{FormatPiece, MemoryOrder, Reduction, Scan};
use crate::source::Span;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Effect of an atomic operation on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named for the function of the language")]
pub enum AtomicOp {
    Add,
    Sub,
    Exchange,
    Min,
    Max,
    MinU,
    MaxU,
    And,
    Or,
    Xor,
    AddF,
    SubF,
    MinF,
    MaxF,
    Load,
    Store,
    CompareExchange,
}

/// Number of registers of an image read.
pub const READ: u8 = 9;
/// Number of registers of an image write.
pub const WRITE: u8 = 8;

/// Form of an image read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRead {
    /// Whether the coordinate is `float`.
    pub floats: bool,
    /// Whether there is a sampler.
    pub sampled: bool,
    /// Whether the result is `half`.
    pub half: bool,
}

/// Form of an image write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageWrite {
    /// Whether the color is `half`.
    pub half: bool,
}

/// A position in the list of instructions or, during lowering, the number of a label.
pub type JumpTarget = u32;
/// The number of a waiting mask.
pub type Slot = u16;

/// An instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "operands are named for what they are")]
pub enum Inst {
    Binary32 {
        op: Binary32,
        dst: Reg,
        a: Reg,
        b: Reg,
    },
    Binary64 {
        op: Binary64,
        dst: Reg,
        a: Reg,
        b: Reg,
    },
    Compare64 {
        op: Compare64,
        dst: Reg,
        a: Reg,
        b: Reg,
    },
    Ternary32 {
        op: Ternary32,
        dst: Reg,
        s: [Reg; 3],
    },
    Ternary64 {
        op: Ternary64,
        dst: Reg,
        s: [Reg; 3],
    },
    Unary32 {
        op: Unary32,
        dst: Reg,
        a: Reg,
    },
    Unary64 {
        op: Unary64,
        dst: Reg,
        a: Reg,
    },
    Widen {
        op: Widen,
        dst: Reg,
        a: Reg,
    },
    Narrow {
        op: Narrow,
        dst: Reg,
        a: Reg,
    },
    Math32 {
        op: Math1,
        dst: Reg,
        a: Reg,
    },
    Math64 {
        op: Math1,
        dst: Reg,
        a: Reg,
    },
    /// Loads `count` elements from an address into the registers of a list. A load that only copies may read uninitialized bytes.
    Load {
        ty: MemType,
        count: u8,
        list: u32,
        address: u32,
        copies: bool,
    },
    /// Stores `count` elements to an address.
    Store {
        ty: MemType,
        count: u8,
        list: u32,
        address: u32,
    },
    /// Computes the address itself, as 64 bits.
    AddressOf {
        dst: Reg,
        address: u32,
    },
    /// Stores the old value in `dst`. Operands are in a list: the value, and for compare-exchange (expected, desired).
    Atomic {
        op: AtomicOp,
        wide: bool,
        dst: Reg,
        list: u32,
        address: u32,
        order: MemoryOrder,
    },
    /// Reads an image. The list has the four registers of the result, image, sampler and three of the coordinate.
    ReadImage {
        read: ImageRead,
        list: u32,
    },
    /// Writes an image. The list has the image, three registers of the coordinate and four of the color.
    WriteImage {
        write: ImageWrite,
        list: u32,
    },
    /// Jumps to another instruction.
    Jump {
        to: JumpTarget,
    },
    /// Jumps if a uniform condition has this value.
    JumpIf {
        cond: Reg,
        value: bool,
        to: JumpTarget,
    },
    /// Jumps if no lane is running.
    JumpIfNone {
        to: JumpTarget,
    },
    /// Moves lanes with condition 0 to `save`. If none is left, jumps to the matching `IfElse` or `IfEnd`.
    IfBegin {
        cond: Reg,
        save: Slot,
        to: JumpTarget,
    },
    /// Swaps the running lanes with the waiting ones. If none was waiting, jumps to the matching `IfEnd`.
    IfElse {
        save: Slot,
        to: JumpTarget,
    },
    /// Waiting lanes join.
    Join {
        save: Slot,
    },
    /// Empties a waiting mask.
    Clear {
        save: Slot,
    },
    /// Moves lanes with condition 0 to `exit`. If none is left, jumps to the loop's end.
    LoopCond {
        cond: Reg,
        exit: Slot,
        to: JumpTarget,
    },
    /// Moves all lanes to `slot`: `break`, `continue`, `return`.
    Park {
        slot: Slot,
    },
    /// Replaces the current mask with the lanes in `slot`.
    Resume {
        slot: Slot,
    },
    /// Moves waiting lanes of `entry` with a true condition to the current mask.
    Case {
        entry: Slot,
        cond: Reg,
    },
    /// Barrier: every work-item must arrive; flags 1 local, 2 global.
    Barrier {
        flags: Reg,
    },
    /// Sub-group barrier: every work-item of a sub-group must arrive; flags as in `Barrier`. Only the checks use it.
    SubGroupBarrier {
        flags: Reg,
    },
    /// Orders memory around atomic operations; only in checked code. Flags: 1 local, 2 global.
    Fence {
        order: MemoryOrder,
        flags: Reg,
    },
    /// Reports an index outside `0..len`.
    CheckIndex {
        index: Reg,
        len: u32,
    },
    /// Reports a divisor of 0.
    CheckDivisor {
        divisor: Reg,
        wide: bool,
    },
    /// Marks a variable's bytes of private memory as uninitialized again.
    Undefine {
        offset: u32,
        bytes: u32,
    },
    /// A function of the whole group or sub-group.
    Collective {
        op: Collective,
        wide: bool,
        dst: Reg,
        list: u32,
    },
    /// Copies elements between global and local memory by the whole group: list of (to, from, count, stride).
    AsyncCopy {
        bytes: u32,
        list: u32,
        strided: bool,
    },
    /// Prints the format and its values for each lane.
    Print {
        format: u32,
        list: u32,
        count: u8,
    },
    /// Stops the launch: the program reached unreachable code.
    Trap,
    /// The end.
    End,
}

/// Functions that access other lanes. Operand 0 is the value, operand 1 an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named for the function of the language")]
pub enum Collective {
    All,
    Any,
    Broadcast,
    BroadcastFirst,
    Elect,
    Shuffle,
    ShuffleXor,
    ShuffleUp,
    ShuffleDown,
    /// Word `n` of the ballot.
    Ballot(u8),
    Reduce(Reduction, Scan, NumberKind),
}

/// Interpretation of the bits in a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "a kind of number")]
pub enum NumberKind {
    Signed,
    Unsigned,
    Float,
}

/// An object of local or private memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The variable's name.
    pub name: String,
    /// Its first byte in its space.
    pub offset: u32,
    /// Its size.
    pub bytes: u32,
}

/// Destination of a kernel parameter's bytes before the kernel starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    /// Elements of a scalar, vector or pointer in uniform registers: (byte offset in the argument, type, register).
    Registers(Vec<(u32, MemType, Reg)>),
    /// Bytes in the private memory of every work-item.
    Private {
        /// Bytes in the private memory of every work-item.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
    },
}

/// Uniform registers with a fixed meaning for the launch or the group; three each, by dimension.
pub mod preset {
    /// Work dimensions.
    pub const WORK_DIM: u16 = 0;
    /// Global sizes.
    pub const GLOBAL_SIZE: u16 = 1;
    /// Sizes of this group.
    pub const LOCAL_SIZE: u16 = 4;
    /// Sizes of groups in the enqueue call.
    pub const ENQUEUED_SIZE: u16 = 7;
    /// Numbers of groups.
    pub const GROUPS: u16 = 10;
    /// Global offsets.
    pub const OFFSET: u16 = 13;
    /// This group.
    pub const GROUP: u16 = 16;
    /// Global id of the group's first item.
    pub const BASE: u16 = 19;
    /// Items in this group.
    pub const ITEMS: u16 = 22;
    /// Items in a sub-group.
    pub const SUB_GROUP: u16 = 23;
    /// Number of these registers.
    pub const COUNT: u16 = 24;
    /// Long lane registers with the local ids, and as 32 bits the word lane registers of the same numbers.
    pub const LOCAL_ID: u16 = 0;
    /// The local linear id.
    pub const LINEAR_ID: u16 = 3;
    /// Number of lane registers of each width.
    pub const LANES: u16 = 4;
}

/// Duration of a kernel's work-group in the last launch.
#[derive(Debug, Default)]
pub struct Took(AtomicU64);

impl Took {
    /// Returns the duration of this many work-groups; `None` before the first launch.
    pub fn groups(&self, count: u64) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed).saturating_mul(count))
    }

    /// Sets the duration of one work-group.
    pub fn set(&self, one: Duration) {
        self.0.store(u64::try_from(one.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// A kernel ready to run.
#[derive(Debug, Default)]
pub struct Code {
    /// The kernel's name.
    pub name: String,
    /// Instructions.
    pub insts: Vec<Inst>,
    /// Source span of each instruction.
    pub spans: Vec<Span>,
    /// Registers that instructions list.
    pub lists: Vec<Reg>,
    /// Addresses that instructions name.
    pub addresses: Vec<Address>,
    /// Formats of `printf`.
    pub formats: Vec<Vec<FormatPiece>>,
    /// Uniform registers with constants.
    pub constants: Vec<(u16, u64)>,
    /// Number of uniform registers.
    pub uniforms: u16,
    /// Number of word lane registers.
    pub words: u16,
    /// Number of long lane registers.
    pub longs: u16,
    /// Number of waiting masks.
    pub masks: u16,
    /// Bytes of private memory per work-item.
    pub private_bytes: u32,
    /// Variables in private memory.
    pub private_objects: Vec<Object>,
    /// Bytes of local memory of the kernel's own variables.
    pub local_bytes: u32,
    /// Variables in local memory.
    pub local_objects: Vec<Object>,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// By parameter: a pointer declared `restrict`.
    pub restricted: Vec<bool>,
    /// The mask of work-items that returned.
    pub returned: Slot,
    /// Smallest access to shared memory in bytes: the granularity of a race check.
    pub granule: u32,
    /// Whether it uses atomics on global memory, whose order may be visible.
    pub global_atomics: bool,
    /// Cached result of [`Code::registers`].
    pub needed: OnceLock<u32>,
    /// Duration of its work-groups.
    pub took: Took,
}

impl Inst {
    /// Returns true if it only computes from registers.
    pub fn is_arithmetic(&self) -> bool {
        use Inst::*;
        matches!(
            self,
            Binary32 { .. }
                | Binary64 { .. }
                | Compare64 { .. }
                | Ternary32 { .. }
                | Ternary64 { .. }
                | Unary32 { .. }
                | Unary64 { .. }
                | Widen { .. }
                | Narrow { .. }
                | Math32 { .. }
                | Math64 { .. }
        )
    }

    /// Returns true if it changes the control flow or the running lanes.
    pub fn is_control(&self) -> bool {
        use Inst::*;
        matches!(
            self,
            Jump { .. }
                | JumpIf { .. }
                | JumpIfNone { .. }
                | IfBegin { .. }
                | IfElse { .. }
                | Join { .. }
                | LoopCond { .. }
                | Park { .. }
                | Resume { .. }
                | Case { .. }
                | Trap
                | End
        )
    }

    /// Returns the destination register of an instruction with one result.
    pub fn destination(&self) -> Option<Reg> {
        use Inst::*;
        match *self {
            Binary32 { dst, .. }
            | Binary64 { dst, .. }
            | Compare64 { dst, .. }
            | Ternary32 { dst, .. }
            | Ternary64 { dst, .. }
            | Unary32 { dst, .. }
            | Unary64 { dst, .. }
            | Widen { dst, .. }
            | Narrow { dst, .. }
            | Math32 { dst, .. }
            | Math64 { dst, .. }
            | AddressOf { dst, .. }
            | Atomic { dst, .. }
            | Collective { dst, .. } => Some(dst),
            _ => None,
        }
    }

    /// Returns the destination registers of an instruction with several results.
    pub fn results<'c>(&self, code: &'c Code) -> &'c [Reg] {
        match *self {
            Inst::Load { list, count, .. } => code.listed(list, count),
            Inst::ReadImage { list, .. } => code.listed(list, 4),
            _ => &[],
        }
    }

    /// Returns true if it writes the register.
    pub fn writes(&self, code: &Code, reg: Reg) -> bool {
        let same = |r: &Reg| r.file == reg.file && r.index == reg.index;
        match *self {
            Inst::Load { .. } | Inst::ReadImage { .. } => self.results(code).iter().any(same),
            _ => self.destination().is_some_and(|d| same(&d)),
        }
    }

    /// Returns true if it reads or writes the register.
    pub fn touches(&self, code: &Code, reg: Reg) -> bool {
        use Inst::*;
        let same = |r: &Reg| r.file == reg.file && r.index == reg.index;
        let address = |a: u32| {
            let a = &code.addresses[a as usize];
            same(&a.base) || a.index.is_some_and(|i| same(&i.reg)) || a.uniform.is_some_and(|i| same(&i.reg))
        };
        if self.writes(code, reg) {
            return true;
        }
        match *self {
            Binary32 { a, b, .. } => same(&a) || same(&b),
            Binary64 { a, b, .. } => same(&a) || same(&b),
            Compare64 { a, b, .. } => same(&a) || same(&b),
            Ternary32 { s, .. } => s.iter().any(same),
            Ternary64 { s, .. } => s.iter().any(same),
            Unary32 { a, .. } => same(&a),
            Unary64 { a, .. } => same(&a),
            Widen { a, .. } => same(&a),
            Narrow { a, .. } => same(&a),
            Math32 { a, .. } | Math64 { a, .. } => same(&a),
            Load { address: a, .. } | AddressOf { address: a, .. } => address(a),
            Store { address: a, list, count, .. } => address(a) || code.listed(list, count).iter().any(same),
            Atomic { address: a, list, .. } => address(a) || code.listed(list, 2).iter().any(same),
            CheckDivisor { divisor, .. } => same(&divisor),
            Undefine { .. } | Clear { .. } => false,
            // The rest is rare: assume that it touches everything.
            _ => true,
        }
    }
}

impl Code {
    /// Returns true if atomic operations or fences order other accesses. Only the combination of both does.
    pub fn orders(&self) -> bool {
        let ordered = |i: &Inst| matches!(i, Inst::Atomic { order, .. } if order.orders());
        let atomic = |i: &Inst| matches!(i, Inst::Atomic { .. });
        let fence = |i: &Inst| matches!(i, Inst::Fence { order, .. } if order.orders());
        let any = |f: &dyn Fn(&Inst) -> bool| self.insts.iter().any(f);
        any(&ordered) || any(&atomic) && any(&fence)
    }

    /// Returns the registers of a list.
    pub fn listed(&self, list: u32, count: u8) -> &[Reg] {
        &self.lists[list as usize..list as usize + count as usize]
    }

    /// Changes the destination of instruction `at` from `from` to `to`; returns false if this is not possible.
    pub fn set_destination(&mut self, at: usize, from: Reg, to: Reg) -> bool {
        use Inst::*;
        if let Load { list, count, address, .. } = self.insts[at] {
            // Its parts are written in sequence: the address must not change in between.
            if count > 1 && (Inst::AddressOf { dst: from, address }).touches(self, to) {
                return false;
            }
            let span = list as usize..list as usize + count as usize;
            let Some(r) = self.lists[span].iter_mut().find(|r| r.file == from.file && r.index == from.index)
            else {
                return false;
            };
            *r = to;
            return true;
        }
        match &mut self.insts[at] {
            Binary32 { dst, .. }
            | Binary64 { dst, .. }
            | Compare64 { dst, .. }
            | Ternary32 { dst, .. }
            | Ternary64 { dst, .. }
            | Unary32 { dst, .. }
            | Unary64 { dst, .. }
            | Widen { dst, .. }
            | Narrow { dst, .. }
            | Math32 { dst, .. }
            | Math64 { dst, .. } => {
                *dst = to;
                true
            }
            _ => false,
        }
    }
}
