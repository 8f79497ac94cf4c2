//! `goto`: a block with labels becomes a loop around a `switch` over its parts, and `goto` starts the next iteration of that loop.
//!
//! ```text
//! { A; again: B; done: C; }     at = 0; for (;;) { switch (at) { case 0: A; case 1: B; case 2: C; } break; }
//! goto done;                    at = 2; continue;
//! ```
//! So diverged lanes reconverge, the same as at any other loop. The block's variables begin before the loop.
//!
//! A block that is jumped into from outside has one more variable, its entry: 0, or the part that a `goto` outside selects. The statement around the
//! block lets such a jump pass.
//!
//! ```text
//! while (c) { A; in: B; }       while (entry != 0 || c) { at = entry; entry = 0; for (;;) { switch (at) … } }
//! goto in;                      entry = 1; and a jump to the `while`, which counts as a label of its block
//! ```
//! A jump into a `switch` or a statement expression is not supported.

use super::{Nest, Sema};
use crate::hir::{
    Case, CompareOp, Expr, ExprKind, Init, LocalId, LogicalOp, Place, PlaceKind, Stmt, StmtKind,
};
use crate::lex::Symbol;
use crate::parse::ast;
use crate::source::Span;
use crate::types::{BOOL, INT, Space};
use std::collections::{HashMap, HashSet};

/// The labels of a block.
pub(super) struct Labels {
    labels: Vec<Label>,
    /// The variable that selects the next part.
    at: Place,
}

/// A label in a block, or deeper if a `goto` from outside reaches it.
struct Label {
    name: Symbol,
    /// The part of the block that it starts, or that contains it.
    part: usize,
    /// The entries of the inner blocks that lead to it, with their parts.
    inner: Vec<(Place, usize)>,
}

/// Labels of a function that are reached from outside their block, and the entries of those blocks.
#[derive(Default)]
pub(super) struct Entries {
    labels: HashSet<Symbol>,
    /// By address of a block's first statement.
    places: HashMap<usize, Place>,
}

/// Labels in a block, or the positions of `goto`s, with the surrounding blocks.
type FoundLabels = Vec<(Symbol, Vec<usize>)>;

impl Entries {
    /// Returns the entries of a function's body.
    pub(super) fn of(body: &[ast::Stmt]) -> Self {
        let (mut labels, mut jumps) = (FoundLabels::new(), FoundLabels::new());
        find(body, &mut Vec::new(), &mut labels, &mut jumps);
        let outside =
            |name: Symbol, path: &[usize]| jumps.iter().any(|(n, p)| *n == name && !p.starts_with(path));
        let labels = labels.into_iter().filter(|(n, path)| outside(*n, path)).map(|(n, _)| n).collect();
        Self { labels, places: HashMap::new() }
    }

    /// Returns statements that set all entries to 0.
    pub(super) fn reset(&self) -> Vec<Stmt> {
        let mut places: Vec<&Place> = self.places.values().collect();
        places.sort_by_key(|p| if let PlaceKind::Local(id) = p.kind { id.0 } else { 0 });
        places.into_iter().map(|p| set(p, 0, p.span)).collect()
    }
}

fn find(list: &[ast::Stmt], path: &mut Vec<usize>, labels: &mut FoundLabels, jumps: &mut FoundLabels) {
    path.push(list.as_ptr().addr());
    for stmt in list {
        let mut inner = stmt;
        loop {
            match &inner.kind {
                ast::StmtKind::Label(name, next) => {
                    labels.push((*name, path.clone()));
                    inner = next;
                }
                ast::StmtKind::Case(_, _, next) | ast::StmtKind::Default(next) => inner = next,
                _ => break,
            }
        }
        if let ast::StmtKind::Goto(name) = inner.kind {
            jumps.push((name, path.clone()));
        }
        let inside = match &inner.kind {
            ast::StmtKind::Switch(_, body) => vec![list_of(body)],
            _ => bodies(inner),
        };
        inside.into_iter().for_each(|list| find(list, path, labels, jumps));
    }
    path.pop();
}

/// Returns a block's statements, or a single statement.
pub(super) fn list_of(stmt: &ast::Stmt) -> &[ast::Stmt] {
    match &stmt.kind {
        ast::StmtKind::Block(list) => list,
        _ => std::slice::from_ref(stmt),
    }
}

/// Returns the blocks directly inside a statement that a jump may enter.
fn bodies(stmt: &ast::Stmt) -> Vec<&[ast::Stmt]> {
    match &stmt.kind {
        ast::StmtKind::Block(list) => vec![list],
        ast::StmtKind::If(_, then, otherwise) => {
            std::iter::once(then).chain(otherwise).map(|s| list_of(s)).collect()
        }
        ast::StmtKind::While(_, body) | ast::StmtKind::Do(body, _) | ast::StmtKind::For(_, _, _, body) => {
            vec![list_of(body)]
        }
        ast::StmtKind::Label(_, inner) => bodies(inner),
        _ => Vec::new(),
    }
}

/// A label in a block of the syntax tree.
struct Written<'a> {
    name: Symbol,
    part: usize,
    span: Span,
    /// The statement that contains it, if it is not directly in the block.
    holder: Option<&'a ast::Stmt>,
}

/// Returns the labels of a block, and those of inner blocks that are reached from outside.
fn written<'a>(list: &'a [ast::Stmt], reached: &HashSet<Symbol>) -> Vec<Written<'a>> {
    let (mut all, mut part) = (Vec::new(), 0);
    for stmt in list {
        let mut inner = stmt;
        while let ast::StmtKind::Label(name, next) = &inner.kind {
            part += 1;
            all.push(Written { name: *name, part, span: inner.span, holder: None });
            inner = next;
        }
        let deep: Vec<Written<'_>> = match reached.is_empty() {
            true => Vec::new(),
            false => bodies(inner).into_iter().flat_map(|b| written(b, reached)).collect(),
        };
        let deep: Vec<_> = deep.into_iter().filter(|w| reached.contains(&w.name)).collect();
        part += usize::from(!deep.is_empty());
        let held = |w: Written<'_>| Written { name: w.name, part, span: w.span, holder: Some(inner) };
        all.extend(deep.into_iter().map(held));
    }
    all
}

/// Returns the number of loops in a nest.
pub(super) fn loops(nest: &[Nest]) -> usize {
    nest.iter().filter(|n| !matches!(n, Nest::Switch)).count()
}

/// Returns the number of loops and switches in a nest.
pub(super) fn breakables(nest: &[Nest]) -> usize {
    nest.iter().map(|n| if matches!(n, Nest::Labelled(_)) { 2 } else { 1 }).sum()
}

impl Sema<'_> {
    fn reached(&self) -> HashSet<Symbol> {
        self.current.as_ref().map(|c| c.entries.labels.clone()).unwrap_or_default()
    }

    /// Returns true if a block must be converted to one with labels.
    pub(super) fn has_labels(&self, list: &[ast::Stmt]) -> bool {
        let none = HashSet::new();
        let reached = self.current.as_ref().map_or(&none, |c| &c.entries.labels);
        list.iter().any(|s| matches!(s.kind, ast::StmtKind::Label(..)))
            || (!reached.is_empty() && !written(list, reached).is_empty())
    }

    /// Returns the entry of a block, if jumps from outside lead into it.
    pub(super) fn entry(&mut self, list: &[ast::Stmt]) -> Option<Place> {
        let reached = self.reached();
        let first = list.first()?;
        if reached.is_empty() || !written(list, &reached).iter().any(|w| reached.contains(&w.name)) {
            return None;
        }
        let key = list.as_ptr().addr();
        if let Some(known) = self.current.as_ref()?.entries.places.get(&key) {
            return Some(known.clone());
        }
        let place = self.temporary(INT, first.span)?.place;
        self.current.as_mut()?.entries.places.insert(key, place.clone());
        Some(place)
    }

    /// Returns the entries and parts on the path to a label in the blocks of a statement.
    fn way(&mut self, holder: &ast::Stmt, name: Symbol) -> Option<Vec<(Place, usize)>> {
        let reached = self.reached();
        for list in bodies(holder) {
            if let Some(w) = written(list, &reached).into_iter().find(|w| w.name == name) {
                let mut way = vec![(self.entry(list)?, w.part)];
                if let Some(holder) = w.holder {
                    way.extend(self.way(holder, name)?);
                }
                return Some(way);
            }
        }
        None
    }

    /// Returns the condition of a statement whose block may be entered: `entered != 0 || cond`.
    pub(super) fn or_entered(&mut self, body: &ast::Stmt, cond: Expr) -> Expr {
        match self.entry(list_of(body)) {
            Some(entry) => logical(LogicalOp::Or, compare(CompareOp::Ne, &entry), cond),
            None => cond,
        }
    }

    /// Returns the condition under which a statement's head runs: `entered == 0 && cond`.
    pub(super) fn unless_entered(&mut self, body: &ast::Stmt, cond: Expr) -> Expr {
        match self.entry(list_of(body)) {
            Some(entry) => logical(LogicalOp::And, compare(CompareOp::Eq, &entry), cond),
            None => cond,
        }
    }

    /// Returns the first clause of a `for` whose body may be entered: variables are declared, and get their values only if no jump enters it.
    pub(super) fn unless_entered_first(&mut self, body: &ast::Stmt, first: Vec<Stmt>) -> Option<Vec<Stmt>> {
        let Some(entry) = self.entry(list_of(body)) else { return Some(first) };
        self.keep_lists(&first);
        let span = entry.span;
        let mut out = Vec::new();
        let values: Vec<Stmt> = first.into_iter().map(|s| begun_before(s, &mut out)).collect();
        let then = Box::new(Stmt { kind: StmtKind::Block(values), span });
        let cond = compare(CompareOp::Eq, &entry);
        out.push(Stmt { kind: StmtKind::If { cond, then, otherwise: None }, span });
        Some(out)
    }

    /// Returns the statements of a block with labels.
    pub(super) fn labelled_block(&mut self, list: &[ast::Stmt]) -> Option<Vec<Stmt>> {
        let span = list.first().map_or(Span::default(), |s| s.span);
        let mut labels: Vec<Label> = Vec::new();
        let mut seen: Vec<(Symbol, Span)> = Vec::new();
        for w in written(list, &self.reached()) {
            if let Some((_, before)) = seen.iter().find(|(n, _)| *n == w.name) {
                let message = format!("redefinition of label '{}'", self.text(w.name));
                let note = vec![(*before, "previous definition is here".to_string())];
                self.diagnostics.error_with(w.span, message, note);
                return None;
            }
            seen.push((w.name, w.span));
            let inner = match w.holder {
                Some(holder) => self.way(holder, w.name)?,
                None => Vec::new(),
            };
            labels.push(Label { name: w.name, part: w.part, inner });
        }
        let at = self.temporary(INT, span)?.place;
        let entry = self.entry(list);
        let labels = Labels { labels, at: at.clone() };
        let parts = self.nested(Nest::Labelled(labels), |s| s.parts(list))?;
        let mut out = Vec::new();
        let cases = parts.into_iter().enumerate().map(|(number, part)| {
            let body = part.into_iter().map(|stmt| begun_before(stmt, &mut out)).collect();
            Case { values: vec![number as u64], is_default: false, body }
        });
        let cases = cases.collect();
        let stmt = |kind| Stmt { kind, span };
        let body = vec![stmt(StmtKind::Switch { value: read(&at), cases }), stmt(StmtKind::Break(0))];
        match entry {
            Some(entry) => {
                out.push(assign(at, read(&entry), span));
                out.push(set(&entry, 0, span));
            }
            None => out.push(set(&at, 0, span)),
        }
        out.push(stmt(StmtKind::For {
            init: Vec::new(),
            cond: None,
            step: None,
            body: Box::new(stmt(StmtKind::Block(body))),
        }));
        Some(out)
    }

    /// Returns the statements up to the first label, from there to the next, and so on.
    fn parts(&mut self, list: &[ast::Stmt]) -> Option<Vec<Vec<Stmt>>> {
        let mut parts = vec![Vec::new()];
        let mut all_fine = true;
        let reached = self.reached();
        for stmt in list {
            let mut inner = stmt;
            while let ast::StmtKind::Label(_, next) = &inner.kind {
                parts.push(Vec::new());
                inner = next;
            }
            if written(std::slice::from_ref(inner), &reached).iter().any(|w| w.holder.is_some()) {
                parts.push(Vec::new());
            }
            let mut out = Vec::new();
            all_fine &= self.statement(inner, &mut out).is_some();
            self.keep_lists(&out);
            parts.last_mut()?.append(&mut out);
            if self.diagnostics.too_many() {
                return None;
            }
        }
        all_fine.then_some(parts)
    }

    /// Puts variables with initializer lists in memory, where other parts of the block find them.
    fn keep_lists(&mut self, list: &[Stmt]) {
        for stmt in list {
            if let StmtKind::Declare { local, init: Some(Init::List { .. }) } = stmt.kind
                && let Some(variable) = self.current.as_mut().and_then(|c| c.locals.get_mut(local.0 as usize))
            {
                variable.address_taken = true;
            }
        }
    }

    /// `goto`.
    pub(super) fn goto(&mut self, name: Symbol, span: Span) -> Option<StmtKind> {
        let nest = self.current.as_ref().map_or(&[][..], |c| &c.nest);
        let inside = nest.iter().rposition(|n| matches!(n, Nest::Expression)).map_or(0, |i| i + 1);
        let found = nest.iter().enumerate().skip(inside).rev().find_map(|(i, n)| match n {
            Nest::Labelled(l) => l.labels.iter().find(|l| l.name == name).map(|label| (i, l, label)),
            _ => None,
        });
        let Some((i, block, label)) = found else {
            let message = format!(
                "no label '{}' that a 'goto' here can reach; one into a 'switch', or into or out of a statement expression, is not supported",
                self.text(name)
            );
            return self.error(span, message);
        };
        let jump = Stmt { kind: StmtKind::Continue(loops(&nest[i + 1..])), span };
        let mut out = vec![set(&block.at, label.part as u64, span)];
        out.extend(label.inner.iter().map(|(entry, part)| set(entry, *part as u64, span)));
        out.push(jump);
        Some(StmtKind::Block(out))
    }
}

fn read(place: &Place) -> Expr {
    Expr { kind: ExprKind::Load(Box::new(place.clone())), ty: INT, span: place.span }
}

/// Builds a comparison of an entry with 0.
fn compare(op: CompareOp, entry: &Place) -> Expr {
    let zero = Expr { kind: ExprKind::Int(0), ty: INT, span: entry.span };
    let kind = ExprKind::Compare(op, Box::new(read(entry)), Box::new(zero));
    Expr { kind, ty: BOOL, span: entry.span }
}

fn logical(op: LogicalOp, a: Expr, b: Expr) -> Expr {
    let span = b.span;
    Expr { kind: ExprKind::Logical(op, Box::new(a), Box::new(b)), ty: BOOL, span }
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

/// Moves a declaration before the loop and leaves the assignment of its initial value. An initializer list stays a separate declaration of the same
/// variable: earlier statements may not use the old content.
fn begun_before(stmt: Stmt, before: &mut Vec<Stmt>) -> Stmt {
    let span = stmt.span;
    match stmt.kind {
        StmtKind::Declare { local, init } => {
            before.push(Stmt { kind: StmtKind::Declare { local, init: None }, span });
            match init {
                Some(Init::Value(value)) => assign(variable(local, &value), value, span),
                Some(list) => Stmt { kind: StmtKind::Declare { local, init: Some(list) }, span },
                None => Stmt { kind: StmtKind::Block(Vec::new()), span },
            }
        }
        kind => Stmt { kind, span },
    }
}

fn variable(local: LocalId, value: &Expr) -> Place {
    Place { kind: PlaceKind::Local(local), ty: value.ty, space: Space::Private, span: value.span }
}
