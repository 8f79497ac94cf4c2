//! `switch` statements whose labels are nested more deeply than the body's own list, which C allows: for example, a loop that is entered in the
//! middle.
//!
//! Such a statement becomes a plain `switch` of jumps before its body, in which the labels are `goto` labels:
//!
//! ```text
//! switch (n) { case 0: do { A; case 1: B; } while (c); }
//! { switch (n) { case 0: goto l0; case 1: goto l1; default: goto end; } { l0: do { A; l1: B; } while (c); } end: ; }
//! ```

use super::Parser;
use super::ast::{Expr, Stmt, StmtKind};
use crate::lex::{Names, Symbol, Token};
use crate::source::Span;

/// Returns label names that no program can contain, enough for every label and every `switch` in the tokens.
pub(super) fn labels(tokens: &[Token], names: &mut Names) -> Vec<Symbol> {
    let is_label =
        |t: &&Token| t.name().is_some_and(|name| matches!(names.text(name), "case" | "default" | "switch"));
    let count = tokens.iter().filter(is_label).count();
    (0..count).map(|i| names.intern(&format!("label {i}"))).collect()
}

/// Returns the statement after labels of the surrounding `switch`.
fn behind_labels(stmt: &Stmt) -> &Stmt {
    match &stmt.kind {
        StmtKind::Case(_, _, inner) | StmtKind::Default(inner) => behind_labels(inner),
        _ => stmt,
    }
}

/// Returns true if a label of the surrounding `switch` is in a statement.
fn has_label(stmt: &Stmt) -> bool {
    match &stmt.kind {
        StmtKind::Case(..) | StmtKind::Default(_) => true,
        StmtKind::Block(list) => list.iter().any(has_label),
        StmtKind::If(_, then, otherwise) => has_label(then) || otherwise.as_deref().is_some_and(has_label),
        StmtKind::For(_, _, _, body)
        | StmtKind::While(_, body)
        | StmtKind::Do(body, _)
        | StmtKind::Label(_, body) => has_label(body),
        _ => false,
    }
}

/// Returns true if every label is in the list of the body's block.
fn is_plain(body: &Stmt) -> bool {
    match &body.kind {
        StmtKind::Block(list) => !list.iter().any(|s| has_label(behind_labels(s))),
        _ => false,
    }
}

/// A body that is being rewritten.
struct Rewrite {
    /// After the body.
    end: Symbol,
    /// `case x: goto …;` for each label.
    cases: Vec<Stmt>,
    has_default: bool,
}

impl Parser<'_> {
    /// `switch (value) body`.
    pub(super) fn switch(&mut self, value: Expr, body: Stmt) -> Option<StmtKind> {
        if is_plain(&body) {
            return Some(StmtKind::Switch(value, Box::new(body)));
        }
        let span = body.span;
        let at = |kind| Stmt { kind, span };
        let mut rewrite = Rewrite { end: self.label(span)?, cases: Vec::new(), has_default: false };
        let body = self.without_labels(body, &mut rewrite, true)?;
        let Rewrite { end, mut cases, has_default } = rewrite;
        if !has_default {
            cases.push(at(StmtKind::Default(Box::new(at(StmtKind::Goto(end))))));
        }
        let jumps = at(StmtKind::Switch(value, Box::new(at(StmtKind::Block(cases)))));
        let behind = at(StmtKind::Label(end, Box::new(at(StmtKind::Expr(None)))));
        Some(StmtKind::Block(vec![jumps, body, behind]))
    }

    fn label(&mut self, span: Span) -> Option<Symbol> {
        match self.labels.pop() {
            Some(label) => Some(label),
            None => self.error(span, "too many labels"),
        }
    }

    /// Converts the labels of a statement to `goto` labels; `breaks` if a `break` in it leaves the `switch`.
    fn without_labels(&mut self, stmt: Stmt, to: &mut Rewrite, breaks: bool) -> Option<Stmt> {
        let span = stmt.span;
        let at = |kind| Stmt { kind, span };
        let kind = match stmt.kind {
            StmtKind::Case(value, last, inner) => {
                let label = self.label(span)?;
                to.cases.push(at(StmtKind::Case(value, last, Box::new(at(StmtKind::Goto(label))))));
                StmtKind::Label(label, Box::new(self.without_labels(*inner, to, breaks)?))
            }
            StmtKind::Default(inner) => {
                let label = self.label(span)?;
                to.has_default = true;
                to.cases.push(at(StmtKind::Default(Box::new(at(StmtKind::Goto(label))))));
                StmtKind::Label(label, Box::new(self.without_labels(*inner, to, breaks)?))
            }
            StmtKind::Break if breaks => StmtKind::Goto(to.end),
            StmtKind::Block(list) => {
                let list = list.into_iter().map(|s| self.without_labels(s, to, breaks));
                StmtKind::Block(list.collect::<Option<_>>()?)
            }
            StmtKind::If(cond, then, otherwise) => {
                let then = Box::new(self.without_labels(*then, to, breaks)?);
                let otherwise = match otherwise {
                    Some(stmt) => Some(Box::new(self.without_labels(*stmt, to, breaks)?)),
                    None => None,
                };
                StmtKind::If(cond, then, otherwise)
            }
            StmtKind::For(init, cond, step, body) => {
                StmtKind::For(init, cond, step, Box::new(self.without_labels(*body, to, false)?))
            }
            StmtKind::While(cond, body) => {
                StmtKind::While(cond, Box::new(self.without_labels(*body, to, false)?))
            }
            StmtKind::Do(body, cond) => StmtKind::Do(Box::new(self.without_labels(*body, to, false)?), cond),
            StmtKind::Label(name, inner) => {
                StmtKind::Label(name, Box::new(self.without_labels(*inner, to, breaks)?))
            }
            other => other,
        };
        Some(at(kind))
    }
}
