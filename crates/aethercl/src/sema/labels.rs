//! `goto`: a block with labels is a loop around a `switch` over its parts, and `goto` the next round of that loop.
//!
//! ```text
//! { A; again: B; done: C; }     at = 0; for (;;) { switch (at) { case 0: A; case 1: B; case 2: C; } break; }
//! goto done;                    at = 2; continue;
//! ```
//! So lanes that go different ways meet again as they do at any other loop. Its variables begin before the loop. What is not
//! there is a jump into a block from outside.

use super::{Nest, Sema};
use crate::hir::{Case, Expr, ExprKind, Init, LocalId, Place, PlaceKind, Stmt, StmtKind};
use crate::lex::Symbol;
use crate::parse::ast;
use crate::source::Span;
use crate::types::{INT, Space};

/// The labels of a block.
pub(super) struct Labels {
    /// Names, the first for part 1.
    names: Vec<Symbol>,
    /// The variable that says which part is next.
    at: Place,
}

/// Names of the labels that stand directly in a block.
pub(super) fn of(list: &[ast::Stmt]) -> impl Iterator<Item = (Symbol, Span)> {
    let chain = |stmt| {
        std::iter::successors(Some(stmt), |s: &&ast::Stmt| match &s.kind {
            ast::StmtKind::Label(_, inner) => Some(inner),
            _ => None,
        })
    };
    list.iter().flat_map(chain).filter_map(|s| match s.kind {
        ast::StmtKind::Label(name, _) => Some((name, s.span)),
        _ => None,
    })
}

/// Loops of a nest.
pub(super) fn loops(nest: &[Nest]) -> usize {
    nest.iter().filter(|n| !matches!(n, Nest::Switch)).count()
}

/// Loops and switches of a nest.
pub(super) fn breakables(nest: &[Nest]) -> usize {
    nest.iter().map(|n| if matches!(n, Nest::Labelled(_)) { 2 } else { 1 }).sum()
}

impl Sema<'_> {
    /// The statements of a block with labels.
    pub(super) fn labelled_block(&mut self, list: &[ast::Stmt]) -> Option<Vec<Stmt>> {
        let span = list.first().map_or(Span::default(), |s| s.span);
        let mut names: Vec<(Symbol, Span)> = Vec::new();
        for (name, span) in of(list) {
            if let Some((_, before)) = names.iter().find(|(n, _)| *n == name) {
                let message = format!("redefinition of label '{}'", self.text(name));
                let note = vec![(*before, "previous definition is here".to_string())];
                self.diagnostics.error_with(span, message, note);
                return None;
            }
            names.push((name, span));
        }
        let at = self.temporary(INT, span)?.place;
        let labels = Labels { names: names.iter().map(|(n, _)| *n).collect(), at: at.clone() };
        let parts = self.nested(Nest::Labelled(labels), |s| s.parts(list))?;
        let mut out = Vec::new();
        let cases = parts.into_iter().enumerate().map(|(number, part)| {
            let body = part.into_iter().map(|stmt| begun_before(stmt, &mut out)).collect();
            Case { values: vec![number as u64], is_default: false, body }
        });
        let cases = cases.collect();
        let stmt = |kind| Stmt { kind, span };
        let value = Expr { kind: ExprKind::Load(Box::new(at.clone())), ty: INT, span };
        let body = vec![stmt(StmtKind::Switch { value, cases }), stmt(StmtKind::Break(0))];
        out.push(set(&at, 0, span));
        out.push(stmt(StmtKind::For {
            init: Vec::new(),
            cond: None,
            step: None,
            body: Box::new(stmt(StmtKind::Block(body))),
        }));
        Some(out)
    }

    /// The statements up to the first label, from there to the next, and so on.
    fn parts(&mut self, list: &[ast::Stmt]) -> Option<Vec<Vec<Stmt>>> {
        let mut parts = vec![Vec::new()];
        let mut all_fine = true;
        for stmt in list {
            let mut inner = stmt;
            while let ast::StmtKind::Label(_, next) = &inner.kind {
                parts.push(Vec::new());
                inner = next;
            }
            let mut out = Vec::new();
            all_fine &= self.statement(inner, &mut out).is_some();
            if let Some(Stmt { span, .. }) =
                out.iter().find(|s| matches!(s.kind, StmtKind::Declare { init: Some(Init::List { .. }), .. }))
            {
                return self.error(*span, "a variable with a list of values in a block with labels is not supported: put it into a block of its own");
            }
            parts.last_mut()?.append(&mut out);
            if self.diagnostics.too_many() {
                return None;
            }
        }
        all_fine.then_some(parts)
    }

    /// `goto`.
    pub(super) fn goto(&mut self, name: Symbol, span: Span) -> Option<StmtKind> {
        let nest = self.current.as_ref().map_or(&[][..], |c| &c.nest);
        let found = nest.iter().enumerate().rev().find_map(|(i, n)| match n {
            Nest::Labelled(l) => Some((i, l.names.iter().position(|n| *n == name)? + 1, l.at.clone())),
            _ => None,
        });
        let Some((i, part, at)) = found else {
            let message = format!(
                "no label '{}' in this block or one around it; a 'goto' into a block is not supported",
                self.text(name)
            );
            return self.error(span, message);
        };
        let jump = Stmt { kind: StmtKind::Continue(loops(&nest[i + 1..])), span };
        Some(StmtKind::Block(vec![set(&at, part as u64, span), jump]))
    }
}

/// `at = part;`
fn set(at: &Place, part: u64, span: Span) -> Stmt {
    let value = Expr { kind: ExprKind::Int(part), ty: INT, span };
    assign(at.clone(), value, span)
}

fn assign(place: Place, value: Expr, span: Span) -> Stmt {
    let ty = place.ty;
    let kind = ExprKind::Assign { place: Box::new(place), value: Box::new(value) };
    Stmt { kind: StmtKind::Expr(Expr { kind, ty, span }), span }
}

/// A declaration becomes one before the loop, and here the first value's assignment.
fn begun_before(stmt: Stmt, before: &mut Vec<Stmt>) -> Stmt {
    let span = stmt.span;
    match stmt.kind {
        StmtKind::Declare { local, init } => {
            before.push(Stmt { kind: StmtKind::Declare { local, init: None }, span });
            match init {
                Some(Init::Value(value)) => assign(variable(local, &value), value, span),
                _ => Stmt { kind: StmtKind::Block(Vec::new()), span },
            }
        }
        kind => Stmt { kind, span },
    }
}

fn variable(local: LocalId, value: &Expr) -> Place {
    Place { kind: PlaceKind::Local(local), ty: value.ty, space: Space::Private, span: value.span }
}
