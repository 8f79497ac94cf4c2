//! Atomic functions: those of OpenCL C 1.x (`atomic_add`, `atom_add`) and of 2.0 (`atomic_fetch_add_explicit`).

use super::super::{Sema, fold};
use super::Call;
use crate::hir::{Builtin, Expr, MemoryOrder};
use crate::types::{BOOL, INT, Scalar, Space, Type};

/// Functions on pointers to plain integers: suffix after `atomic_` or `atom_`, function, number of operands after the pointer.
const PLAIN: [(&str, Builtin, usize); 11] = [
    ("add", Builtin::AtomicAdd, 1),
    ("sub", Builtin::AtomicSub, 1),
    ("xchg", Builtin::AtomicXchg, 1),
    ("inc", Builtin::AtomicInc, 0),
    ("dec", Builtin::AtomicDec, 0),
    ("cmpxchg", Builtin::AtomicCmpxchg, 2),
    ("min", Builtin::AtomicMin, 1),
    ("max", Builtin::AtomicMax, 1),
    ("and", Builtin::AtomicAnd, 1),
    ("or", Builtin::AtomicOr, 1),
    ("xor", Builtin::AtomicXor, 1),
];

/// Functions on atomic types: name without `_explicit`, function, number of operands after the pointer, number of memory orders.
const TYPED: [(&str, Builtin, usize, usize); 15] = [
    ("atomic_init", Builtin::AtomicStore, 1, 0),
    ("atomic_store", Builtin::AtomicStore, 1, 1),
    ("atomic_load", Builtin::AtomicLoad, 0, 1),
    ("atomic_exchange", Builtin::AtomicXchg, 1, 1),
    ("atomic_compare_exchange_strong", Builtin::AtomicCompareExchange, 2, 2),
    ("atomic_compare_exchange_weak", Builtin::AtomicCompareExchange, 2, 2),
    ("atomic_fetch_add", Builtin::AtomicAdd, 1, 1),
    ("atomic_fetch_sub", Builtin::AtomicSub, 1, 1),
    ("atomic_fetch_or", Builtin::AtomicOr, 1, 1),
    ("atomic_fetch_xor", Builtin::AtomicXor, 1, 1),
    ("atomic_fetch_and", Builtin::AtomicAnd, 1, 1),
    ("atomic_fetch_min", Builtin::AtomicMin, 1, 1),
    ("atomic_fetch_max", Builtin::AtomicMax, 1, 1),
    ("atomic_flag_test_and_set", Builtin::AtomicFlagTestAndSet, 0, 1),
    ("atomic_flag_clear", Builtin::AtomicFlagClear, 0, 1),
];

fn plain_named(name: &str) -> Option<(Builtin, usize)> {
    let rest = name.strip_prefix("atomic_").or_else(|| name.strip_prefix("atom_"))?;
    PLAIN.iter().find(|p| p.0 == rest).map(|p| (p.1, p.2))
}

fn typed_named(name: &str) -> Option<(Builtin, usize, usize, bool)> {
    let (base, explicit) = match name.strip_suffix("_explicit") {
        Some(base) => (base, true),
        None => (name, false),
    };
    let found = TYPED.iter().find(|t| t.0 == base)?;
    (!explicit || found.3 > 0).then_some((found.1, found.2, found.3, explicit))
}

/// Returns true if a name is one of these functions.
pub(super) fn is_known(name: &str) -> bool {
    plain_named(name).is_some() || typed_named(name).is_some()
}

fn takes_floats(id: Builtin) -> bool {
    use Builtin::{AtomicAdd, AtomicLoad, AtomicMax, AtomicMin, AtomicStore, AtomicSub, AtomicXchg};
    matches!(id, AtomicAdd | AtomicSub | AtomicXchg | AtomicMin | AtomicMax | AtomicLoad | AtomicStore)
}

impl Sema<'_> {
    /// Analyzes a call of one of these functions.
    pub(super) fn call_atomic(&mut self, call: Call) -> Option<Expr> {
        match (plain_named(call.name), typed_named(call.name)) {
            (Some((id, operands)), _) => self.plain_atomic(call, id, operands),
            (_, Some((id, operands, orders, explicit))) => {
                // A scope may follow the orders.
                let (least, most) = if explicit { (orders, orders + 1) } else { (0, 0) };
                self.count_args(&call, 1 + operands + least, 1 + operands + most)?;
                let orders = if explicit { orders } else { 0 };
                self.typed_atomic(call, id, operands, orders)
            }
            _ => self.no_match(&call),
        }
    }

    fn plain_atomic(&mut self, call: Call, id: Builtin, operands: usize) -> Option<Expr> {
        self.count_args(&call, 1 + operands, 1 + operands)?;
        let Some(target) = self.types.pointee(call.args[0].ty) else { return self.no_match(&call) };
        let Type::Scalar(s) = target.to else { return self.no_match(&call) };
        let number = matches!(s, Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64);
        let float = s == Scalar::F32 && id == Builtin::AtomicXchg;
        let place = matches!(target.space, Space::Global | Space::Local | Space::Generic) && !target.is_const;
        if !place || !(number || float) {
            return self.no_match(&call);
        }
        self.atomic(call, id, operands, s, MemoryOrder::RELAXED)
    }

    fn typed_atomic(&mut self, call: Call, id: Builtin, operands: usize, orders: usize) -> Option<Expr> {
        let Some(target) = self.types.pointee(call.args[0].ty) else { return self.no_match(&call) };
        let Type::Atomic(s) = target.to else { return self.no_match(&call) };
        if s.is_float() && !takes_floats(id) || target.is_const {
            return self.no_match(&call);
        }
        if call.args[1 + operands..].iter().any(|order| !order.ty.is_integer()) {
            return self.no_match(&call);
        }
        let behind = &call.args[1 + operands..];
        let order = if call.name == "atomic_init" {
            MemoryOrder::RELAXED
        } else {
            MemoryOrder::of(behind.first(), behind[1.min(orders)..orders].first(), behind.get(orders))
        };
        self.atomic(call, id, operands, s, order)
    }

    fn atomic(
        &mut self,
        mut call: Call,
        id: Builtin,
        operands: usize,
        s: Scalar,
        order: MemoryOrder,
    ) -> Option<Expr> {
        let ty = Type::Scalar(s);
        call.args.truncate(1 + operands);
        let mut args = Vec::with_capacity(3);
        for (i, arg) in call.args.iter().enumerate() {
            let by_pointer = id == Builtin::AtomicCompareExchange && i == 1;
            if i == 0 {
                args.push(arg.clone());
            } else if by_pointer {
                let fits = self.types.pointee(arg.ty).is_some_and(|p| p.to == ty && !p.is_const);
                if !fits {
                    return self.no_match(&call);
                }
                args.push(arg.clone());
            } else if let Type::Scalar(_) = arg.ty {
                args.push(fold::convert(arg.clone(), ty));
            } else {
                return self.no_match(&call);
            }
        }
        let ret = match id {
            Builtin::AtomicStore | Builtin::AtomicFlagClear => Type::Void,
            Builtin::AtomicCompareExchange | Builtin::AtomicFlagTestAndSet => BOOL,
            _ => ty,
        };
        args.push(order.expr(call.span));
        let value = self.builtin(id, args, ret, call.span);
        Some(if ret == BOOL { fold::convert(value, INT) } else { value })
    }
}
