//! Loops, and unrolling of loops with few iterations.

use super::super::bytecode::{Inst, JumpTarget, Slot};
use super::facts::Fact;
use super::{Breakable, Lower, Storage, Val, site};
use crate::hir::{Expr, ExprKind, Init, LocalId, Node, PlaceKind, Stmt, StmtKind, visit};

/// Maximum number of unrolled iterations.
const MAX_ROUNDS: usize = 64;
/// Maximum total nodes of the unrolled iterations of one loop.
const MAX_WEIGHT: usize = 12_000;
/// Number of instructions of a kernel above which no loop is unrolled.
const MAX_INSTRUCTIONS: usize = 60_000;

impl Lower<'_> {
    pub(super) fn for_statement(
        &mut self,
        s: &Stmt,
        init: &[Stmt],
        cond: Option<&Expr>,
        step: Option<&Expr>,
        body: &Stmt,
    ) {
        let owned = self.owned.len();
        if let Some((local, rounds)) = self.rounds(init, cond, step, body) {
            self.written_out(s, local, &rounds, body);
            self.end_scope(owned);
            return;
        }
        // Only lanes inside the loop see the variables of its head.
        self.ahead += 1;
        for s in init {
            self.statement(s);
        }
        self.ahead -= 1;
        let (top, end, next) = (self.e.label(), self.e.label(), self.e.label());
        let (exit, proceed) = self.open_loop(s, end, next);
        let before = self.flow();
        let escaped = std::mem::replace(&mut self.escaped, false);
        self.e.bind(top);
        self.condition(s, cond, exit, end);
        self.round(body, proceed, next);
        if self.escaped || self.holds(Fact::Return) {
            self.e.push(Inst::JumpIfNone { to: end });
        }
        if let Some(step) = step {
            let mark = self.e.mark();
            self.value(step);
            self.e.release_since(mark);
        }
        self.e.push(Inst::Jump { to: top });
        self.e.bind(end);
        self.go_back(&before);
        self.close_loop(exit, proceed);
        self.escaped |= escaped;
        self.end_scope(owned);
    }

    pub(super) fn do_statement(&mut self, s: &Stmt, body: &Stmt, cond: &Expr) {
        let (top, end, next) = (self.e.label(), self.e.label(), self.e.label());
        let (exit, proceed) = self.open_loop(s, end, next);
        let before = self.flow();
        let escaped = std::mem::replace(&mut self.escaped, false);
        self.e.bind(top);
        self.round(body, proceed, next);
        if self.escaped || self.holds(Fact::Return) {
            self.e.push(Inst::JumpIfNone { to: end });
        }
        self.condition(s, Some(cond), exit, end);
        self.e.push(Inst::Jump { to: top });
        self.e.bind(end);
        if self.escaped {
            self.go_back(&before);
        }
        self.unreachable = false;
        self.close_loop(exit, proceed);
        self.escaped |= escaped;
    }

    /// Opens the regions of a loop and the masks that it needs.
    fn open_loop(&mut self, s: &Stmt, end: JumpTarget, next: JumpTarget) -> (Option<Slot>, Option<Slot>) {
        let exits = self.holds(Fact::Exit(site(s)));
        let continues = self.holds(Fact::Continue(site(s)));
        let exit = exits.then(|| self.e.slot());
        let proceed = continues.then(|| self.e.slot());
        for save in [exit, proceed].into_iter().flatten() {
            self.e.push(Inst::Clear { save });
        }
        self.regions.push(exits);
        let exit_depth = self.regions.len();
        self.regions.push(continues);
        let next_depth = self.regions.len();
        self.frame_mut().breakables.push(Breakable {
            is_loop: true,
            site: site(s),
            exit,
            proceed,
            end,
            next,
            exit_depth,
            next_depth,
        });
        // The condition and the step are outside the part that `continue` skips.
        self.regions.pop();
        (exit, proceed)
    }

    fn close_loop(&mut self, exit: Option<Slot>, proceed: Option<Slot>) {
        self.frame_mut().breakables.pop();
        self.regions.pop();
        if let Some(slot) = exit {
            self.e.push(Inst::Resume { slot });
            self.e.release_slot(slot);
        }
        if let Some(slot) = proceed {
            self.e.release_slot(slot);
        }
        self.leave_if_empty();
    }

    /// Leaves the loop in lanes where the condition is false.
    fn condition(&mut self, s: &Stmt, cond: Option<&Expr>, exit: Option<Slot>, end: JumpTarget) {
        let mark = self.e.mark();
        let value = cond.map_or(Val::Const(1), |c| self.scalar(c));
        match (value, exit) {
            (Val::Const(0), Some(slot)) => {
                self.e.push(Inst::Park { slot });
                self.e.push(Inst::Jump { to: end });
            }
            (Val::Const(0), None) => self.e.push(Inst::Jump { to: end }),
            (Val::Const(_), _) => {}
            (v, Some(exit)) => {
                let cond = self.e.reg(v);
                self.e.push(Inst::LoopCond { cond, exit, to: end });
            }
            (v, None) => {
                if !v.is_uniform() {
                    self.note(Fact::Exit(site(s)));
                }
                let cond = self.e.reg(v);
                self.e.push(Inst::JumpIf { cond, value: false, to: end });
            }
        }
        self.e.release_since(mark);
    }

    /// Lowers one iteration of the body, up to the target of `continue`.
    fn round(&mut self, body: &Stmt, proceed: Option<Slot>, next: JumpTarget) {
        self.regions.push(proceed.is_some());
        self.joins.push(next);
        self.statement(body);
        self.joins.pop();
        self.regions.pop();
        self.e.bind(next);
        self.unreachable = false;
        if let Some(save) = proceed {
            self.e.push(Inst::Join { save });
        }
    }

    fn written_out(&mut self, s: &Stmt, local: LocalId, rounds: &[u64], body: &Stmt) {
        let end = self.e.label();
        let last = self.e.label();
        let (exit, proceed) = self.open_loop(s, end, last);
        let escaped = std::mem::replace(&mut self.escaped, false);
        let before = self.flow();
        let mut leaves_early = false;
        for value in rounds {
            self.bind_variable(local, Storage::Registers(vec![Val::Const(*value)]), 1, true);
            let next = self.e.label();
            if let Some(b) = self.frame_mut().breakables.last_mut() {
                b.next = next;
            }
            self.round(body, proceed, next);
            if self.escaped {
                self.e.push(Inst::JumpIfNone { to: end });
                leaves_early = true;
            }
        }
        if let Some(slot) = exit {
            self.e.push(Inst::Park { slot });
        }
        self.e.bind(last);
        self.e.bind(end);
        if leaves_early || has_jump(body) {
            self.go_back(&before);
        }
        self.close_loop(exit, proceed);
        self.escaped |= escaped;
    }

    /// Returns the counter's values in each iteration, if the loop counts between constants and is worth unrolling.
    fn rounds(
        &mut self,
        init: &[Stmt],
        cond: Option<&Expr>,
        step: Option<&Expr>,
        body: &Stmt,
    ) -> Option<(LocalId, Vec<u64>)> {
        let [Stmt { kind: StmtKind::Declare { local, init: Some(Init::Value(first)) }, .. }] = init else {
            return None;
        };
        let ExprKind::Update { place, op, compute, value, .. } = &step?.kind else { return None };
        if !matches!(place.kind, PlaceKind::Local(l) if l == *local)
            || place.ty.element().is_none_or(|s| s.is_float())
            || place.ty.is_vector()
            || self.local(*local).address_taken
            || changes(body, *local)
        {
            return None;
        }
        let (at, mark) = (self.e.code.insts.len(), self.e.mark());
        let kind = place.ty.element()?;
        let works_in = compute.element()?;
        let mut rounds = Vec::new();
        let mut count = || -> Option<Vec<u64>> {
            let mut now = self.scalar(first);
            loop {
                let Val::Const(bits) = now else { return None };
                self.bind_variable(*local, Storage::Registers(vec![now]), 1, true);
                let Val::Const(goes_on) = self.scalar(cond?) else { return None };
                if goes_on == 0 {
                    return Some(std::mem::take(&mut rounds));
                }
                rounds.push(bits);
                if rounds.len() > MAX_ROUNDS {
                    return None;
                }
                let by = self.scalar(value);
                let wide = self.convert_scalar(kind, works_in, now, crate::hir::Rounding::Default, false);
                let sum = self.binary_scalar(*op, works_in, wide, by, value.ty.element()?);
                now = self.convert_scalar(works_in, kind, sum, crate::hir::Rounding::Default, false);
            }
        };
        let result = count();
        self.e.code.insts.truncate(at);
        self.e.code.spans.truncate(at);
        self.e.release_since(mark);
        let rounds = result?;
        let weight = self.weight(body);
        let fits = rounds.len() * weight <= MAX_WEIGHT && at < MAX_INSTRUCTIONS;
        fits.then_some((*local, rounds))
    }

    /// Returns the nodes of a statement. Nodes of calls and inner loops count with their expected number of copies.
    fn weight(&self, s: &Stmt) -> usize {
        let mut count = 0;
        s.visit(&mut |node| {
            count += match node {
                Node::Expr(Expr { kind: ExprKind::Call(f, _), .. }) => {
                    let mut inner = 0;
                    visit(&self.program.function(*f).body, &mut |_| inner += 1);
                    inner
                }
                Node::Stmt(Stmt { kind: StmtKind::For { body, .. }, .. }) => {
                    let mut inner = 0;
                    body.visit(&mut |_| inner += 1);
                    3 * inner
                }
                _ => 1,
            }
        });
        count
    }
}

/// Returns true if a statement stores to the variable.
fn changes(body: &Stmt, local: LocalId) -> bool {
    let mut found = false;
    body.visit(&mut |node| {
        if let Node::Expr(e) = node
            && let ExprKind::Assign { place, .. } | ExprKind::Update { place, .. } = &e.kind
        {
            found |= place.root() == Some(local);
        }
    });
    found
}

/// Returns true if a path may skip part of the body.
fn has_jump(body: &Stmt) -> bool {
    let mut found = false;
    body.visit(&mut |node| {
        if let Node::Stmt(s) = node {
            found |= matches!(s.kind, StmtKind::Break(_) | StmtKind::Continue(_) | StmtKind::Return(_));
        }
    });
    found
}
