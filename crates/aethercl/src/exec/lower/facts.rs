//! Facts about a kernel from earlier lowering passes. Lowering starts with optimistic assumptions, records those that are wrong, and repeats until no
//! new fact appears.

use crate::hir::LocalId;
use std::collections::{HashMap, HashSet};

/// A call chain: each inlined call has a separate one.
pub type CallChain = u32;

/// Facts from earlier passes. All sets only grow, so that lowering terminates.
#[derive(Debug, Default)]
pub struct Facts {
    contexts: HashMap<(CallChain, usize), CallChain>,
    /// Variables whose value differs between lanes.
    pub divergent: HashSet<(CallChain, LocalId)>,
    /// Variables that need memory.
    pub in_memory: HashSet<(CallChain, LocalId)>,
    /// Loops that some lanes leave before others.
    pub exits: HashSet<(CallChain, usize)>,
    /// Loops in which some lanes start the next iteration before others.
    pub continues: HashSet<(CallChain, usize)>,
    /// Calls from which some lanes return before others.
    pub returns: HashSet<CallChain>,
    /// Whether this pass added a fact.
    pub changed: bool,
}

/// The set that a fact belongs to.
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
    /// Returns the context of a call from `from` at `site` (an address in the typed program).
    pub fn context(&mut self, from: CallChain, site: usize) -> CallChain {
        let next = self.contexts.len() as CallChain + 1;
        *self.contexts.entry((from, site)).or_insert(next)
    }

    /// Returns true if a fact is known.
    pub fn holds(&self, context: CallChain, fact: Fact) -> bool {
        match fact {
            Fact::Divergent(local) => self.divergent.contains(&(context, local)),
            Fact::Memory(local) => self.in_memory.contains(&(context, local)),
            Fact::Exit(site) => self.exits.contains(&(context, site)),
            Fact::Continue(site) => self.continues.contains(&(context, site)),
            Fact::Return => self.returns.contains(&context),
        }
    }

    /// Adds a fact.
    pub fn add(&mut self, context: CallChain, fact: Fact) {
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
