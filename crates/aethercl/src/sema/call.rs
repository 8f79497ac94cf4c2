//! Calls.

use super::Sema;
use super::scope::Entity;
use crate::hir::{Expr, ExprKind, FunctionId};
use crate::parse::ast;
use crate::source::Span;

impl Sema<'_> {
    /// `f(…)`: a function of the program, or of the language.
    pub(super) fn call(&mut self, callee: &ast::Expr, args: &[ast::Expr], span: Span) -> Option<Expr> {
        let ast::ExprKind::Name(name) = callee.kind else {
            return self.error(span, "called object is not a function");
        };
        match self.lookup(name) {
            Some(Entity::Function(index)) => self.call_own(index, args, span),
            Some(Entity::Broken) => None,
            Some(_) => {
                let name = self.text(name).to_string();
                self.error(span, format!("called object '{name}' is not a function"))
            }
            None => {
                let values: Vec<_> = args.iter().map(|a| self.rvalue(a)).collect();
                let values = values.into_iter().collect::<Option<Vec<_>>>();
                self.call_builtin(name, args, values, span)
            }
        }
    }

    fn call_own(&mut self, index: usize, args: &[ast::Expr], span: Span) -> Option<Expr> {
        let values: Vec<_> = args.iter().map(|a| self.rvalue(a)).collect();
        let function = &self.functions[index];
        let (ret, params, name, defined) =
            (function.ret, function.params.clone(), function.name.clone(), function.span);
        if params.len() != args.len() {
            let few = if args.len() < params.len() { "few" } else { "many" };
            let message = format!(
                "too {few} arguments to function call, expected {}, have {}",
                params.len(),
                args.len()
            );
            let note = vec![(defined, format!("'{name}' declared here"))];
            self.diagnostics.error_with(span, message, note);
            return None;
        }
        let mut converted = Vec::with_capacity(values.len());
        let mut all_fine = true;
        for ((value, ty), ast) in values.into_iter().zip(params).zip(args) {
            let value = value.and_then(|v| self.implicit(v, ty, "passing to parameter of type", ast.span));
            all_fine &= value.is_some();
            converted.extend(value);
        }
        if !all_fine {
            return None;
        }
        self.functions[index].called.get_or_insert(span);
        let Some(current) = &mut self.current else {
            return self.error(span, "initializer element is not a compile-time constant");
        };
        if !current.calls.iter().any(|(callee, _)| *callee == index) {
            current.calls.push((index, span));
        }
        Some(Expr { kind: ExprKind::Call(FunctionId(index as u32), converted), ty: ret, span })
    }
}
