//! Meaning of names by block.

use std::collections::HashMap;

use super::{Qualified, Sema};
use crate::hir::{GlobalId, LocalId};
use crate::lex::{Names, Symbol};
use crate::source::Span;
use crate::types::{INT, RecordId, Type};

/// Meaning of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entity {
    /// A parameter or variable of the current function.
    Local(LocalId),
    /// A variable of the program.
    Global(GlobalId),
    /// Index in `Sema::functions`.
    Function(usize),
    /// A constant of an enumeration: its bits and type.
    Constant(u64, Type),
    /// A type.
    Typedef(Qualified),
    /// Declared with an error that has been reported: its uses are not reported.
    Broken,
}

/// Meaning of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// A structure or union.
    Record(RecordId),
    /// An enumeration, of this type.
    Enum(Type),
}

/// One block's names.
#[derive(Debug, Default)]
pub(super) struct Scope {
    names: HashMap<Symbol, (Entity, Span)>,
    tags: HashMap<Symbol, Tag>,
}

impl Scope {
    /// Returns the program's variable of this name.
    pub(super) fn variable(&self, name: Symbol) -> Option<GlobalId> {
        match self.names.get(&name) {
            Some((Entity::Global(id), _)) => Some(*id),
            _ => None,
        }
    }

    /// Adds a variable of the program, unless the name is already declared.
    pub(super) fn insert_variable(&mut self, name: Symbol, id: GlobalId, span: Span) {
        self.names.entry(name).or_insert((Entity::Global(id), span));
    }
}

/// Constants of section 6.13.11 of OpenCL C 2.0, which atomic functions take.
const ORDERS: [(&str, u64); 10] = [
    ("memory_order_relaxed", 0),
    ("memory_order_acquire", 2),
    ("memory_order_release", 3),
    ("memory_order_acq_rel", 4),
    ("memory_order_seq_cst", 5),
    ("memory_scope_work_item", 0),
    ("memory_scope_work_group", 1),
    ("memory_scope_device", 2),
    ("memory_scope_all_svm_devices", 3),
    ("memory_scope_sub_group", 4),
];

/// Returns names of the language that a program may hide.
pub(super) fn base(names: &mut Names) -> Scope {
    let mut scope = Scope::default();
    for (name, value) in ORDERS {
        scope.names.insert(names.intern(name), (Entity::Constant(value, INT), Span::default()));
    }
    for (name, value) in [("true", 1), ("false", 0)] {
        scope.names.insert(names.intern(name), (Entity::Constant(value, INT), Span::default()));
    }
    scope
}

impl Sema<'_> {
    pub(super) fn lookup(&self, name: Symbol) -> Option<Entity> {
        self.scopes.iter().rev().find_map(|s| s.names.get(&name)).map(|e| e.0)
    }

    /// Returns the entity of this name in the innermost block.
    pub(super) fn lookup_here(&self, name: Symbol) -> Option<(Entity, Span)> {
        self.scopes.last().and_then(|s| s.names.get(&name)).copied()
    }

    /// Declares a name; a second declaration in the same block is an error.
    pub(super) fn bind(&mut self, name: Symbol, entity: Entity, span: Span) -> Option<()> {
        if let Some((_, before)) = self.lookup_here(name) {
            let message = format!("redefinition of '{}'", self.text(name));
            self.diagnostics.error_with(span, message, vec![(before, "previous definition is here".into())]);
            return None;
        }
        self.rebind(name, entity, span);
        Some(())
    }

    pub(super) fn rebind(&mut self, name: Symbol, entity: Entity, span: Span) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, (entity, span));
        }
    }

    pub(super) fn tag(&self, name: Symbol) -> Option<Tag> {
        self.scopes.iter().rev().find_map(|s| s.tags.get(&name)).copied()
    }

    pub(super) fn tag_here(&self, name: Symbol) -> Option<Tag> {
        self.scopes.last().and_then(|s| s.tags.get(&name)).copied()
    }

    pub(super) fn bind_tag(&mut self, name: Symbol, tag: Tag) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.tags.insert(name, tag);
        }
    }

    /// Runs an analysis in a separate block.
    pub(super) fn scoped<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let depth = self.scopes.len();
        self.scopes.push(Scope::default());
        let result = run(self);
        self.scopes.truncate(depth);
        result
    }

    /// Returns `; did you mean 'x'?` for the names in scope.
    pub(super) fn suggest(&self, name: Symbol, functions: bool) -> String {
        let seen = self.scopes.iter().flat_map(|s| &s.names);
        let fits = |e: &Entity| {
            matches!(e, Entity::Function(_)) == functions && !matches!(e, Entity::Typedef(_) | Entity::Broken)
        };
        let seen = seen.filter(|(_, (e, _))| fits(e)).map(|(s, _)| self.text(*s).to_string());
        let builtins = self.builtins.names().filter(|_| functions).map(String::from);
        let all: Vec<String> = seen.chain(builtins).collect();
        crate::source::did_you_mean(self.text(name), all.iter().map(String::as_str))
    }
}
