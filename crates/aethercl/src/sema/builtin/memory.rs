//! Functions that move data: `vload` and `vstore` with their half forms, prefetch, asynchronous copies.

use super::super::{Sema, fold};
use super::Call;
use crate::hir::{Builtin, Expr, Rounding};
use crate::types::{INT, PointerType, SIZE_T, Scalar, Space, Type};

/// Splits `_rte` and similar suffixes from a name.
pub(super) fn rounding_suffix(name: &str) -> (&str, Option<Rounding>) {
    let all = [
        ("_rte", Rounding::Even),
        ("_rtz", Rounding::Zero),
        ("_rtp", Rounding::Up),
        ("_rtn", Rounding::Down),
    ];
    for (suffix, rounding) in all {
        if let Some(rest) = name.strip_suffix(suffix) {
            return (rest, Some(rounding));
        }
    }
    (name, None)
}

/// A vector load or store, by its name.
struct Vector {
    store: bool,
    half: bool,
    aligned: bool,
    lanes: u8,
    rounding: Rounding,
}

/// Returns the number of lanes at a name's end; no number means 1.
fn lanes_suffix(text: &str) -> Option<u8> {
    Some(match text {
        "" => 1,
        "2" => 2,
        "3" => 3,
        "4" => 4,
        "8" => 8,
        "16" => 16,
        _ => return None,
    })
}

fn vector_named(name: &str) -> Option<Vector> {
    let (name, rounding) = rounding_suffix(name);
    let store = name.starts_with("vstore");
    let rest = name.strip_prefix(if store { "vstore" } else { "vload" })?;
    if rounding.is_some() && !(store && rest.contains("_half")) {
        return None;
    }
    let rounding = rounding.unwrap_or(Rounding::Default);
    let (aligned, digits) = match (rest.strip_prefix("_half"), rest.strip_prefix("a_half")) {
        (Some(d), _) => (false, d),
        (_, Some(d)) => (true, d),
        _ => {
            let lanes = lanes_suffix(rest).filter(|n| *n > 1)?;
            return Some(Vector { store, half: false, aligned: false, lanes, rounding });
        }
    };
    Some(Vector { store, half: true, aligned, lanes: lanes_suffix(digits)?, rounding })
}

/// Returns true if a name is one of these functions.
pub(super) fn is_known(name: &str) -> bool {
    const FIXED: [&str; 5] = [
        "prefetch",
        "__builtin_prefetch",
        "async_work_group_copy",
        "async_work_group_strided_copy",
        "wait_group_events",
    ];
    FIXED.contains(&name) || vector_named(name).is_some()
}

impl Sema<'_> {
    /// Analyzes a call of one of these functions.
    pub(super) fn call_memory(&mut self, call: Call) -> Option<Expr> {
        match call.name {
            "prefetch" => self.prefetch(call),
            "__builtin_prefetch" => {
                let span = call.span;
                Some(Expr { ty: Type::Void, ..fold::int(0, INT, span) })
            }
            "async_work_group_copy" => self.async_copy(call, false),
            "async_work_group_strided_copy" => self.async_copy(call, true),
            "wait_group_events" => self.wait_events(call),
            name => match vector_named(name) {
                Some(v) if v.store => self.vector_store(call, &v),
                Some(v) => self.vector_load(call, &v),
                None => self.no_match(&call),
            },
        }
    }

    /// Reports that no overload takes these arguments.
    pub(super) fn no_match<T>(&mut self, call: &Call) -> Option<T> {
        let types: Vec<String> = call.args.iter().map(|a| format!("'{}'", self.type_name(a.ty))).collect();
        let message = format!(
            "no matching function for call to '{}' with arguments of types {}",
            call.name,
            types.join(", ")
        );
        self.error(call.span, message)
    }

    pub(super) fn count_args(&mut self, call: &Call, least: usize, most: usize) -> Option<()> {
        let have = call.args.len();
        if (least..=most).contains(&have) {
            return Some(());
        }
        let few = if have < least { "few" } else { "many" };
        let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
        self.error(
            call.span,
            format!("too {few} arguments to '{}', expected {wanted}, have {have}", call.name),
        )
    }

    /// Returns an integer argument as `size_t`.
    fn as_size(&mut self, call: &Call, index: usize) -> Option<Expr> {
        let arg = call.args.get(index)?.clone();
        // A `float` is also possible, because C converts arguments.
        if !matches!(arg.ty, Type::Scalar(_)) {
            return self.no_match(call);
        }
        Some(fold::convert(arg, SIZE_T))
    }

    fn vector_load(&mut self, call: Call, v: &Vector) -> Option<Expr> {
        self.count_args(&call, 2, 2)?;
        let offset = self.as_size(&call, 0)?;
        let Some(PointerType { to: Type::Scalar(element), .. }) = self.types.pointee(call.args[1].ty) else {
            return self.no_match(&call);
        };
        let wrong = if v.half { element != Scalar::F16 } else { element == Scalar::Bool };
        if wrong {
            return self.no_match(&call);
        }
        let id = match (v.half, v.aligned) {
            (false, _) => Builtin::Vload,
            (true, false) => Builtin::VloadHalf,
            (true, true) => Builtin::VloadaHalf,
        };
        let ty = Type::of_lanes(if v.half { Scalar::F32 } else { element }, v.lanes);
        let span = call.span;
        let pointer = call.args.into_iter().nth(1)?;
        Some(self.builtin(id, vec![offset, pointer], ty, span))
    }

    fn vector_store(&mut self, call: Call, v: &Vector) -> Option<Expr> {
        self.count_args(&call, 3, 3)?;
        let offset = self.as_size(&call, 1)?;
        let Some(target) = self.types.pointee(call.args[2].ty) else { return self.no_match(&call) };
        let Type::Scalar(element) = target.to else { return self.no_match(&call) };
        if target.is_const || target.space == Space::Constant {
            return self
                .error(call.args[2].span, format!("'{}' writes through a pointer to const", call.name));
        }
        let data = call.args[0].clone();
        let from = data.ty.element().unwrap_or(Scalar::Bool);
        let data = match (v.half, data.ty) {
            (true, _) if element != Scalar::F16 => return self.no_match(&call),
            // Scalars are converted; a value that is not `double` is stored as a `float`.
            (true, Type::Scalar(s)) if v.lanes == 1 => {
                let ty = if s == Scalar::F64 { s } else { Scalar::F32 };
                fold::convert(data, Type::Scalar(ty))
            }
            (true, ty) if ty.lanes() == v.lanes && matches!(from, Scalar::F32 | Scalar::F64) => data,
            (false, Type::Vector(s, n)) if s == element && n == v.lanes => data,
            (false, Type::Scalar(_)) => fold::splat(fold::convert(data, Type::Scalar(element)), v.lanes),
            _ => return self.no_match(&call),
        };
        let id = match (v.half, v.aligned) {
            (false, _) => Builtin::Vstore,
            (true, false) => Builtin::VstoreHalf(v.rounding),
            (true, true) => Builtin::VstoreaHalf(v.rounding),
        };
        let span = call.span;
        let pointer = call.args.into_iter().nth(2)?;
        Some(self.builtin(id, vec![data, offset, pointer], Type::Void, span))
    }

    fn prefetch(&mut self, call: Call) -> Option<Expr> {
        self.count_args(&call, 2, 2)?;
        let count = self.as_size(&call, 1)?;
        let global = self.types.pointee(call.args[0].ty).is_some_and(|p| p.space == Space::Global);
        if !global {
            return self.no_match(&call);
        }
        let span = call.span;
        let pointer = call.args.into_iter().next()?;
        Some(self.builtin(Builtin::Prefetch, vec![pointer, count], Type::Void, span))
    }

    fn async_copy(&mut self, call: Call, strided: bool) -> Option<Expr> {
        let wanted = if strided { 5 } else { 4 };
        self.count_args(&call, wanted, wanted)?;
        let (Some(to), Some(from)) =
            (self.types.pointee(call.args[0].ty), self.types.pointee(call.args[1].ty))
        else {
            return self.no_match(&call);
        };
        let spaces = (to.space, from.space);
        let fits = matches!(spaces, (Space::Local, Space::Global) | (Space::Global, Space::Local));
        if !fits || to.to != from.to || to.is_const || to.to.element().is_none() {
            return self.no_match(&call);
        }
        let mut args = vec![call.args[0].clone(), call.args[1].clone(), self.as_size(&call, 2)?];
        if strided {
            args.push(self.as_size(&call, 3)?);
        }
        let span = call.span;
        let event = call.args.into_iter().next_back()?;
        args.push(self.implicit(event, Type::Event, "passing to parameter of type", span)?);
        let id = if strided { Builtin::AsyncStridedCopy } else { Builtin::AsyncCopy };
        Some(self.builtin(id, args, Type::Event, span))
    }

    fn wait_events(&mut self, call: Call) -> Option<Expr> {
        self.count_args(&call, 2, 2)?;
        let list = self.types.pointee(call.args[1].ty).is_some_and(|p| p.to == Type::Event);
        if !list || !call.args[0].ty.is_integer() {
            return self.no_match(&call);
        }
        let span = call.span;
        let mut args = call.args.into_iter();
        let count = fold::convert(args.next()?, INT);
        let list = args.next()?;
        Some(self.builtin(Builtin::WaitGroupEvents, vec![count, list], Type::Void, span))
    }
}
