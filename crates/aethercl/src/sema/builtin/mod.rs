//! Built-in functions: resolves the function of a call, and converts its operands.

mod atomic;
mod format;
mod image;
mod memory;
mod resolve;
mod special;
mod table;

use std::collections::HashMap;

use super::{Sema, fold};
use crate::hir::{Builtin, Expr, ExprKind, MemoryOrder, MemoryScope};
use crate::lex::Symbol;
use crate::parse::ast;
use crate::source::Span;
use crate::types::{BOOL, INT, Type};
use table::{Action, Row, TABLES};

/// The functions with fixed names.
pub(super) struct Table {
    rows: HashMap<&'static str, &'static Row>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { rows: TABLES.iter().copied().flatten().map(|row| (row.0, row)).collect() }
    }

    /// Names for "did you mean".
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let more =
            ["printf", "prefetch", "vload4", "vstore4", "vload_half", "vstore_half", "shuffle", "shuffle2"];
        let atomics =
            ["atomic_add", "atomic_sub", "atomic_inc", "atomic_dec", "atomic_cmpxchg", "atomic_xchg"];
        let converts = [
            "convert_int",
            "convert_float",
            "convert_int4",
            "convert_float4",
            "as_int",
            "as_uint",
            "as_float",
        ];
        self.rows.keys().copied().chain(more).chain(atomics).chain(converts)
    }
}

/// A call being resolved.
pub(super) struct Call<'c> {
    /// The function's name.
    pub name: &'c str,
    /// Its arguments, with their original types.
    pub args: Vec<Expr>,
    /// Place of the call in the source.
    pub span: Span,
}

impl Sema<'_> {
    /// Analyzes a call of a function that the program does not define.
    pub(super) fn call_builtin(
        &mut self,
        symbol: Symbol,
        asts: &[ast::Expr],
        args: Option<Vec<Expr>>,
        span: Span,
    ) -> Option<Expr> {
        let name = self.text(symbol).to_string();
        if let Some(why) = unsupported(&name) {
            return self.error(span, format!("function '{name}' is not supported: {why}"));
        }
        if name == "printf" {
            return self.printf(asts, args?, span);
        }
        let known = self.builtins.rows.contains_key(name.as_str());
        if !known && !special::is_known(&name) {
            let hint = self.suggest(symbol, true);
            return self.error(span, format!("use of undeclared function '{name}'{hint}"));
        }
        let args = args?;
        // Functions that a compiler evaluates on constants may be used outside functions.
        let folds = ["__builtin_", "as_", "convert_"].iter().any(|prefix| name.starts_with(prefix));
        if self.current.is_none() && !folds {
            return self.error(span, "initializer element is not a compile-time constant");
        }
        match self.builtins.rows.get(name.as_str()).copied() {
            Some((_, action, signature)) => self.call_row(&name, *action, signature, args, span),
            None => self.call_special(Call { name: &name, args, span }),
        }
    }

    fn call_row(
        &mut self,
        name: &str,
        action: Action,
        signature: &'static str,
        args: Vec<Expr>,
        span: Span,
    ) -> Option<Expr> {
        let (mut args, ty) = self.resolve(name, signature, args, span)?;
        match action {
            Action::B(Builtin::MemFence) => {
                let order = self.fence_order(name, &args);
                args.truncate(1);
                args.push(order.expr(span));
                Some(self.builtin(Builtin::MemFence, args, ty, span))
            }
            Action::B(id @ (Builtin::Barrier | Builtin::SubGroupBarrier)) => {
                args.truncate(1);
                Some(self.builtin(id, args, ty, span))
            }
            Action::B(id) => Some(self.builtin(id, args, ty, span)),
            Action::Compare(op) => {
                let (right, left) = (args.pop()?, args.pop()?);
                let result = fold::compare(op, left, right, span);
                Some(if result.ty == BOOL { fold::convert(result, INT) } else { result })
            }
            Action::Choose => {
                // select(a, b, c) takes b if c holds.
                let (cond, then, otherwise) = (args.pop()?, args.pop()?, args.pop()?);
                let (cond, then, otherwise) = (Box::new(cond), Box::new(then), Box::new(otherwise));
                Some(Expr { kind: ExprKind::Select { cond, then, otherwise }, ty, span })
            }
        }
    }

    /// Returns the order of a fence. The fences of OpenCL C 1.x do not have a scope: their order is visible to all; since 2.0 they have work-group
    /// scope.
    fn fence_order(&self, name: &str, args: &[Expr]) -> MemoryOrder {
        let order = match name {
            "mem_fence" => MemoryOrder::FULL,
            "read_mem_fence" => MemoryOrder::ACQUIRE,
            "write_mem_fence" => MemoryOrder::RELEASE,
            _ => return MemoryOrder::of(args.get(1), None, args.get(2)),
        };
        if self.features.version < 200 { order } else { order.within(MemoryScope::Group) }
    }

    pub(super) fn builtin(&mut self, id: Builtin, args: Vec<Expr>, ty: Type, span: Span) -> Expr {
        Expr { kind: ExprKind::Builtin(id, args), ty, span }
    }
}

/// Returns the reason why a built-in function is not supported.
fn unsupported(name: &str) -> Option<&'static str> {
    let starts = |list: &[&str]| list.iter().any(|p| name.starts_with(p));
    if starts(&[
        "read_pipe",
        "write_pipe",
        "reserve_",
        "commit_",
        "get_pipe_",
        "enqueue_",
        "get_kernel_",
        "ndrange_",
    ]) {
        return Some("this device does not have pipes or device-side queues");
    }
    if starts(&["__nvvm", "nvvm_", "__builtin_amdgcn", "__builtin_nvptx", "intel_sub_group_"]) {
        return Some("it needs a vendor instruction, which this device does not have");
    }
    None
}
