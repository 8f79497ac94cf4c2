//! The traversal of a body: every statement and expression before its parts, in source order.

use super::{Expr, ExprKind, Init, LocalId, Place, PlaceKind, Stmt, StmtKind};

/// A node of the tree.
pub enum Node<'a> {
    /// A statement, before its parts.
    Stmt(&'a Stmt),
    /// An expression, before its parts.
    Expr(&'a Expr),
}

/// Visits every node of the statements.
pub fn visit<'a>(list: &'a [Stmt], visit: &mut dyn FnMut(Node<'a>)) {
    list.iter().for_each(|s| s.visit(visit));
}

impl Stmt {
    /// Visits the statement and every node in it.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(Node<'a>)) {
        visit(Node::Stmt(self));
        match &self.kind {
            StmtKind::Block(list) => list.iter().for_each(|s| s.visit(visit)),
            StmtKind::Declare { init: Some(Init::Value(e)), .. }
            | StmtKind::Expr(e)
            | StmtKind::Return(Some(e)) => {
                e.visit(visit);
            }
            StmtKind::Declare { init: Some(Init::List { parts, .. }), .. } => {
                parts.iter().for_each(|p| p.value.visit(visit));
            }
            StmtKind::If { cond, then, otherwise } => {
                cond.visit(visit);
                then.visit(visit);
                otherwise.iter().for_each(|s| s.visit(visit));
            }
            StmtKind::For { init, cond, step, body } => {
                init.iter().for_each(|s| s.visit(visit));
                cond.iter().chain(step).for_each(|e| e.visit(visit));
                body.visit(visit);
            }
            StmtKind::DoWhile { body, cond } => {
                body.visit(visit);
                cond.visit(visit);
            }
            StmtKind::Switch { value, cases } => {
                value.visit(visit);
                cases.iter().for_each(|c| c.body.iter().for_each(|s| s.visit(visit)));
            }
            StmtKind::Declare { init: None, .. }
            | StmtKind::Break(_)
            | StmtKind::Continue(_)
            | StmtKind::Return(None) => {}
        }
    }
}

impl Expr {
    /// Visits the expression and every node in it.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(Node<'a>)) {
        visit(Node::Expr(self));
        match &self.kind {
            ExprKind::Int(_) | ExprKind::Float(_) => {}
            ExprKind::Load(p) | ExprKind::AddressOf(p) => p.visit(visit),
            ExprKind::Unary(_, a)
            | ExprKind::Convert { operand: a, .. }
            | ExprKind::Splat(a)
            | ExprKind::Reinterpret(a)
            | ExprKind::Swizzle(a, _) => a.visit(visit),
            ExprKind::Binary(_, a, b)
            | ExprKind::Compare(_, a, b)
            | ExprKind::Logical(_, a, b)
            | ExprKind::Offset { pointer: a, index: b, .. }
            | ExprKind::Difference { left: a, right: b, .. }
            | ExprKind::Comma(a, b) => {
                a.visit(visit);
                b.visit(visit);
            }
            ExprKind::Conditional { cond, then, otherwise } | ExprKind::Select { cond, then, otherwise } => {
                [cond, then, otherwise].into_iter().for_each(|e| e.visit(visit));
            }
            ExprKind::Assign { place: p, value } | ExprKind::Update { place: p, value, .. } => {
                p.visit(visit);
                value.visit(visit);
            }
            ExprKind::Statements(list, value) => {
                list.iter().for_each(|s| s.visit(visit));
                value.iter().for_each(|v| v.visit(visit));
            }
            ExprKind::Vector(list)
            | ExprKind::Call(_, list)
            | ExprKind::Builtin(_, list)
            | ExprKind::Printf { args: list, .. } => list.iter().for_each(|e| e.visit(visit)),
        }
    }

    /// Returns true if evaluating it may change a variable of the function.
    pub fn has_effect(&self) -> bool {
        let mut found = false;
        self.visit(&mut |node| {
            if let Node::Expr(e) = node {
                found |= matches!(
                    e.kind,
                    ExprKind::Assign { .. } | ExprKind::Update { .. } | ExprKind::Statements(..)
                );
            }
        });
        found
    }
}

impl Place {
    /// Returns the variable that the place is part of, unless it is reached through a pointer.
    pub fn root(&self) -> Option<LocalId> {
        match &self.kind {
            PlaceKind::Local(local) => Some(*local),
            PlaceKind::Global(_) | PlaceKind::Deref(_) => None,
            PlaceKind::Index { base, .. }
            | PlaceKind::Member { base, .. }
            | PlaceKind::Lanes { base, .. } => base.root(),
        }
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Node<'a>)) {
        match &self.kind {
            PlaceKind::Local(_) | PlaceKind::Global(_) => {}
            PlaceKind::Deref(e) => e.visit(visit),
            PlaceKind::Index { base, index, .. } => {
                base.visit(visit);
                index.visit(visit);
            }
            PlaceKind::Member { base, .. } | PlaceKind::Lanes { base, .. } => base.visit(visit),
        }
    }
}
