//! Functions whose names contain types, and the few compiler built-ins that programs use.

use super::super::{Sema, fold};
use super::memory::rounding_suffix;
use super::{Call, atomic, image, memory};
use crate::hir::{Builtin, Expr, Rounding};
use crate::parse::type_named;
use crate::types::{Scalar, Type};

/// `convert_int4_sat_rte`: the type, rounding and saturation.
fn convert_named(name: &str) -> Option<(Type, Rounding, bool)> {
    let rest = name.strip_prefix("convert_")?;
    let (rest, rounding) = rounding_suffix(rest);
    let (rest, saturate) = match rest.strip_suffix("_sat") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let ty = arithmetic_named(rest)?;
    let float = ty.element().is_some_and(Scalar::is_float);
    (!(saturate && float)).then_some((ty, rounding.unwrap_or(Rounding::Default), saturate))
}

fn arithmetic_named(name: &str) -> Option<Type> {
    let exact = |ty: &Type| ty.element().is_some_and(|s| s != Scalar::Bool && name.starts_with(s.name()));
    type_named(name).filter(exact)
}

fn as_named(name: &str) -> Option<Type> {
    name.strip_prefix("as_").and_then(|rest| match rest {
        "size_t" | "uintptr_t" => Some(Type::Scalar(Scalar::U64)),
        "ptrdiff_t" | "intptr_t" => Some(Type::Scalar(Scalar::I64)),
        _ => arithmetic_named(rest),
    })
}

/// Functions of compilers.
const COMPILER: [&str; 8] = [
    "__builtin_inff",
    "__builtin_inf",
    "__builtin_nanf",
    "__builtin_nan",
    "__builtin_huge_valf",
    "__builtin_huge_val",
    "__builtin_expect",
    "__builtin_assume",
];

/// Returns true if a name is a function of this file or related files.
pub(super) fn is_known(name: &str) -> bool {
    memory::is_known(name)
        || atomic::is_known(name)
        || image::is_known(name)
        || convert_named(name).is_some()
        || as_named(name).is_some()
        || matches!(name, "shuffle" | "shuffle2")
        || COMPILER.contains(&name)
}

impl Sema<'_> {
    /// Analyzes a call of one of these functions.
    pub(super) fn call_special(&mut self, mut call: Call) -> Option<Expr> {
        if memory::is_known(call.name) {
            return self.call_memory(call);
        }
        if atomic::is_known(call.name) {
            return self.call_atomic(call);
        }
        if image::is_known(call.name) {
            return self.call_image(call);
        }
        if matches!(call.name, "shuffle" | "shuffle2") {
            return self.shuffle(call);
        }
        if let Some((ty, rounding, saturate)) = convert_named(call.name) {
            self.count_args(&call, 1, 1)?;
            let value = call.args.pop()?;
            return self.convert_type(ty, rounding, saturate, value, call.span);
        }
        if let Some(ty) = as_named(call.name) {
            self.count_args(&call, 1, 1)?;
            let value = call.args.pop()?;
            return self.as_type(ty, value, call.span);
        }
        self.compiler_function(call)
    }

    fn shuffle(&mut self, call: Call) -> Option<Expr> {
        let two = call.name == "shuffle2";
        let count = if two { 3 } else { 2 };
        self.count_args(&call, count, count)?;
        let (Type::Vector(s, _), Type::Vector(m, lanes)) = (call.args[0].ty, call.args[count - 1].ty) else {
            return self.no_match(&call);
        };
        let same = !two || call.args[0].ty == call.args[1].ty;
        if !same || m.is_float() || m.is_signed() || m.size() != s.size() {
            return self.no_match(&call);
        }
        let id = if two { Builtin::Shuffle2 } else { Builtin::Shuffle };
        let span = call.span;
        Some(self.builtin(id, call.args, Type::Vector(s, lanes), span))
    }

    fn compiler_function(&mut self, mut call: Call) -> Option<Expr> {
        let span = call.span;
        let single = matches!(call.name, "__builtin_inff" | "__builtin_nanf" | "__builtin_huge_valf");
        let float = if single { Scalar::F32 } else { Scalar::F64 };
        let float = if self.features.fp64 { float } else { Scalar::F32 };
        match call.name {
            "__builtin_expect" => {
                self.count_args(&call, 2, 2)?;
                call.args.truncate(1);
                let value = call.args.pop()?;
                self.implicit(value, Type::Scalar(Scalar::I64), "passing to parameter of type", span)
            }
            "__builtin_assume" => {
                self.count_args(&call, 1, 1)?;
                Some(Expr { ty: Type::Void, ..fold::int(0, crate::types::INT, span) })
            }
            name if name.contains("nan") => Some(fold::float(f64::NAN, Type::Scalar(float), span)),
            _ => Some(fold::float(f64::INFINITY, Type::Scalar(float), span)),
        }
    }
}
