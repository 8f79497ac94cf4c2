//! The instructions of a lowered kernel.
//!
//! A kernel is one straight list: calls are inlined, control flow is jumps and masks. Registers come in three files:
//! one value for the whole work-group, 32 bits a lane, 64 bits a lane. Which lanes run is the current mask; `if`, loops and
//! early exits move lanes between it and numbered masks, in which lanes wait for the place where they go on.

use super::lanes::{Binary32, Binary64, Compare64, Narrow, Ternary32, Ternary64, Unary32, Unary64, Widen};
pub use super::operand::{Address, Extend, File, Index, MemType, Reg};
use crate::builtins::math::Math1;
use crate::hir::{FormatPiece, MemoryOrder, Reduction, Scan};
use crate::source::Span;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What an atomic operation does to memory.
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

/// Registers of a read of an image.
pub const READ: u8 = 9;
/// Registers of a write to an image.
pub const WRITE: u8 = 8;

/// How an image is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRead {
    /// The coordinate is of `float`s.
    pub floats: bool,
    /// There is a sampler.
    pub sampled: bool,
    /// The result is of `half`s.
    pub half: bool,
}

/// How an image is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageWrite {
    /// The colour is of `half`s.
    pub half: bool,
}

/// A place in the list of instructions, or while lowering the number of a label.
pub type Target = u32;
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
    /// `count` elements from an address into the registers of a list. A load that only copies may read what nothing wrote.
    Load {
        ty: MemType,
        count: u8,
        list: u32,
        address: u32,
        copies: bool,
    },
    /// `count` elements to an address.
    Store {
        ty: MemType,
        count: u8,
        list: u32,
        address: u32,
    },
    /// The address itself, as 64 bits.
    AddressOf {
        dst: Reg,
        address: u32,
    },
    /// Old value to `dst`; operands in a list: the value, and for compare-exchange (expected, desired).
    Atomic {
        op: AtomicOp,
        wide: bool,
        dst: Reg,
        list: u32,
        address: u32,
        order: MemoryOrder,
    },
    /// A list of the four registers of the result, image, sampler and three of the coordinate.
    ReadImage {
        read: ImageRead,
        list: u32,
    },
    /// A list of the image, three registers of the coordinate and four of the colour.
    WriteImage {
        write: ImageWrite,
        list: u32,
    },
    /// Goes to another instruction.
    Jump {
        to: Target,
    },
    /// Goes there where a uniform condition has this value.
    JumpIf {
        cond: Reg,
        value: bool,
        to: Target,
    },
    /// Goes there where no lane runs.
    JumpIfNone {
        to: Target,
    },
    /// Lanes where the condition is 0 wait in `save`; where none is left, goes to the matching `IfElse` or `IfEnd`.
    IfBegin {
        cond: Reg,
        save: Slot,
        to: Target,
    },
    /// Swaps the lanes that ran with those that wait; where none waits, goes to the matching `IfEnd`.
    IfElse {
        save: Slot,
        to: Target,
    },
    /// Waiting lanes join.
    Join {
        save: Slot,
    },
    /// Empties a waiting mask.
    Clear {
        save: Slot,
    },
    /// Lanes where the condition is 0 wait in `exit`; where none is left, goes to the loop's end.
    LoopCond {
        cond: Reg,
        exit: Slot,
        to: Target,
    },
    /// All lanes wait in `slot`: `break`, `continue`, `return`.
    Park {
        slot: Slot,
    },
    /// The current mask is what waits in `slot`, and nothing else.
    Resume {
        slot: Slot,
    },
    /// Waiting lanes of `entry` where the condition holds join, and wait no longer.
    Case {
        entry: Slot,
        cond: Reg,
    },
    /// Every work-item must arrive; flags 1 local, 2 global.
    Barrier {
        flags: Reg,
    },
    /// Every work-item of a sub-group must arrive; flags as of `Barrier`. Only the checks see it.
    SubGroupBarrier {
        flags: Reg,
    },
    /// Orders memory around atomic operations; only in code that is checked. Flags: 1 local, 2 global.
    Fence {
        order: MemoryOrder,
        flags: Reg,
    },
    /// Reports an index outside of `0..len`.
    CheckIndex {
        index: Reg,
        len: u32,
    },
    /// Reports a divisor of 0.
    CheckDivisor {
        divisor: Reg,
        wide: bool,
    },
    /// A variable's bytes of private memory are uninitialised again.
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
    /// Prints for each lane: the format and its values.
    Print {
        format: u32,
        list: u32,
        count: u8,
    },
    /// Stops the launch: the program ran into what it must not reach.
    Trap,
    /// The end.
    End,
}

/// Functions that look at other lanes. Operand 0 is the value, operand 1 an index.
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
    Reduce(Reduction, Scan, Number),
}

/// How a reduction reads its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "a kind of number")]
pub enum Number {
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

/// Where a kernel parameter's bytes go before the kernel starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    /// Elements of a scalar, vector or pointer in uniform registers: (byte offset in the argument, type, register).
    Registers(Vec<(u32, MemType, Reg)>),
    /// Bytes in the private memory of every work-item.
    Private {
        /// Where.
        offset: u32,
        /// How many.
        bytes: u32,
    },
}

/// Uniform registers with a meaning fixed for the launch or the group; three each, by dimension.
pub mod preset {
    /// Work dimensions.
    pub const WORK_DIM: u16 = 0;
    /// Global sizes.
    pub const GLOBAL_SIZE: u16 = 1;
    /// Sizes of this group.
    pub const LOCAL_SIZE: u16 = 4;
    /// Sizes of groups as enqueued.
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
    /// How many there are.
    pub const COUNT: u16 = 24;
    /// Long lane registers with the local ids, and as 32 bits the word lane registers of the same numbers.
    pub const LOCAL_ID: u16 = 0;
    /// The local linear id.
    pub const LINEAR_ID: u16 = 3;
    /// How many lane registers of each width.
    pub const LANES: u16 = 4;
}

/// How long a work-group of a kernel takes, by the last launch.
#[derive(Debug, Default)]
pub struct Took(AtomicU64);

impl Took {
    /// The time of so many work-groups; none before the first launch.
    pub fn groups(&self, count: u64) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed).saturating_mul(count))
    }

    /// A work-group took so long.
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
    /// Where each comes from.
    pub spans: Vec<Span>,
    /// Registers that instructions list.
    pub lists: Vec<Reg>,
    /// Addresses that instructions name.
    pub addresses: Vec<Address>,
    /// Formats of `printf`.
    pub formats: Vec<Vec<FormatPiece>>,
    /// Uniform registers with constants.
    pub constants: Vec<(u16, u64)>,
    /// How many uniform registers.
    pub uniforms: u16,
    /// How many word lane registers.
    pub words: u16,
    /// How many long lane registers.
    pub longs: u16,
    /// How many waiting masks.
    pub masks: u16,
    /// Bytes of private memory a work-item.
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
    /// Smallest access to shared memory in bytes: what a race check must tell apart.
    pub granule: u32,
    /// Uses atomics on global memory, whose order may show.
    pub global_atomics: bool,
    /// What [`Code::registers`] found.
    pub needed: OnceLock<u32>,
    /// How long its work-groups take.
    pub took: Took,
}

impl Inst {
    /// Whether it computes from registers and does nothing else.
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

    /// Whether it changes where or which lanes go on.
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

    /// The register that an instruction of one result writes.
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

    /// The registers that an instruction of several results writes.
    pub fn results<'c>(&self, code: &'c Code) -> &'c [Reg] {
        match *self {
            Inst::Load { list, count, .. } => code.listed(list, count),
            Inst::ReadImage { list, .. } => code.listed(list, 4),
            _ => &[],
        }
    }

    /// Whether it writes the register.
    pub fn writes(&self, code: &Code, reg: Reg) -> bool {
        let same = |r: &Reg| r.file == reg.file && r.index == reg.index;
        match *self {
            Inst::Load { .. } | Inst::ReadImage { .. } => self.results(code).iter().any(same),
            _ => self.destination().is_some_and(|d| same(&d)),
        }
    }

    /// Whether it reads or writes the register.
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
            // The rest is rare: taken to touch everything.
            _ => true,
        }
    }
}

impl Code {
    /// Whether atomic operations or fences order other accesses: atomic operations alone, and fences alone, do not.
    pub fn orders(&self) -> bool {
        let ordered = |i: &Inst| matches!(i, Inst::Atomic { order, .. } if order.orders());
        let atomic = |i: &Inst| matches!(i, Inst::Atomic { .. });
        let fence = |i: &Inst| matches!(i, Inst::Fence { order, .. } if order.orders());
        let any = |f: &dyn Fn(&Inst) -> bool| self.insts.iter().any(f);
        any(&ordered) || any(&atomic) && any(&fence)
    }

    /// The registers of a list.
    pub fn listed(&self, list: u32, count: u8) -> &[Reg] {
        &self.lists[list as usize..list as usize + count as usize]
    }

    /// Makes instruction `at` write `to` where it wrote `from`; false where it cannot.
    pub fn set_destination(&mut self, at: usize, from: Reg, to: Reg) -> bool {
        use Inst::*;
        if let Load { list, count, address, .. } = self.insts[at] {
            // Its parts are written one after another: the address must not change between.
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
