//! Scans a function before lowering: variables that change, and form of its returns.

use crate::hir::{ExprKind, Function, LocalId, Node, StmtKind, visit};
use std::collections::HashMap;
use std::rc::Rc;

/// Facts about one function.
#[derive(Debug, Default)]
pub struct Info {
    assigned: Vec<bool>,
    /// `return` statements.
    pub returns: usize,
    /// Whether the last statement of the body is a return.
    pub ends_in_return: bool,
}

impl Info {
    /// Returns true if the variable is stored to after its declaration.
    pub fn is_assigned(&self, local: LocalId) -> bool {
        self.assigned.get(local.0 as usize).copied().unwrap_or(true)
    }
}

/// The functions scanned so far.
#[derive(Debug, Default)]
pub struct Scans {
    known: HashMap<usize, Rc<Info>>,
}

impl Scans {
    /// Returns the facts about a function.
    pub fn of(&mut self, function: &Function) -> Rc<Info> {
        let key = std::ptr::from_ref(function) as usize;
        if let Some(info) = self.known.get(&key) {
            return info.clone();
        }
        let mut info = Info { assigned: vec![false; function.locals.len()], ..Info::default() };
        visit(&function.body, &mut |node| match node {
            Node::Expr(e) => {
                if let ExprKind::Assign { place, .. } | ExprKind::Update { place, .. } = &e.kind
                    && let Some(local) = place.root()
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
