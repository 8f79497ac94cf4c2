//! Conditions: `if`, `?:`, `&&`, `||`.

use super::super::bytecode::{File, Inst, Reg};
use super::facts::Fact;
use super::{Lower, Storage, Val, Value, file_of, site};
use crate::hir::{BinaryOp, Builtin, Expr, ExprKind, LogicalOp, Node, PlaceKind, Stmt};
use crate::types::{INT, Type};

/// Up to this number of nodes, both sides of a `?:` run and one result is selected, if neither side can fail.
const SELECT_WEIGHT: usize = 40;

/// Facts at a point of the program.
pub(super) struct Flow {
    defined: Vec<bool>,
    unreachable: bool,
}

impl Lower<'_> {
    pub(super) fn flow(&self) -> Flow {
        Flow { defined: self.defined.clone(), unreachable: self.unreachable }
    }

    pub(super) fn go_back(&mut self, flow: &Flow) {
        let keep = flow.defined.len().min(self.defined.len());
        self.defined[..keep].copy_from_slice(&flow.defined[..keep]);
        self.unreachable = flow.unreachable;
    }

    /// Merges two paths: only facts that hold on both remain.
    pub(super) fn meet(&mut self, other: &Flow) {
        if other.unreachable {
            return;
        }
        if self.unreachable {
            self.go_back(other);
            return;
        }
        for (d, o) in self.defined.iter_mut().zip(&other.defined) {
            *d &= o;
        }
    }

    /// `if`.
    pub(super) fn if_statement(&mut self, cond: &Expr, then: &Stmt, otherwise: Option<&Stmt>) {
        let mark = self.e.mark();
        let c = self.scalar(cond);
        if let Val::Const(bits) = c {
            self.e.release_since(mark);
            match (bits != 0, otherwise) {
                (true, _) => self.statement(then),
                (false, Some(s)) => self.statement(s),
                (false, None) => {}
            }
            return;
        }
        self.branch(
            c,
            mark,
            &mut |l| l.statement(then),
            otherwise.map(|s| move |l: &mut Self| l.statement(s)),
        );
    }

    /// Runs one side, the other, or both for different lanes.
    fn branch(
        &mut self,
        cond: Val,
        mark: usize,
        then: &mut dyn FnMut(&mut Self),
        otherwise: Option<impl FnOnce(&mut Self)>,
    ) {
        let reg = self.e.reg(cond);
        if cond.is_uniform() {
            let (other, end) = (self.e.label(), self.e.label());
            self.e.push(Inst::JumpIf { cond: reg, value: false, to: other });
            self.e.release_since(mark);
            let before = self.flow();
            then(self);
            let after = self.flow();
            if otherwise.is_some() && !self.unreachable {
                self.e.push(Inst::Jump { to: end });
            }
            self.e.bind(other);
            self.go_back(&before);
            if let Some(otherwise) = otherwise {
                otherwise(self);
            }
            self.e.bind(end);
            self.meet(&after);
            return;
        }
        let save = self.e.slot();
        let (other, end) = (self.e.label(), self.e.label());
        self.e.push(Inst::IfBegin { cond: reg, save, to: other });
        self.e.release_since(mark);
        let escaped = std::mem::replace(&mut self.escaped, false);
        let before = self.flow();
        self.regions.push(true);
        self.joins.push(other);
        then(self);
        self.joins.pop();
        let after = self.flow();
        self.e.bind(other);
        self.go_back(&before);
        if let Some(otherwise) = otherwise {
            self.e.push(Inst::IfElse { save, to: end });
            self.joins.push(end);
            otherwise(self);
            self.joins.pop();
        }
        self.e.bind(end);
        self.regions.pop();
        self.e.push(Inst::Join { save });
        self.e.release_slot(save);
        self.meet(&after);
        self.leave_if_empty();
        self.escaped |= escaped;
    }

    /// If lanes may have left and none is running, jumps to the next place where some may join.
    pub(super) fn leave_if_empty(&mut self) {
        if self.escaped
            && let Some(to) = self.joins.last()
        {
            self.e.push(Inst::JumpIfNone { to: *to });
        }
    }

    /// `&&`, `||`.
    pub(super) fn logical(&mut self, op: LogicalOp, a: &Expr, b: &Expr, e: &Expr) -> Val {
        let and = op == LogicalOp::And;
        let x = self.scalar(a);
        match x {
            Val::Const(bits) if (bits != 0) == and => return self.scalar(b),
            Val::Const(bits) => return Val::Const(bits),
            Val::Reg(_) | Val::Pinned(_) => {}
        }
        if self.is_harmless(b, SELECT_WEIGHT) {
            let y = self.scalar(b);
            return self.combine(and, x, y);
        }
        let mixed = !x.is_uniform() || self.holds(Fact::Exit(site(e)));
        let result = self.e.temporary_variable(if mixed { File::Word } else { File::Uniform });
        self.assign_result(result, x, e);
        let x = Val::Reg(result);
        let mark = self.e.mark();
        let cond = if and { x } else { self.e.unary32(super::super::lanes::Unary32::IsZero, x) };
        self.branch(
            cond,
            mark,
            &mut |l| {
                let y = l.scalar(b);
                l.assign_result(result, y, e);
            },
            None::<fn(&mut Self)>,
        );
        Val::Reg(result)
    }

    /// Assigns a value to a result register on one path; records whether lanes may now differ.
    pub(super) fn assign_result(&mut self, result: Reg, value: Val, e: &Expr) {
        if result.file == File::Uniform && !value.is_uniform() {
            self.note(Fact::Exit(site(e)));
        }
        self.assign(result, value);
    }

    /// Lowers `cond ? then : otherwise`.
    pub(super) fn conditional(&mut self, e: &Expr, cond: &Expr, then: &Expr, otherwise: &Expr) -> Value {
        let c = self.scalar(cond);
        if let Val::Const(bits) = c {
            return self.value(if bits != 0 { then } else { otherwise });
        }
        if !matches!(e.ty, Type::Record(_))
            && e.ty != Type::Void
            && self.is_harmless(then, SELECT_WEIGHT)
            && self.is_harmless(otherwise, SELECT_WEIGHT)
        {
            let t = self.value(then);
            let o = self.value(otherwise);
            return self.select(INT, e.ty, &vec![c], &t, &o);
        }
        let mixed = !c.is_uniform() || self.holds(Fact::Exit(site(e)));
        let leaves = self.leaves(e.ty);
        let result: Vec<Reg> = leaves
            .iter()
            .map(|l| self.e.temporary_variable(if mixed { file_of(l.mem) } else { File::Uniform }))
            .collect();
        let mark = self.e.mark();
        self.branch(
            c,
            mark,
            &mut |l| l.assign_all(&result, then, e),
            Some(|l: &mut Self| l.assign_all(&result, otherwise, e)),
        );
        result.into_iter().map(Val::Reg).collect()
    }

    fn assign_all(&mut self, result: &[Reg], side: &Expr, e: &Expr) {
        let mark = self.e.mark();
        let value = self.value(side);
        for (to, v) in result.iter().zip(&super::declare::pin_repeats(&value)) {
            self.assign_result(*to, *v, e);
        }
        self.e.release_since(mark);
    }

    /// Returns true if evaluation in inactive lanes is harmless: no memory access, no effects, no division by zero.
    pub(super) fn is_harmless(&self, e: &Expr, limit: usize) -> bool {
        let (mut count, mut harmless) = (0, true);
        e.visit(&mut |node| {
            let Node::Expr(e) = node else { return };
            count += 1;
            harmless &= match &e.kind {
                ExprKind::Assign { .. }
                | ExprKind::Update { .. }
                | ExprKind::Call(..)
                | ExprKind::Statements(..)
                | ExprKind::Printf { .. } => false,
                ExprKind::Load(place) => match place.root() {
                    Some(local) => {
                        matches!(self.variable(local).storage, Storage::Registers(_)) && is_fixed(&place.kind)
                    }
                    None => false,
                },
                ExprKind::Binary(BinaryOp::Div | BinaryOp::Rem, _, b) => {
                    b.ty.element().is_some_and(|s| s.is_float())
                        || matches!(b.kind, ExprKind::Int(n) if n != 0)
                }
                ExprKind::Builtin(b, _) => is_pure(*b),
                ExprKind::Logical(..) | ExprKind::Conditional { .. } => true,
                _ => true,
            };
        });
        harmless && count <= limit
    }
}

/// Returns true for a place in a variable with a constant index.
fn is_fixed(kind: &PlaceKind) -> bool {
    match kind {
        PlaceKind::Local(_) => true,
        PlaceKind::Index { base, index, .. } => {
            matches!(index.kind, ExprKind::Int(_)) && is_fixed(&base.kind)
        }
        PlaceKind::Member { base, .. } | PlaceKind::Lanes { base, .. } => is_fixed(&base.kind),
        PlaceKind::Global(_) | PlaceKind::Deref(_) => false,
    }
}

/// Returns true for numeric functions, by exclusion of those that access memory or other work-items.
fn is_pure(b: Builtin) -> bool {
    use Builtin::*;
    !matches!(
        b,
        Fract
            | Frexp
            | Modf
            | Sincos
            | Remquo
            | LgammaR
            | Vload
            | Vstore
            | VloadHalf
            | VloadaHalf
            | VstoreHalf(_)
            | VstoreaHalf(_)
            | ReadImage
            | WriteImage
            | Barrier
            | SubGroupBarrier
            | MemFence
            | Prefetch
            | AsyncCopy
            | AsyncStridedCopy
            | WaitGroupEvents
            | AtomicAdd
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
            | AtomicFlagClear
            | WorkGroupAll
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
            | SubGroupBallot
            | Trap
    )
}
