//! Places: addresses, loads and stores.

use super::super::bytecode::{Address, Extend, File, Index, Inst};
use super::super::lanes::{Binary64, Unary64, Widen};
use super::facts::Fact;
use super::{Lower, Storage, Val, Value, file_of, space_of};
use crate::hir::{BinaryOp, Expr, ExprKind, GlobalId, LocalId, Place, PlaceKind, Rounding};
use crate::memory::address::{MAX_ARGUMENTS, PointerSpace, with_argument};
use crate::source::Span;
use crate::types::{Scalar, Type};

/// An address under construction.
#[derive(Debug, Clone, Copy)]
pub struct Addr {
    base: Val,
    index: Option<(Val, Extend, i64)>,
    uniform: Option<(Val, Extend, i64)>,
    offset: i64,
    space: Option<PointerSpace>,
    align: u32,
}

impl Addr {
    /// Returns a known address.
    pub fn constant(address: u64, space: PointerSpace, align: u32) -> Addr {
        Addr::pointer(Val::Const(address), Some(space), align)
    }

    /// Returns the address of a pointer's target.
    pub fn pointer(base: Val, space: Option<PointerSpace>, align: u32) -> Addr {
        Addr { base, index: None, uniform: None, offset: 0, space, align }
    }

    /// Returns the address plus some bytes.
    pub fn plus(mut self, bytes: i64) -> Addr {
        self.offset += bytes;
        self
    }

    /// Returns the same address with another guaranteed alignment.
    pub fn aligned(mut self, align: u32) -> Addr {
        self.align = align;
        self
    }

    /// Returns the space, if it is known.
    pub fn space(&self) -> Option<PointerSpace> {
        self.space
    }
}

/// Location of a place.
#[derive(Debug, Clone)]
pub enum Where {
    /// Bytes of a variable in registers.
    Variable(LocalId, u32),
    /// In memory.
    Memory(Addr),
}

impl Lower<'_> {
    /// Finds a place; lanes of a vector are handled by [`Lower::load`] and [`Lower::store`].
    pub(super) fn place(&mut self, p: &Place) -> Where {
        let align = self.program.types.align(p.ty) as u32;
        match &p.kind {
            PlaceKind::Local(id) => match self.variable(*id).storage {
                Storage::Registers(_) => Where::Variable(*id, 0),
                Storage::Memory(address, space) => Where::Memory(Addr::constant(address, space, align)),
            },
            PlaceKind::Global(id) => {
                let (address, space) = self.global_variable(*id);
                Where::Memory(Addr::constant(address, space, align))
            }
            PlaceKind::Deref(pointer) => {
                let declared = self.program.types.pointee(pointer.ty);
                let align = declared.map_or(align, |p| if p.aligned > 0 { p.aligned } else { align });
                let addr = self.pointer(pointer).aligned(align);
                Where::Memory(addr)
            }
            PlaceKind::Index { base, index, scale } => match self.inner_place(base) {
                Where::Variable(id, at) => {
                    let value = self.scalar(index);
                    match value {
                        Val::Const(i) if i < self.array_len(base.ty) => {
                            Where::Variable(id, at + (i * scale) as u32)
                        }
                        _ => {
                            self.note(Fact::Memory(id));
                            Where::Memory(Addr::constant(0, PointerSpace::Private, align))
                        }
                    }
                }
                Where::Memory(addr) => {
                    self.check_index(base, index);
                    Where::Memory(self.add_index(addr, index, *scale as i64).aligned(align))
                }
            },
            PlaceKind::Member { base, offset } => match self.place(base) {
                Where::Variable(id, at) => Where::Variable(id, at + *offset as u32),
                Where::Memory(addr) => {
                    let align = addr.align.min(align.max(1));
                    Where::Memory(addr.plus(*offset as i64).aligned(align))
                }
            },
            PlaceKind::Lanes { base, .. } => self.place(base),
        }
    }

    /// Returns the address of a program-scope variable. A writable one counts as an argument after those of the kernel.
    fn global_variable(&self, id: GlobalId) -> (u64, PointerSpace) {
        let address = self.constants.address(id);
        let Some(number) = self.constants.number(id) else { return (address, PointerSpace::Constant) };
        let argument = self.program.function(self.frames[0].function).params + number;
        (
            if argument < MAX_ARGUMENTS { with_argument(address, argument) } else { address },
            PointerSpace::Global,
        )
    }

    /// Lowers a place inside another: its indices are checked separately from those of the outer one.
    fn inner_place(&mut self, base: &Place) -> Where {
        let addressed = std::mem::take(&mut self.addressed);
        let found = self.place(base);
        self.addressed = addressed;
        found
    }

    /// Checks an index of an array that is a row or a member. The bounds of its object do not detect that the index leaves it.
    fn check_index(&mut self, base: &Place, index: &Expr) {
        let addressed = std::mem::take(&mut self.addressed);
        let whole = matches!(base.kind, PlaceKind::Local(_) | PlaceKind::Global(_));
        if !self.checked || addressed || whole || self.unreachable || index.has_effect() {
            return;
        }
        let len = self.array_len(base.ty);
        let value = self.scalar(index);
        if !matches!(value, Val::Const(c) if c < len) {
            let index = self.e.reg(value);
            self.e.push(Inst::CheckIndex { index, len: len.min(u64::from(u32::MAX)) as u32 });
        }
    }

    fn array_len(&self, ty: Type) -> u64 {
        match ty {
            Type::Array(id) => self.program.types.array(id).len,
            _ => 0,
        }
    }

    /// Converts a pointer expression to an address.
    pub(super) fn pointer(&mut self, e: &Expr) -> Addr {
        let pointee = self.program.types.pointee(e.ty);
        let space = pointee.and_then(|p| space_of(p.space));
        let align = pointee.map_or(1, |p| self.program.types.align(p.to)) as u32;
        match &e.kind {
            ExprKind::Offset { pointer, index, scale } => {
                let addr = self.pointer(pointer);
                self.add_index(addr, index, *scale as i64)
            }
            ExprKind::AddressOf(place) => {
                // The address after the last element may be taken.
                self.addressed = matches!(place.kind, PlaceKind::Index { .. });
                let found = self.place(place);
                self.addressed = false;
                match found {
                    Where::Memory(addr) => addr,
                    Where::Variable(id, _) => {
                        self.note(Fact::Memory(id));
                        Addr::constant(0, PointerSpace::Private, align)
                    }
                }
            }
            ExprKind::Reinterpret(inner) if inner.ty.is_pointer() => {
                let mut addr = self.pointer(inner);
                addr.space = addr.space.or(space);
                addr.aligned(align)
            }
            _ => {
                let base = self.scalar(e);
                Addr::pointer(base, space, align)
            }
        }
    }

    /// Computes `addr + index * scale` for a `long` index. Its terms are combined to one that differs between lanes, a uniform one, and constant
    /// bytes.
    pub(super) fn add_index(&mut self, addr: Addr, index: &Expr, scale: i64) -> Addr {
        let mut terms = Vec::new();
        self.terms(index, &mut terms);
        let mut addr = addr;
        // Store separately whether a term is uniform. A constant has padding in the place of a register's file, and a compiler may read it before it
        // distinguishes the two cases. Memory checkers report such a read.
        let mut registers = Vec::with_capacity(terms.len());
        for (v, extend) in terms {
            match v {
                Val::Const(_) => addr = self.add_value(addr, v, extend, scale),
                Val::Reg(r) | Val::Pinned(r) => registers.push((r.file == File::Uniform, v, extend)),
            }
        }
        for uniform in [true, false] {
            let mut sum: Option<(Val, Extend)> = None;
            for (_, v, extend) in registers.iter().copied().filter(|(same, ..)| *same == uniform) {
                sum = Some(match sum {
                    None => (v, extend),
                    Some((s, e)) => {
                        let (s, v) = (self.wide(s, e), self.wide(v, extend));
                        (self.e.binary64(Binary64::Add, s, v), Extend::Wide)
                    }
                });
            }
            if let Some((v, extend)) = sum {
                addr = self.add_value(addr, v, extend, scale);
            }
        }
        addr
    }

    fn wide(&mut self, v: Val, extend: Extend) -> Val {
        match extend {
            Extend::Wide => v,
            Extend::Signed => self.e.widen(Widen::Sext, v),
            Extend::Unsigned => self.e.widen(Widen::Zext, v),
        }
    }

    /// Collects the terms of a `long` sum.
    fn terms(&mut self, e: &Expr, out: &mut Vec<(Val, Extend)>) {
        match &e.kind {
            ExprKind::Binary(BinaryOp::Add, a, b) => {
                self.terms(a, out);
                self.terms(b, out);
            }
            ExprKind::Convert { operand, rounding: Rounding::Default, saturate: false } => match operand.ty {
                Type::Scalar(Scalar::U64 | Scalar::I64) => self.terms(operand, out),
                Type::Scalar(Scalar::I32) => {
                    let mut lanes = None;
                    self.int_terms(operand, out, &mut lanes);
                    out.extend(lanes.map(|v| (v, Extend::Signed)));
                }
                Type::Scalar(s) if s.is_integer() && s != Scalar::Bool => {
                    let extend = if s.is_signed() { Extend::Signed } else { Extend::Unsigned };
                    out.push((self.scalar(operand), extend));
                }
                _ => out.push((self.scalar(e), Extend::Wide)),
            },
            _ => out.push((self.scalar(e), Extend::Wide)),
        }
    }

    /// Collects the terms of an `int` sum, converted to long. Its overflow is undefined, so terms may be added in any order; those that differ
    /// between lanes are added in 32 bits.
    fn int_terms(&mut self, e: &Expr, out: &mut Vec<(Val, Extend)>, lanes: &mut Option<Val>) {
        if let ExprKind::Binary(BinaryOp::Add, a, b) = &e.kind {
            self.int_terms(a, out, lanes);
            self.int_terms(b, out, lanes);
            return;
        }
        let v = self.scalar(e);
        if v.is_uniform() {
            out.push((v, Extend::Signed));
        } else {
            *lanes = Some(match *lanes {
                None => v,
                Some(sum) => self.e.binary32(super::super::lanes::Binary32::Add, sum, v),
            });
        }
    }

    fn add_value(&mut self, mut addr: Addr, value: Val, extend: Extend, scale: i64) -> Addr {
        match value {
            Val::Const(c) => {
                // 32-bit constants have zero upper bits.
                let c = if extend == Extend::Signed { i64::from(c as u32 as i32) } else { c as i64 };
                return addr.plus(c.wrapping_mul(scale));
            }
            v if v.is_uniform() && addr.uniform.is_none() => addr.uniform = Some((v, extend, scale)),
            v if !v.is_uniform() && addr.index.is_none() => addr.index = Some((v, extend, scale)),
            _ => {
                if let Some(sum) = self.joined_index(&addr, value, extend, scale) {
                    addr.index = Some(sum);
                    return addr;
                }
                let base = self.address_value(&addr);
                let fresh = Addr::pointer(base, addr.space, addr.align);
                return self.add_value(fresh, value, extend, scale);
            }
        }
        addr
    }

    /// Combines two lane-dependent indices to a 32-bit one: in local and private memory, no sum exceeds 32 bits.
    fn joined_index(
        &mut self,
        addr: &Addr,
        value: Val,
        extend: Extend,
        scale: i64,
    ) -> Option<(Val, Extend, i64)> {
        use super::super::lanes::{Binary32, Narrow};
        let (first, first_extend, first_scale) = addr.index?;
        let near = matches!(addr.space, Some(PointerSpace::Local | PointerSpace::Private));
        if value.is_uniform() || !near {
            return None;
        }
        let narrow =
            |l: &mut Self, v: Val, e: Extend| if e == Extend::Wide { l.e.narrow(Narrow::Low, v) } else { v };
        let common = if first_scale % scale == 0 { scale } else { 1 };
        let mut term = |v: Val, e: Extend, s: i64| {
            let v = narrow(self, v, e);
            if s == common {
                v
            } else {
                self.e.binary32(Binary32::Mul, v, Val::Const((s / common) as u64 & 0xffff_ffff))
            }
        };
        let (a, b) = (term(first, first_extend, first_scale), term(value, extend, scale));
        Some((self.e.binary32(Binary32::Add, a, b), Extend::Signed, common))
    }

    pub(super) fn instruction_address(&mut self, a: &Addr) -> u32 {
        let base = self.e.reg(a.base);
        let part = |e: &mut super::emit::Emitter, p: Option<(Val, Extend, i64)>| {
            p.map(|(v, extend, scale)| Index { reg: e.reg(v), extend, scale })
        };
        let index = part(&mut self.e, a.index);
        let uniform = part(&mut self.e, a.uniform);
        self.e.address(Address {
            base,
            index,
            uniform,
            offset: a.offset,
            space: a.space,
            align: a.align.max(1),
        })
    }

    /// Returns the address as a 64-bit value.
    pub(super) fn address_value(&mut self, a: &Addr) -> Val {
        let mut sum = a.base;
        for (v, extend, scale) in [a.index, a.uniform].into_iter().flatten() {
            let wide = match extend {
                Extend::Wide => v,
                Extend::Signed => self.e.widen(Widen::Sext, v),
                Extend::Unsigned => self.e.widen(Widen::Zext, v),
            };
            let term = if scale == 1 {
                wide
            } else {
                self.e.binary64(Binary64::Mul, wide, Val::Const(scale as u64))
            };
            sum = self.e.binary64(Binary64::Add, sum, term);
        }
        if a.offset != 0 {
            sum = self.e.binary64(Binary64::Add, sum, Val::Const(a.offset as u64));
        }
        sum
    }

    fn space_of_access(&mut self, addr: &Addr, size: u32) {
        if addr.space != Some(PointerSpace::Private) {
            self.e.code.granule = self.e.code.granule.min(size);
        }
    }

    /// Loads a value of a type from memory.
    pub(super) fn load_memory(&mut self, addr: &Addr, ty: Type) -> Value {
        let leaves = self.leaves(ty);
        let uniform = addr.base.is_uniform()
            && addr.index.is_none()
            && addr.space.is_some_and(|s| s != PointerSpace::Private);
        let constant = addr.base.is_uniform() && addr.index.is_none() && self.is_constant(addr);
        let mut value = Value::with_capacity(leaves.len());
        let mut at = 0;
        while at < leaves.len() {
            let n = run_length(&leaves[at..]);
            let leaf = leaves[at];
            let file = if uniform || constant { File::Uniform } else { file_of(leaf.mem) };
            let regs: Value = (0..n).map(|_| Val::Reg(self.e.temporary(file))).collect();
            let list = self.e.list(&regs);
            let address = self.instruction_address(&addr.plus(i64::from(leaf.offset)));
            self.space_of_access(addr, leaf.mem.size());
            let copies = matches!(ty, Type::Record(_));
            self.e.push(Inst::Load { ty: leaf.mem, count: n as u8, list, address, copies });
            value.extend(regs);
            at += n;
        }
        value
    }

    /// Returns true if the address is that of a program-scope constant.
    fn is_constant(&self, addr: &Addr) -> bool {
        matches!(addr.base, Val::Const(a) if crate::memory::address::space(a) == PointerSpace::Constant)
    }

    /// Stores a value of a type to memory.
    pub(super) fn store_memory(&mut self, addr: &Addr, ty: Type, value: &Value, span: Span) {
        if self.unreachable {
            return;
        }
        if addr.space == Some(PointerSpace::Constant) {
            self.unsupported(span, "a store to a constant of program scope");
            return;
        }
        let leaves = self.leaves(ty);
        let mut at = 0;
        while at < leaves.len() && at < value.len() {
            let n = run_length(&leaves[at..]);
            let leaf = leaves[at];
            let list = self.e.list(&value[at..at + n]);
            let address = self.instruction_address(&addr.plus(i64::from(leaf.offset)));
            self.space_of_access(addr, leaf.mem.size());
            self.e.push(Inst::Store { ty: leaf.mem, count: n as u8, list, address });
            at += n;
        }
    }

    /// Reads a place.
    pub(super) fn load(&mut self, p: &Place) -> Value {
        let before = std::mem::replace(&mut self.e.span, p.span);
        let value = if let PlaceKind::Lanes { base, lanes } = &p.kind {
            match self.place(base) {
                Where::Memory(addr) if lanes.len() == 1 => {
                    let size = base.ty.element().map_or(1, |s| s.size());
                    self.load_memory(&addr.plus(i64::from(lanes[0]) * size as i64).aligned(size as u32), p.ty)
                }
                Where::Variable(id, at) => {
                    let size = base.ty.element().map_or(1, |s| s.size()) as u32;
                    let element = base.ty.element().map_or(Type::Void, Type::Scalar);
                    lanes
                        .iter()
                        .flat_map(|l| self.load_variable(id, at + u32::from(*l) * size, element))
                        .collect()
                }
                found => {
                    let whole = self.load_found(&found, base.ty);
                    lanes.iter().map(|l| whole[*l as usize]).collect()
                }
            }
        } else {
            let found = self.place(p);
            self.load_found(&found, p.ty)
        };
        self.e.span = before;
        value
    }

    /// Reads a resolved place.
    pub(super) fn load_found(&mut self, found: &Where, ty: Type) -> Value {
        match found {
            Where::Variable(id, at) => self.load_variable(*id, *at, ty),
            Where::Memory(addr) => self.load_memory(addr, ty),
        }
    }

    /// Stores to a place that [`Lower::place`] resolved.
    pub(super) fn store_found(&mut self, found: &Where, p: &Place, value: &Value) {
        let PlaceKind::Lanes { base, lanes } = &p.kind else {
            match found {
                Where::Variable(id, at) => self.store_variable(*id, *at, p.ty, value),
                Where::Memory(addr) => self.store_memory(addr, p.ty, value, p.span),
            }
            return;
        };
        let Some(element) = base.ty.element() else { return };
        match found {
            Where::Variable(id, at) => match self.find_leaves(*id, *at, base.ty) {
                Some((first, _)) => {
                    let leaves: Vec<usize> = lanes.iter().map(|l| first + *l as usize).collect();
                    self.store_leaves(*id, &leaves, value);
                }
                None => self.note(Fact::Memory(*id)),
            },
            Where::Memory(addr) => {
                for (lane, v) in lanes.iter().zip(value) {
                    let to =
                        addr.plus(i64::from(*lane) * element.size() as i64).aligned(element.size() as u32);
                    self.store_memory(&to, Type::Scalar(element), &vec![*v], p.span);
                }
            }
        }
    }

    /// Returns the difference of two pointers in elements.
    pub(super) fn difference(&mut self, left: Val, right: Val, scale: u64) -> Val {
        let bytes = self.e.binary64(Binary64::Sub, left, right);
        if scale <= 1 {
            return self.e.unary64(Unary64::Copy, bytes);
        }
        self.e.binary64(Binary64::DivS, bytes, Val::Const(scale))
    }
}

/// Returns the number of leaves from the first that are adjacent elements of one kind, at most 16.
fn run_length(leaves: &[super::Leaf]) -> usize {
    let first = leaves[0];
    let same = |(i, l): (usize, &super::Leaf)| {
        l.mem == first.mem && l.offset == first.offset + i as u32 * first.mem.size()
    };
    leaves.iter().take(16).enumerate().take_while(|(i, l)| same((*i, l))).count()
}
