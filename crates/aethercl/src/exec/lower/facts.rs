//! What is known about a kernel after lowering it once or more: lowering starts out hopeful, notes what turned out
//! otherwise, and runs again until nothing new turns up.

use crate::hir::LocalId;
use std::collections::{HashMap, HashSet};

/// A call chain: each inlined call has its own.
pub type Context = u32;

/// Findings of earlier passes. All sets only grow, so that lowering ends.
#[derive(Debug, Default)]
pub struct Facts {
    contexts: HashMap<(Context, usize), Context>,
    /// Variables whose value differs between lanes.
    pub divergent: HashSet<(Context, LocalId)>,
    /// Variables that need memory.
    pub in_memory: HashSet<(Context, LocalId)>,
    /// Loops that some lanes leave before others.
    pub exits: HashSet<(Context, usize)>,
    /// Loops where some lanes go to the next round before others.
    pub continues: HashSet<(Context, usize)>,
    /// Calls from which some lanes return before others.
    pub returns: HashSet<Context>,
    /// Something was added in this pass.
    pub changed: bool,
}

/// Which set a fact belongs to.
#[derive(Debug, Clone, Copy)]
pub enum Fact {
    /// A variable differs between lanes.
    Divergent(LocalId),
    /// A variable needs memory.
    Memory(LocalId),
    /// Lanes leave this loop divergently.
    Exit(usize),
    /// Lanes continue this loop divergently.
    Continue(usize),
    /// Lanes return divergently.
    Return,
}

impl Facts {
    /// The context of a call at `site` (an address in the typed program) out of `from`.
    pub fn context(&mut self, from: Context, site: usize) -> Context {
        let next = self.contexts.len() as Context + 1;
        *self.contexts.entry((from, site)).or_insert(next)
    }

    /// Whether a fact is known.
    pub fn holds(&self, context: Context, fact: Fact) -> bool {
        match fact {
            Fact::Divergent(local) => self.divergent.contains(&(context, local)),
            Fact::Memory(local) => self.in_memory.contains(&(context, local)),
            Fact::Exit(site) => self.exits.contains(&(context, site)),
            Fact::Continue(site) => self.continues.contains(&(context, site)),
            Fact::Return => self.returns.contains(&context),
        }
    }

    /// Adds a fact.
    pub fn add(&mut self, context: Context, fact: Fact) {
        let new = match fact {
            Fact::Divergent(local) => self.divergent.insert((context, local)),
            Fact::Memory(local) => self.in_memory.insert((context, local)),
            Fact::Exit(site) => self.exits.insert((context, site)),
            Fact::Continue(site) => self.continues.insert((context, site)),
            Fact::Return => self.returns.insert(context),
        };
        self.changed |= new;
    }
}
