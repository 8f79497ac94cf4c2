//! What a look at a function tells before it is lowered: which variables change, how it returns.

use crate::hir::{Expr, ExprKind, Function, Init, LocalId, Place, PlaceKind, Stmt, StmtKind};
use std::collections::HashMap;
use std::rc::Rc;

/// Facts about one function.
#[derive(Debug, Default)]
pub struct Info {
    assigned: Vec<bool>,
    /// `return` statements.
    pub returns: usize,
    /// The last statement of the body is one.
    pub ends_in_return: bool,
}

impl Info {
    /// Whether the variable is stored to after its declaration.
    pub fn is_assigned(&self, local: LocalId) -> bool {
        self.assigned.get(local.0 as usize).copied().unwrap_or(true)
    }
}

/// The functions looked at so far.
#[derive(Debug, Default)]
pub struct Scans {
    known: HashMap<usize, Rc<Info>>,
}

impl Scans {
    /// The facts about a function.
    pub fn of(&mut self, function: &Function) -> Rc<Info> {
        let key = std::ptr::from_ref(function) as usize;
        if let Some(info) = self.known.get(&key) {
            return info.clone();
        }
        let mut info = Info { assigned: vec![false; function.locals.len()], ..Info::default() };
        statements(&function.body, &mut |node| match node {
            Node::Expr(e) => {
                if let ExprKind::Assign { place, .. } | ExprKind::Update { place, .. } = &e.kind
                    && let Some(local) = root(place)
                {
                    info.assigned[local.0 as usize] = true;
                }
            }
            Node::Stmt(s) if matches!(s.kind, StmtKind::Return(_)) => info.returns += 1,
            Node::Stmt(_) => {}
        });
        info.ends_in_return = matches!(function.body.last().map(|s| &s.kind), Some(StmtKind::Return(_)));
        let info = Rc::new(info);
        self.known.insert(key, info.clone());
        info
    }
}

/// The variable that a place is part of, unless a pointer leads there.
pub fn root(place: &Place) -> Option<LocalId> {
    match &place.kind {
        PlaceKind::Local(local) => Some(*local),
        PlaceKind::Global(_) | PlaceKind::Deref(_) => None,
        PlaceKind::Index { base, .. } | PlaceKind::Member { base, .. } | PlaceKind::Lanes { base, .. } => {
            root(base)
        }
    }
}

/// A node of the tree.
pub enum Node<'a> {
    /// A statement, before its parts.
    Stmt(&'a Stmt),
    /// An expression, before its parts.
    Expr(&'a Expr),
}

/// Visits every node of the statements.
pub fn statements<'a>(list: &'a [Stmt], visit: &mut dyn FnMut(Node<'a>)) {
    for s in list {
        statement(s, visit);
    }
}

/// Visits every node of a statement.
pub fn statement<'a>(s: &'a Stmt, visit: &mut dyn FnMut(Node<'a>)) {
    visit(Node::Stmt(s));
    match &s.kind {
        StmtKind::Block(list) => statements(list, visit),
        StmtKind::Declare { init: Some(Init::Value(e)), .. }
        | StmtKind::Expr(e)
        | StmtKind::Return(Some(e)) => {
            expression(e, visit);
        }
        StmtKind::Declare { init: Some(Init::List { parts, .. }), .. } => {
            parts.iter().for_each(|p| expression(&p.value, visit));
        }
        StmtKind::If { cond, then, otherwise } => {
            expression(cond, visit);
            statement(then, visit);
            otherwise.iter().for_each(|s| statement(s, visit));
        }
        StmtKind::For { init, cond, step, body } => {
            statements(init, visit);
            cond.iter().chain(step).for_each(|e| expression(e, visit));
            statement(body, visit);
        }
        StmtKind::DoWhile { body, cond } => {
            statement(body, visit);
            expression(cond, visit);
        }
        StmtKind::Switch { value, cases } => {
            expression(value, visit);
            cases.iter().for_each(|c| statements(&c.body, visit));
        }
        StmtKind::Declare { init: None, .. }
        | StmtKind::Break(_)
        | StmtKind::Continue(_)
        | StmtKind::Return(None) => {}
    }
}

/// Visits every node of an expression.
pub fn expression<'a>(e: &'a Expr, visit: &mut dyn FnMut(Node<'a>)) {
    visit(Node::Expr(e));
    match &e.kind {
        ExprKind::Int(_) | ExprKind::Float(_) => {}
        ExprKind::Load(p) | ExprKind::AddressOf(p) => place(p, visit),
        ExprKind::Unary(_, a)
        | ExprKind::Convert { operand: a, .. }
        | ExprKind::Splat(a)
        | ExprKind::Reinterpret(a)
        | ExprKind::Swizzle(a, _) => expression(a, visit),
        ExprKind::Binary(_, a, b)
        | ExprKind::Compare(_, a, b)
        | ExprKind::Logical(_, a, b)
        | ExprKind::Offset { pointer: a, index: b, .. }
        | ExprKind::Difference { left: a, right: b, .. }
        | ExprKind::Comma(a, b) => {
            expression(a, visit);
            expression(b, visit);
        }
        ExprKind::Conditional { cond, then, otherwise } | ExprKind::Select { cond, then, otherwise } => {
            [cond, then, otherwise].into_iter().for_each(|e| expression(e, visit));
        }
        ExprKind::Assign { place: p, value } | ExprKind::Update { place: p, value, .. } => {
            place(p, visit);
            expression(value, visit);
        }
        ExprKind::Statements(list, value) => {
            statements(list, visit);
            value.iter().for_each(|v| expression(v, visit));
        }
        ExprKind::Vector(list)
        | ExprKind::Call(_, list)
        | ExprKind::Builtin(_, list)
        | ExprKind::Printf { args: list, .. } => list.iter().for_each(|e| expression(e, visit)),
    }
}

fn place<'a>(p: &'a Place, visit: &mut dyn FnMut(Node<'a>)) {
    match &p.kind {
        PlaceKind::Local(_) | PlaceKind::Global(_) => {}
        PlaceKind::Deref(e) => expression(e, visit),
        PlaceKind::Index { base, index, .. } => {
            place(base, visit);
            expression(index, visit);
        }
        PlaceKind::Member { base, .. } | PlaceKind::Lanes { base, .. } => place(base, visit),
    }
}
