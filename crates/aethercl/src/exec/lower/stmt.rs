//! Statements but loops.

use super::super::bytecode::{Inst, JumpTarget, Reg};
use super::facts::Fact;
use super::{Breakable, Lower, Val, Value, site};
use crate::hir::{Case, CompareOp, Expr, Stmt, StmtKind};
use crate::types::{Scalar, Type};

impl Lower<'_> {
    /// Lowers the statements of a block; its variables end with it.
    pub(super) fn block(&mut self, list: &[Stmt]) {
        let owned = self.owned.len();
        for s in list {
            if self.unreachable || self.error.is_some() {
                break;
            }
            self.statement(s);
        }
        self.end_scope(owned);
    }

    /// Lowers statements, then a value.
    pub(super) fn statement_expression(&mut self, list: &[Stmt], value: Option<&Expr>, ty: Type) -> Value {
        let owned = self.owned.len();
        for s in list {
            if self.unreachable || self.error.is_some() {
                break;
            }
            self.statement(s);
        }
        let value = match value {
            Some(e) if !self.unreachable => self.value(e),
            _ => vec![Val::Const(0); self.leaves(ty).len()],
        };
        self.hold_scope(owned);
        value
    }

    /// Releases the registers of variables declared since then at the end of the enclosing statement, because its value may be in them.
    pub(super) fn hold_scope(&mut self, owned: usize) {
        let regs: Vec<Reg> = self.owned.drain(owned..).collect();
        regs.into_iter().for_each(|r| self.e.hold(r));
    }

    /// Releases the registers of variables declared since then.
    pub(super) fn end_scope(&mut self, owned: usize) {
        while self.owned.len() > owned {
            if let Some(reg) = self.owned.pop() {
                self.e.release(reg);
            }
        }
    }

    /// Lowers one statement; its temporaries end with it.
    pub(super) fn statement(&mut self, s: &Stmt) {
        let before = std::mem::replace(&mut self.e.span, s.span);
        self.spend();
        if self.error.is_some() {
            self.e.span = before;
            return;
        }
        let mark = self.e.mark();
        match &s.kind {
            StmtKind::Block(list) => self.block(list),
            StmtKind::Declare { local, init } => self.declare(*local, init.as_ref(), s.span),
            StmtKind::Expr(e) => {
                self.value(e);
            }
            StmtKind::If { cond, then, otherwise } => {
                let owned = self.owned.len();
                self.if_statement(cond, then, otherwise.as_deref());
                self.end_scope(owned);
            }
            StmtKind::For { init, cond, step, body } => {
                self.for_statement(s, init, cond.as_ref(), step.as_ref(), body);
            }
            StmtKind::DoWhile { body, cond } => self.do_statement(s, body, cond),
            StmtKind::Switch { value, cases } => self.switch(s, value, cases),
            StmtKind::Break(out) => self.leave(true, *out),
            StmtKind::Continue(out) => self.leave(false, *out),
            StmtKind::Return(value) => self.return_statement(value.as_ref()),
        }
        self.e.release_since(mark);
        self.e.span = before;
    }

    /// Lowers `break` or `continue`, for the innermost construct or an outer one.
    fn leave(&mut self, breaks: bool, out: usize) {
        let regions = &self.regions;
        let mut fitting = self.frame().breakables.iter().rev().filter(|b| breaks || b.is_loop);
        let Some(b) = fitting.nth(out) else { return };
        let depth = if breaks { b.exit_depth } else { b.next_depth };
        let divergent = regions.iter().skip(depth).any(|r| *r);
        let slot = if breaks { b.exit } else { b.proceed };
        let (to, at) = (if breaks { b.end } else { b.next }, b.site);
        if divergent {
            self.note(if breaks { Fact::Exit(at) } else { Fact::Continue(at) });
        }
        match slot {
            Some(slot) => {
                self.e.push(Inst::Park { slot });
                self.jump_to_join();
                self.escaped = true;
            }
            None => self.e.push(Inst::Jump { to }),
        }
        self.unreachable = true;
    }

    /// Jumps to the next place where lanes may join, because no lane is running.
    pub(super) fn jump_to_join(&mut self) {
        if let Some(to) = self.joins.last() {
            self.e.push(Inst::Jump { to: *to });
        }
    }

    fn return_statement(&mut self, value: Option<&Expr>) {
        if let Some(e) = value {
            let value = self.value(e);
            self.assign_return(&value);
        }
        let frame = self.frame();
        let (slot, end, depth) = (frame.returned, frame.end, frame.depth);
        let divergent = self.regions.iter().skip(depth).any(|r| *r);
        if divergent {
            self.note(Fact::Return);
        }
        if divergent || (self.frames.len() > 1 && self.holds(Fact::Return)) {
            self.e.push(Inst::Park { slot });
            self.jump_to_join();
            self.escaped = true;
        } else {
            self.e.push(Inst::Jump { to: end });
        }
        self.unreachable = true;
    }

    fn switch(&mut self, s: &Stmt, value: &Expr, cases: &[Case]) {
        let mark = self.e.mark();
        let kind = value.ty.element().unwrap_or(Scalar::I32);
        let v = self.scalar(value);
        let owned = self.owned.len();
        let divergent = self.holds(Fact::Exit(site(s))) || !v.is_uniform();
        let end = self.e.label();
        let exit = divergent.then(|| self.e.slot());
        if let Some(save) = exit {
            self.e.push(Inst::Clear { save });
        }
        let exit_depth = self.regions.len() + 1;
        self.regions.push(divergent);
        self.frame_mut().breakables.push(Breakable {
            is_loop: false,
            site: site(s),
            exit,
            proceed: None,
            end,
            next: end,
            exit_depth,
            next_depth: exit_depth,
        });
        let conditions: Vec<Val> = cases.iter().map(|c| self.matches(v, kind, c)).collect();
        let before = self.flow();
        if v.is_uniform() {
            // Lanes waiting after `break` join at the end of the `switch`, so jumps must not skip it.
            self.joins.extend(exit.map(|_| end));
            self.switch_uniform(cases, &conditions, end);
            if exit.is_some() {
                self.joins.pop();
            }
        } else {
            self.switch_lanes(cases, &conditions);
        }
        self.e.bind(end);
        self.go_back(&before);
        self.frame_mut().breakables.pop();
        self.regions.pop();
        if let Some(save) = exit {
            self.e.push(Inst::Join { save });
            self.e.release_slot(save);
            self.leave_if_empty();
        }
        self.end_scope(owned);
        self.e.release_since(mark);
    }

    /// Whether the value is one of a case's labels.
    fn matches(&mut self, v: Val, kind: Scalar, case: &Case) -> Val {
        let mut any = Val::Const(0);
        for label in &case.values {
            let bits = if kind.size() == 8 { *label } else { u64::from(*label as u32) };
            let one = self.compare_scalar(CompareOp::Eq, kind, v, Val::Const(bits));
            any = self.combine(false, any, one);
        }
        any
    }

    fn switch_uniform(&mut self, cases: &[Case], conditions: &[Val], end: JumpTarget) {
        let labels: Vec<JumpTarget> = cases.iter().map(|_| self.e.label()).collect();
        for (c, to) in conditions.iter().zip(&labels) {
            let cond = self.e.reg(*c);
            self.e.push(Inst::JumpIf { cond, value: true, to: *to });
        }
        let default = cases.iter().position(|c| c.is_default);
        self.e.push(Inst::Jump { to: default.map_or(end, |d| labels[d]) });
        let before = self.flow();
        for (case, label) in cases.iter().zip(&labels) {
            self.e.bind(*label);
            self.go_back(&before);
            self.block(&case.body);
        }
    }

    fn switch_lanes(&mut self, cases: &[Case], conditions: &[Val]) {
        let entry = self.e.slot();
        self.e.push(Inst::Clear { save: entry });
        let mut any = Val::Const(0);
        for c in conditions {
            any = self.combine(false, any, *c);
        }
        let none = self.e.unary32(super::super::lanes::Unary32::IsZero, any);
        let taken: Vec<Val> = cases
            .iter()
            .zip(conditions)
            .map(|(case, c)| if case.is_default { self.combine(false, *c, none) } else { *c })
            .collect();
        self.e.push(Inst::Park { slot: entry });
        let before = self.flow();
        for (case, cond) in cases.iter().zip(&taken) {
            let next = self.e.label();
            let cond = self.e.reg(*cond);
            self.e.push(Inst::Case { entry, cond });
            self.e.push(Inst::JumpIfNone { to: next });
            self.go_back(&before);
            self.joins.push(next);
            self.block(&case.body);
            self.joins.pop();
            self.e.bind(next);
        }
        self.e.push(Inst::Join { save: entry });
        self.e.release_slot(entry);
        self.escaped = true;
    }
}
