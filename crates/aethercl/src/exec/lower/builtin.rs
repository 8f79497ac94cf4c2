//! Language built-ins, lowered to element-wise or dedicated instructions.

use super::super::bytecode::{AtomicOp, Collective, File, Inst, NumberKind, preset};
use super::super::lanes::{Binary32, Binary64, Narrow, Ternary64, Unary32, Unary64, Widen};
use super::operator::is_wide;
use super::place::Addr;
use super::{Lower, Reg, Val, Value};
use crate::builtins::math::Math1;
use crate::hir::{Builtin, CompareOp, Expr, ExprKind, MemoryOrder, Rounding};
use crate::types::{Scalar, Type};

/// Returns a uniform register with a fixed meaning for the launch.
fn preset_value(index: u16) -> Val {
    Val::Pinned(Reg { file: File::Uniform, variable: false, index })
}

impl Lower<'_> {
    /// Returns the value of a built-in function.
    pub(super) fn builtin(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        use Builtin::*;
        match b {
            GetWorkDim | GetGlobalSize | GetGlobalId | GetLocalSize | GetEnqueuedLocalSize | GetLocalId
            | GetNumGroups | GetGroupId | GetGlobalOffset | GetGlobalLinearId | GetLocalLinearId => {
                vec![self.work_item(b, args)]
            }
            GetSubGroupSize
            | GetMaxSubGroupSize
            | GetNumSubGroups
            | GetEnqueuedNumSubGroups
            | GetSubGroupId
            | GetSubGroupLocalId => vec![self.sub_group_id(b)],
            Vload | Vstore | VloadHalf | VloadaHalf | VstoreHalf(_) | VstoreaHalf(_) => {
                self.vector_memory(b, args, e)
            }
            AtomicAdd
            | AtomicSub
            | AtomicXchg
            | AtomicInc
            | AtomicDec
            | AtomicCmpxchg
            | AtomicMin
            | AtomicMax
            | AtomicAnd
            | AtomicOr
            | AtomicXor
            | AtomicLoad
            | AtomicStore
            | AtomicCompareExchange
            | AtomicFlagTestAndSet
            | AtomicFlagClear => self.atomic(b, args, e),
            WorkGroupAll
            | WorkGroupAny
            | WorkGroupBroadcast
            | WorkGroupReduce(..)
            | SubGroupAll
            | SubGroupAny
            | SubGroupElect
            | SubGroupBroadcast
            | SubGroupBroadcastFirst
            | SubGroupReduce(..)
            | SubGroupShuffle
            | SubGroupShuffleXor
            | SubGroupShuffleUp
            | SubGroupShuffleDown
            | SubGroupBallot => self.collective(b, args, e),
            Fract | Frexp | Modf | Sincos | Remquo | LgammaR => self.two_results(b, args, e),
            ReadImage => self.read_image(args, e),
            WriteImage => self.write_image(args),
            ImageQuery(what) => self.image_query(what, args, e),
            _ => self.builtin_rest(b, args, e),
        }
    }

    fn builtin_rest(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        use Builtin::*;
        match b {
            Barrier => {
                let flags = self.scalar(&args[0]);
                let flags = self.e.reg(flags);
                self.effect(Inst::Barrier { flags })
            }
            WaitGroupEvents => {
                args.iter().for_each(|a| _ = self.value(a));
                // All lanes wait together and then see the copied data.
                let flags = self.e.reg(Val::Const(3));
                self.effect(Inst::Barrier { flags })
            }
            SubGroupBarrier if self.checked => {
                let flags = self.scalar(&args[0]);
                let flags = self.e.reg(flags);
                self.effect(Inst::SubGroupBarrier { flags })
            }
            MemFence if self.checked => {
                let flags = self.scalar(&args[0]);
                let flags = self.e.reg(flags);
                self.effect(Inst::Fence { order: MemoryOrder::from_expr(args.last()), flags })
            }
            SubGroupBarrier | MemFence | Prefetch => {
                args.iter().for_each(|a| _ = self.value(a));
                Vec::new()
            }
            Trap => {
                let value = self.effect(Inst::Trap);
                self.unreachable = true;
                value
            }
            AsyncCopy | AsyncStridedCopy => self.async_copy(b, args),
            _ => {
                let values: Vec<Value> = args.iter().map(|a| self.value(a)).collect();
                self.numeric(b, args, &values, e)
            }
        }
    }

    pub(super) fn effect(&mut self, inst: Inst) -> Value {
        if !self.unreachable {
            self.e.push(inst);
        }
        Vec::new()
    }

    /// Returns a local or global id that is converted to 32 bits at once: `int i = get_local_id(0)`.
    pub(super) fn short_id(&mut self, operand: &Expr, to: Type) -> Option<Val> {
        let ExprKind::Builtin(b @ (Builtin::GetLocalId | Builtin::GetGlobalId), args) = &operand.kind else {
            return None;
        };
        let (Type::Scalar(Scalar::I32 | Scalar::U32), [Expr { kind: ExprKind::Int(d @ 0..=2), .. }]) =
            (to, &args[..])
        else {
            return None;
        };
        let id = Val::Pinned(Reg { file: File::Word, variable: false, index: preset::LOCAL_ID + *d as u16 });
        if *b == Builtin::GetLocalId {
            return Some(id);
        }
        let base = self.e.narrow(Narrow::Low, preset_value(preset::BASE + *d as u16));
        Some(self.e.binary32(Binary32::Add, id, base))
    }

    fn work_item(&mut self, b: Builtin, args: &[Expr]) -> Val {
        let d = match args.first().map(|a| self.scalar(a)) {
            None => 0,
            Some(Val::Const(d)) => d,
            Some(d) => return self.work_item_of(b, d),
        };
        self.work_item_in(b, d)
    }

    /// Returns a work-item function whose dimension is known only at run time.
    fn work_item_of(&mut self, b: Builtin, d: Val) -> Val {
        let mut value = self.work_item_in(b, 3);
        for known in 0..3 {
            let own = self.work_item_in(b, known);
            let here = self.compare_scalar(CompareOp::Eq, Scalar::U32, d, Val::Const(known));
            let here = self.e.widen(Widen::Zext, here);
            value = self.e.ternary64(Ternary64::Select, here, own, value);
        }
        value
    }

    fn work_item_in(&mut self, b: Builtin, d: u64) -> Val {
        use Builtin::*;
        let lanes = |index| Val::Pinned(Reg { file: File::Long, variable: false, index });
        let beyond = d > 2;
        let at = d.min(2) as u16;
        match b {
            GetWorkDim => preset_value(preset::WORK_DIM),
            GetGlobalSize | GetLocalSize | GetEnqueuedLocalSize | GetNumGroups if beyond => Val::Const(1),
            GetGlobalId | GetLocalId | GetGroupId | GetGlobalOffset if beyond => Val::Const(0),
            GetGlobalSize => preset_value(preset::GLOBAL_SIZE + at),
            GetLocalSize => preset_value(preset::LOCAL_SIZE + at),
            GetEnqueuedLocalSize => preset_value(preset::ENQUEUED_SIZE + at),
            GetNumGroups => preset_value(preset::GROUPS + at),
            GetGroupId => preset_value(preset::GROUP + at),
            GetGlobalOffset => preset_value(preset::OFFSET + at),
            GetLocalId => lanes(preset::LOCAL_ID + at),
            GetLocalLinearId => lanes(preset::LINEAR_ID),
            GetGlobalId => {
                self.e.binary64(Binary64::Add, lanes(preset::LOCAL_ID + at), preset_value(preset::BASE + at))
            }
            // GetGlobalLinearId: ((z * height) + y) * width + x, without the offset.
            _ => {
                let mut sum = Val::Const(0);
                for d in [2, 1, 0] {
                    let id = self.e.binary64(
                        Binary64::Add,
                        lanes(preset::LOCAL_ID + d),
                        preset_value(preset::BASE + d),
                    );
                    let id = self.e.binary64(Binary64::Sub, id, preset_value(preset::OFFSET + d));
                    let row = self.e.binary64(Binary64::Mul, sum, preset_value(preset::GLOBAL_SIZE + d));
                    sum = self.e.binary64(Binary64::Add, row, id);
                }
                sum
            }
        }
    }

    fn sub_group_id(&mut self, b: Builtin) -> Val {
        let linear = Val::Pinned(Reg { file: File::Word, variable: false, index: preset::LINEAR_ID });
        let size = preset_value(preset::SUB_GROUP);
        let items = self.e.narrow(Narrow::Low, preset_value(preset::ITEMS));
        match b {
            Builtin::GetMaxSubGroupSize => self.e.binary32(Binary32::MinU, size, items),
            Builtin::GetSubGroupId => self.e.binary32(Binary32::DivU, linear, size),
            Builtin::GetSubGroupLocalId => self.e.binary32(Binary32::RemU, linear, size),
            Builtin::GetSubGroupSize => {
                // The last sub-group may be smaller.
                let id = self.e.binary32(Binary32::DivU, linear, size);
                let first = self.e.binary32(Binary32::Mul, id, size);
                let rest = self.e.binary32(Binary32::Sub, items, first);
                self.e.binary32(Binary32::MinU, size, rest)
            }
            _ => {
                let up = self.e.binary32(Binary32::Add, items, size);
                let up = self.e.binary32(Binary32::Sub, up, Val::Const(1));
                self.e.binary32(Binary32::DivU, up, size)
            }
        }
    }

    /// Lowers `vload`, `vstore` and their `half` forms.
    fn vector_memory(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        let loads = matches!(b, Builtin::Vload | Builtin::VloadHalf | Builtin::VloadaHalf);
        let aligned = matches!(b, Builtin::VloadaHalf | Builtin::VstoreaHalf(_));
        let data = if loads { Value::new() } else { self.value(&args[0]) };
        let (offset, pointer) = if loads { (&args[0], &args[1]) } else { (&args[1], &args[2]) };
        let ty = if loads { e.ty } else { args[0].ty };
        let half = !matches!(b, Builtin::Vload | Builtin::Vstore);
        let element = if half { Scalar::F16 } else { ty.element().unwrap_or(Scalar::F32) };
        let lanes = ty.lanes();
        let stride = if aligned && lanes == 3 { 4 } else { u64::from(lanes) } * element.size();
        let align = if aligned { stride } else { element.size() } as u32;
        let addr = self.pointer(pointer).aligned(align);
        let addr = self.add_index(addr, offset, stride as i64).aligned(align);
        let stored = Type::of_lanes(element, lanes);
        if loads {
            let value = self.load_memory(&addr, stored);
            return if half { value.iter().map(|v| self.half_to_float(*v)).collect() } else { value };
        }
        let rounding = match b {
            Builtin::VstoreHalf(r) | Builtin::VstoreaHalf(r) => r,
            _ => Rounding::Default,
        };
        let from = ty.element().unwrap_or(Scalar::F32);
        let data = if half {
            data.iter().map(|v| self.float_to_float(from, Scalar::F16, *v, rounding)).collect()
        } else {
            data
        };
        self.store_memory(&addr, stored, &data, e.span);
        Vec::new()
    }

    fn atomic(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        use Builtin::*;
        let (order, args) = match args.split_last() {
            Some((order, args)) => (MemoryOrder::from_expr(Some(order)), args),
            None => (MemoryOrder::RELAXED, args),
        };
        let pointee = self.program.types.pointee(args[0].ty);
        let element = match pointee.map(|p| p.to) {
            Some(Type::Scalar(s) | Type::Atomic(s)) => s,
            _ => Scalar::I32,
        };
        let addr = self.pointer(&args[0]);
        let expected = if b == AtomicCompareExchange { Some(self.pointer(&args[1])) } else { None };
        let mut values: Value = match b {
            AtomicInc | AtomicDec | AtomicFlagTestAndSet => vec![Val::Const(1)],
            AtomicFlagClear | AtomicLoad => vec![Val::Const(0)],
            AtomicCompareExchange => {
                let old = self.load_memory(&expected.unwrap_or(addr), Type::Scalar(element));
                vec![old[0], self.scalar(&args[2])]
            }
            _ => args[1..].iter().map(|a| self.scalar(a)).collect(),
        };
        values.resize(2, Val::Const(0));
        let (float, unsigned) = (element.is_float(), !element.is_signed());
        let op = match b {
            AtomicAdd if float => AtomicOp::AddF,
            AtomicAdd | AtomicInc => AtomicOp::Add,
            AtomicSub if float => AtomicOp::SubF,
            AtomicSub | AtomicDec => AtomicOp::Sub,
            AtomicMin if float => AtomicOp::MinF,
            AtomicMin if unsigned => AtomicOp::MinU,
            AtomicMin => AtomicOp::Min,
            AtomicMax if float => AtomicOp::MaxF,
            AtomicMax if unsigned => AtomicOp::MaxU,
            AtomicMax => AtomicOp::Max,
            AtomicAnd => AtomicOp::And,
            AtomicOr => AtomicOp::Or,
            AtomicXor => AtomicOp::Xor,
            AtomicLoad => AtomicOp::Load,
            AtomicStore | AtomicFlagClear => AtomicOp::Store,
            AtomicCmpxchg | AtomicCompareExchange => AtomicOp::CompareExchange,
            _ => AtomicOp::Exchange,
        };
        let old = self.atomic_instruction(op, element, addr, &values, order);
        match b {
            AtomicCompareExchange => {
                if let Some(expected) = expected {
                    self.store_memory(&expected, Type::Scalar(element), &vec![old], e.span);
                }
                let kind = element.unsigned_of_width();
                vec![self.compare_scalar(CompareOp::Eq, kind, old, values[0])]
            }
            AtomicFlagTestAndSet => vec![self.not_zero(element, old)],
            AtomicStore | AtomicFlagClear => Vec::new(),
            _ => vec![old],
        }
    }

    fn atomic_instruction(
        &mut self,
        op: AtomicOp,
        element: Scalar,
        addr: Addr,
        values: &[Val],
        order: MemoryOrder,
    ) -> Val {
        let wide = is_wide(element);
        let dst = self.e.temporary(if wide { File::Long } else { File::Word });
        let list = self.e.list(values);
        let shared = addr.space() != Some(crate::memory::address::PointerSpace::Local);
        self.e.code.global_atomics |= shared;
        self.e.code.granule = self.e.code.granule.min(4);
        let address = self.instruction_address(&addr.aligned(element.size() as u32));
        if !self.unreachable {
            self.e.push(Inst::Atomic { op, wide, dst, list, address, order });
        }
        Val::Reg(dst)
    }

    fn async_copy(&mut self, b: Builtin, args: &[Expr]) -> Value {
        let pointee = self.program.types.pointee(args[0].ty);
        let bytes = pointee.map_or(1, |p| self.program.types.size(p.to)) as u32;
        let strided = b == Builtin::AsyncStridedCopy;
        let count = if strided { 4 } else { 3 };
        let mut values: Value = args[..count].iter().map(|a| self.scalar(a)).collect();
        values.resize(4, Val::Const(1));
        // 1: the stride is the source's; 2: the target's.
        let list = self.e.list(&values);
        self.e.code.granule = self.e.code.granule.min(bytes.min(4));
        self.effect(Inst::AsyncCopy { bytes, list, strided });
        vec![self.scalar(&args[count])]
    }

    fn collective(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        use Builtin::*;
        let group = matches!(b, WorkGroupAll | WorkGroupAny | WorkGroupBroadcast | WorkGroupReduce(..));
        let element = e.ty.element().unwrap_or(Scalar::I32);
        let wide = is_wide(element);
        let number = match element {
            s if s.is_float() => NumberKind::Float,
            s if s.is_signed() => NumberKind::Signed,
            _ => NumberKind::Unsigned,
        };
        let values: Vec<Value> = args.iter().map(|a| self.value(a)).collect();
        let index = self.collective_index(b, args, &values);
        let ops: Vec<Collective> = match b {
            WorkGroupAll | SubGroupAll => vec![Collective::All],
            WorkGroupAny | SubGroupAny => vec![Collective::Any],
            WorkGroupBroadcast | SubGroupBroadcast => vec![Collective::Broadcast],
            SubGroupBroadcastFirst => vec![Collective::BroadcastFirst],
            SubGroupElect => vec![Collective::Elect],
            SubGroupShuffle => vec![Collective::Shuffle],
            SubGroupShuffleXor => vec![Collective::ShuffleXor],
            SubGroupShuffleUp => vec![Collective::ShuffleUp],
            SubGroupShuffleDown => vec![Collective::ShuffleDown],
            SubGroupBallot => (0..4).map(Collective::Ballot).collect(),
            WorkGroupReduce(r, s) | SubGroupReduce(r, s) => vec![Collective::Reduce(r, s, number)],
            _ => Vec::new(),
        };
        let empty = vec![Val::Const(0)];
        let operand = values.first().unwrap_or(&empty);
        let mut out = Value::new();
        for v in operand {
            for op in &ops {
                let dst = self.e.temporary(if wide { File::Long } else { File::Word });
                let scope = Val::Const(u64::from(group));
                let list = self.e.list(&[*v, index, scope]);
                self.effect(Inst::Collective { op: *op, wide, dst, list });
                out.push(Val::Reg(dst));
            }
        }
        out
    }

    /// Returns the linear index of a broadcast or shuffle.
    fn collective_index(&mut self, b: Builtin, args: &[Expr], values: &[Value]) -> Val {
        if args.len() < 2 {
            return Val::Const(0);
        }
        let low = |l: &mut Self, i: usize| {
            let from = args[i].ty.element().unwrap_or(Scalar::U32);
            l.convert_scalar(from, Scalar::U32, values[i][0], Rounding::Default, false)
        };
        let mut index = low(self, 1);
        if b == Builtin::WorkGroupBroadcast && args.len() > 2 {
            let mut stride = self.e.narrow(Narrow::Low, preset_value(preset::LOCAL_SIZE));
            for d in 2..args.len() {
                let i = low(self, d);
                let term = self.e.binary32(Binary32::Mul, i, stride);
                index = self.e.binary32(Binary32::Add, index, term);
                let next = self.e.narrow(Narrow::Low, preset_value(preset::LOCAL_SIZE + d as u16 - 1));
                stride = self.e.binary32(Binary32::Mul, stride, next);
            }
        }
        index
    }

    /// Lowers functions that write a second result through a pointer.
    fn two_results(&mut self, b: Builtin, args: &[Expr], e: &Expr) -> Value {
        use Builtin::*;
        let x = self.value(&args[0]);
        let y = if b == Remquo { Some(self.value(&args[1])) } else { None };
        let pointer = &args[args.len() - 1];
        let to = self.pointer(pointer);
        let target = self.program.types.pointee(pointer.ty).map_or(e.ty, |p| p.to);
        let s = e.ty.element().unwrap_or(Scalar::F32);
        let (mut first, mut second) = (Value::new(), Value::new());
        for (i, v) in x.iter().enumerate() {
            let v = if s == Scalar::F16 { self.half_to_float(*v) } else { *v };
            let other =
                y.as_ref().map_or(v, |y| if s == Scalar::F16 { self.half_to_float(y[i]) } else { y[i] });
            let (a, c) = self.two_results_scalar(b, s == Scalar::F64, v, other);
            let back =
                |l: &mut Self, v: Val| if s == Scalar::F16 { l.e.unary32(Unary32::FToHalf, v) } else { v };
            first.push(back(self, a));
            second.push(if matches!(b, Fract | Modf | Sincos) { back(self, c) } else { c });
        }
        self.store_memory(&to, target, &second, e.span);
        first
    }

    fn two_results_scalar(&mut self, b: Builtin, wide: bool, x: Val, y: Val) -> (Val, Val) {
        use Builtin::*;
        let math = |l: &mut Self, f: Math1| l.e.math(f, x, wide);
        match b {
            Fract => {
                let whole = if wide {
                    self.e.unary64(Unary64::FloorF, x)
                } else {
                    self.e.unary32(Unary32::FloorF, x)
                };
                (math(self, Math1::Fract), whole)
            }
            Modf => {
                // The fraction keeps the sign, also of zero; of an infinity it is zero.
                let whole = if wide {
                    self.e.unary64(Unary64::TruncF, x)
                } else {
                    self.e.unary32(Unary32::TruncF, x)
                };
                let (fraction, infinite) = if wide {
                    (self.e.binary64(Binary64::SubF, x, whole), self.e.narrow(Narrow::IsinfF, x))
                } else {
                    (self.e.binary32(Binary32::SubF, x, whole), self.e.unary32(Unary32::IsinfF, x))
                };
                let ty = Type::Scalar(if wide { Scalar::F64 } else { Scalar::F32 });
                let fraction = self.select(
                    crate::types::INT,
                    ty,
                    &vec![infinite],
                    &vec![Val::Const(0)],
                    &vec![fraction],
                )[0];
                let signed = if wide {
                    self.e.binary64(Binary64::CopysignF, fraction, x)
                } else {
                    self.e.binary32(Binary32::CopysignF, fraction, x)
                };
                (signed, whole)
            }
            Sincos if wide => (math(self, Math1::Sin), math(self, Math1::Cos)),
            Sincos => (self.e.unary32(Unary32::SinF, x), self.e.unary32(Unary32::CosF, x)),
            Frexp if wide => (self.e.unary64(Unary64::MantissaF, x), self.e.narrow(Narrow::ExponentF, x)),
            Frexp => (self.e.unary32(Unary32::MantissaF, x), self.e.unary32(Unary32::ExponentF, x)),
            Remquo if wide => {
                let quotient = self.e.binary64(Binary64::RemquoQuotientF, x, y);
                (self.e.binary64(Binary64::RemquoF, x, y), self.e.narrow(Narrow::Low, quotient))
            }
            Remquo => {
                (self.e.binary32(Binary32::RemquoF, x, y), self.e.binary32(Binary32::RemquoQuotientF, x, y))
            }
            _ if wide => (math(self, Math1::Lgamma), self.e.narrow(Narrow::LgammaSignF, x)),
            _ => (math(self, Math1::Lgamma), self.e.unary32(Unary32::LgammaSignF, x)),
        }
    }
}
