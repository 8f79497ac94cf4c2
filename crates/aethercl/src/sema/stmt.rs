//! Statements.

use super::{Nest, Sema, fold, labels};
use crate::hir::{Case, Expr, ExprKind, Stmt, StmtKind};
use crate::parse::ast;
use crate::source::Span;
use crate::types::Type;

/// Maximum number of values of one `case a ... b:`.
const MAX_RANGE: u64 = 4096;

impl Sema<'_> {
    /// Analyzes one statement; a declaration of several variables gives several statements.
    pub(super) fn statement(&mut self, stmt: &ast::Stmt, out: &mut Vec<Stmt>) -> Option<()> {
        let span = stmt.span;
        let kind = match &stmt.kind {
            ast::StmtKind::Declaration(declaration) => return self.local_declaration(declaration, out),
            ast::StmtKind::StaticAssert(assert) => return self.static_assert(assert),
            ast::StmtKind::Expr(None) => return Some(()),
            ast::StmtKind::Expr(Some(expr)) => StmtKind::Expr(self.rvalue(expr)?),
            ast::StmtKind::Block(list) => StmtKind::Block(self.scoped(|s| s.statements(list))?),
            ast::StmtKind::If(cond, then, otherwise) => {
                self.if_statement(cond, then, otherwise.as_deref())?
            }
            ast::StmtKind::While(cond, body) => {
                let cond = self.decision(cond).map(|cond| self.or_entered(body, cond));
                let body = self.looped(body);
                StmtKind::For { init: Vec::new(), cond: Some(cond?), step: None, body: Box::new(body?) }
            }
            ast::StmtKind::Do(body, cond) => {
                let body = self.looped(body);
                let cond = self.decision(cond);
                StmtKind::DoWhile { body: Box::new(body?), cond: cond? }
            }
            ast::StmtKind::For(init, cond, step, body) => {
                self.scoped(|s| s.for_loop(init.as_deref(), cond.as_ref(), step.as_ref(), body))?
            }
            ast::StmtKind::Switch(value, body) => self.switch(value, body, span)?,
            ast::StmtKind::Case(..) | ast::StmtKind::Default(_) => {
                return self.error(span, "a label of 'switch' must be directly in the switch's own block");
            }
            ast::StmtKind::Break => self.jump(true, span)?,
            ast::StmtKind::Continue => self.jump(false, span)?,
            ast::StmtKind::Label(..) => {
                return self.error(span, "a label among the cases of a 'switch' is not supported");
            }
            ast::StmtKind::Goto(name) => self.goto(*name, span)?,
            ast::StmtKind::Return(value) => self.return_value(value.as_ref(), span)?,
        };
        out.push(Stmt { kind, span });
        Some(())
    }

    /// `({ … })`.
    pub(super) fn statement_expression(&mut self, list: &[ast::Stmt], span: Span) -> Option<Expr> {
        if self.current.is_none() {
            return self.error(span, "statement expression not allowed at file scope");
        }
        let (before, last) = match list.split_last() {
            Some((ast::Stmt { kind: ast::StmtKind::Expr(Some(last)), .. }, before)) => (before, Some(last)),
            _ => (list, None),
        };
        self.nested(Nest::Expression, |s| {
            s.scoped(|s| {
                let statements = s.statements(before);
                let value = match last {
                    Some(last) => Some(Box::new(s.rvalue(last)?)),
                    None => None,
                };
                let ty = value.as_ref().map_or(Type::Void, |v| v.ty);
                Some(Expr { kind: ExprKind::Statements(statements?, value), ty, span })
            })
        })
    }

    fn jump(&mut self, breaks: bool, span: Span) -> Option<StmtKind> {
        let nest = self.current.as_ref().map_or(&[][..], |c| &c.nest);
        let fits =
            |n: &Nest| matches!(n, Nest::Loop | Nest::Expression) || (breaks && matches!(n, Nest::Switch));
        match nest.iter().rposition(fits) {
            Some(at) if matches!(nest[at], Nest::Expression) => {
                self.error(span, "a jump out of a statement expression is not supported")
            }
            Some(at) if breaks => Some(StmtKind::Break(labels::breakables(&nest[at + 1..]))),
            Some(at) => Some(StmtKind::Continue(labels::loops(&nest[at + 1..]))),
            None if breaks => self.error(span, "'break' statement not in loop or switch statement"),
            None => self.error(span, "'continue' statement not in loop statement"),
        }
    }

    /// Runs an analysis inside a construct that jumps can leave.
    pub(super) fn nested<T>(&mut self, nest: Nest, run: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(current) = &mut self.current {
            current.nest.push(nest);
        }
        let result = run(self);
        if let Some(current) = &mut self.current {
            current.nest.pop();
        }
        result
    }

    fn return_value(&mut self, value: Option<&ast::Expr>, span: Span) -> Option<StmtKind> {
        let ret = self.current.as_ref()?.ret;
        let Some(value) = value else {
            if ret != Type::Void {
                return self.error(span, "non-void function should return a value");
            }
            return Some(StmtKind::Return(None));
        };
        let expr = self.rvalue(value)?;
        if ret == Type::Void {
            if expr.ty == Type::Void {
                return self.error(span, "void function should not return void expression");
            }
            return self.error(span, "void function should not return a value");
        }
        let expr = self.implicit(expr, ret, "returning", value.span)?;
        Some(StmtKind::Return(Some(expr)))
    }

    /// Analyzes a condition as `bool`.
    fn decision(&mut self, cond: &ast::Expr) -> Option<Expr> {
        let value = self.rvalue(cond)?;
        self.condition(value)
    }

    fn if_statement(
        &mut self,
        cond: &ast::Expr,
        then: &ast::Stmt,
        otherwise: Option<&ast::Stmt>,
    ) -> Option<StmtKind> {
        let cond = self.decision(cond).map(|cond| {
            let cond = match otherwise {
                Some(body) => self.unless_entered(body, cond),
                None => cond,
            };
            self.or_entered(then, cond)
        });
        let then = self.body(then);
        let otherwise = match otherwise {
            Some(stmt) => Some(Box::new(self.body(stmt)?)),
            None => None,
        };
        Some(StmtKind::If { cond: cond?, then: Box::new(then?), otherwise })
    }

    /// Analyzes one statement in a separate block.
    fn body(&mut self, stmt: &ast::Stmt) -> Option<Stmt> {
        let mut list = self.scoped(|s| s.statements(labels::list_of(stmt)))?;
        let is_block = matches!(stmt.kind, ast::StmtKind::Block(_));
        let only = if list.len() == 1 && !is_block { list.pop() } else { None };
        Some(only.unwrap_or(Stmt { kind: StmtKind::Block(list), span: stmt.span }))
    }

    fn looped(&mut self, body: &ast::Stmt) -> Option<Stmt> {
        self.nested(Nest::Loop, |s| s.body(body))
    }

    fn for_loop(
        &mut self,
        init: Option<&ast::Stmt>,
        cond: Option<&ast::Expr>,
        step: Option<&ast::Expr>,
        body: &ast::Stmt,
    ) -> Option<StmtKind> {
        let mut first = Vec::new();
        let begun = match init {
            Some(stmt) => self.statement(stmt, &mut first),
            None => Some(()),
        };
        let first = self.unless_entered_first(body, first);
        let cond = match cond {
            Some(cond) => self.decision(cond).map(|cond| Some(self.or_entered(body, cond))),
            None => Some(None),
        };
        let step = match step {
            Some(step) => self.rvalue(step).map(Some),
            None => Some(None),
        };
        let body = self.looped(body);
        begun?;
        Some(StmtKind::For { init: first?, cond: cond?, step: step?, body: Box::new(body?) })
    }

    fn switch(&mut self, value: &ast::Expr, body: &ast::Stmt, span: Span) -> Option<StmtKind> {
        let value = self.rvalue(value)?;
        if !value.ty.is_integer() {
            let name = self.type_name(value.ty);
            return self
                .error(span, format!("statement requires expression of integer type ('{name}' invalid)"));
        }
        let value = self.promote(value);
        let ast::StmtKind::Block(list) = &body.kind else {
            return self.error(body.span, "the body of 'switch' must be a block");
        };
        let cases = self.nested(Nest::Switch, |s| s.scoped(|s| s.cases(list, value.ty)));
        Some(StmtKind::Switch { value, cases: cases? })
    }

    fn cases(&mut self, list: &[ast::Stmt], ty: Type) -> Option<Vec<Case>> {
        let mut cases: Vec<Case> = Vec::new();
        let mut all_fine = true;
        for stmt in list {
            let mut labels = Case { values: Vec::new(), is_default: false, body: Vec::new() };
            let mut inner = stmt;
            loop {
                match &inner.kind {
                    ast::StmtKind::Case(value, last, rest) => {
                        all_fine &= self.label(value, last.as_ref(), ty, &cases, &mut labels).is_some();
                        inner = rest;
                    }
                    ast::StmtKind::Default(rest) => {
                        if labels.is_default || cases.iter().any(|c| c.is_default) {
                            self.diagnostics.error(inner.span, "multiple default labels in one switch");
                            all_fine = false;
                        }
                        labels.is_default = true;
                        inner = rest;
                    }
                    _ => break,
                }
            }
            if labels.is_default || !labels.values.is_empty() {
                cases.push(labels);
            }
            let mut out = Vec::new();
            all_fine &= self.statement(inner, &mut out).is_some();
            match cases.last_mut() {
                Some(case) => case.body.append(&mut out),
                // Nothing runs before the first label, but declarations there are in scope.
                None => out.clear(),
            }
        }
        all_fine.then_some(cases)
    }

    fn label(
        &mut self,
        value: &ast::Expr,
        last: Option<&ast::Expr>,
        ty: Type,
        cases: &[Case],
        labels: &mut Case,
    ) -> Option<()> {
        let bits = self.label_value(value, ty)?;
        let end = match last {
            Some(last) => self.label_value(last, ty)?,
            None => bits,
        };
        if fold::signed(end, ty).wrapping_sub(fold::signed(bits, ty)) as u64 >= MAX_RANGE {
            return self.error(value.span, "case range is empty or too large");
        }
        let mut bits = bits;
        loop {
            if labels.values.contains(&bits) || cases.iter().any(|c| c.values.contains(&bits)) {
                let shown = fold::signed(bits, ty);
                return self.error(value.span, format!("duplicate case value '{shown}'"));
            }
            labels.values.push(bits);
            if bits == end {
                return Some(());
            }
            bits = bits.wrapping_add(1);
        }
    }

    /// Returns a label's value in the switch's type, extended to 64 bits.
    fn label_value(&mut self, value: &ast::Expr, ty: Type) -> Option<u64> {
        let (bits, from) = self.constant_integer(value)?;
        let converted = fold::convert(fold::int(bits, from, value.span), ty);
        match converted.kind {
            ExprKind::Int(bits) => Some(fold::signed(bits, ty) as u64),
            _ => None,
        }
    }
}
