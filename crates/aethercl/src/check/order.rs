//! The happens-before relation of OpenCL's memory model, for the check for races.
//!
//! Each work-item has a clock that counts its release operations. A release is a node of a graph: work-item, clock, number of barriers
//! that its group has passed, and the node of its latest acquire. An acquire adds the release that it reads from as a parent. The graph
//! shows whether an access happens before the current instruction of a work-item. It does if there is a path from the work-item's node to
//! a later release by the accessing work-item. The graph is searched only for possible races; results are cached until the next acquire.

use crate::hir::{MemoryOrder, MemoryScope};
use std::collections::HashMap;

/// The node without history.
const NONE: u32 = 0;
/// Maximum number of nodes of a launch; beyond it all accesses count as ordered.
const MAX_NODES: usize = 1 << 22;
/// Maximum number of releases that a work-item has read by relaxed operations without acquiring them by a fence; the oldest are dropped.
const MAX_PENDING: usize = 64;

/// A point in the execution of a work-item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The group's number + 1.
    pub group: u32,
    /// The work-item in the group.
    pub lane: u32,
    /// Its clock: number of release operations.
    pub clock: u32,
    /// Number of barriers that the group had passed.
    pub epoch: u32,
}

/// One release or several joined releases.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// Known history of the releasing work-item: accesses before this clock. Group 0 for a node that only joins.
    known: Moment,
    parents: [u32; 2],
}

/// The release that an acquire from a location reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Released {
    /// The memory whose accesses are ordered: 0 local, 1 global.
    side: usize,
    node: u32,
    scope: MemoryScope,
    group: u32,
    sub: u32,
}

/// Everything reachable from a node.
#[derive(Debug, Default)]
struct Known {
    node: u32,
    items: HashMap<(u32, u32), u32>,
    groups: HashMap<u32, u32>,
}

/// A work-item's own.
#[derive(Debug, Clone, Default)]
struct Own {
    clock: [u32; 2],
    node: [u32; 2],
    /// By memory: the release of a fence, for later atomic writes.
    fence: [Option<Released>; 2],
    /// Releases seen by relaxed reads, for a later fence.
    pending: Vec<Released>,
}

/// The relation from the view of the running group.
pub struct HappensBefore {
    nodes: Vec<Node>,
    locations: HashMap<(usize, usize), Vec<Released>>,
    items: Vec<Own>,
    known: HashMap<(usize, u32), Known>,
    epochs: [u32; 2],
    group: u32,
    sub_size: u32,
}

impl HappensBefore {
    /// Returns an empty relation. `sub_size`: work-items per sub-group.
    pub fn new(sub_size: u32) -> HappensBefore {
        let known = Moment { group: 0, lane: 0, clock: 0, epoch: 0 };
        HappensBefore {
            nodes: vec![Node { known, parents: [NONE; 2] }],
            locations: HashMap::new(),
            items: Vec::new(),
            known: HashMap::new(),
            epochs: [0; 2],
            group: 0,
            sub_size: sub_size.max(1),
        }
    }

    /// Starts another group: its number + 1, and its work-items. `local` is the range of locations that belonged to the previous group.
    pub fn start_group(&mut self, group: u32, items: usize, local: usize) {
        self.group = group;
        self.items.clear();
        self.items.resize(items, Own::default());
        self.epochs = [0; 2];
        self.known.clear();
        self.locations.retain(|(object, _), _| *object != local);
    }

    /// Returns the current moment of a work-item. `side`: 0 for local memory, 1 for global memory.
    pub fn now(&self, side: usize, lane: usize) -> Moment {
        let clock = self.items.get(lane).map_or(0, |own| own.clock[side]);
        Moment { group: self.group, lane: lane as u32, clock, epoch: self.epochs[side] }
    }

    /// Returns true if that moment happens before the current instruction of a work-item of the running group.
    pub fn is_before(&mut self, then: &Moment, side: usize, lane: usize) -> bool {
        if then.group == self.group && (then.lane == lane as u32 || then.epoch < self.epochs[side]) {
            return true;
        }
        if self.nodes.len() >= MAX_NODES {
            return true;
        }
        let node = self.items.get(lane).map_or(NONE, |own| own.node[side]);
        if node == NONE {
            return false;
        }
        let nodes = &self.nodes;
        let known = self.known.entry((side, lane as u32)).or_default();
        if known.node != node {
            *known = walk(nodes, node);
        }
        known.items.get(&(then.group, then.lane)).is_some_and(|clock| then.clock < *clock)
            || known.groups.get(&then.group).is_some_and(|epoch| then.epoch < *epoch)
    }

    fn push(&mut self, node: Node) -> u32 {
        if self.nodes.len() >= MAX_NODES {
            return NONE;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn join(&mut self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (NONE, x) | (x, NONE) => x,
            (a, b) if a == b => a,
            _ => {
                let known = Moment { group: 0, lane: 0, clock: 0, epoch: 0 };
                self.push(Node { known, parents: [a, b] })
            }
        }
    }

    /// Returns a node for the whole history of a work-item.
    fn release(&mut self, side: usize, lane: usize, scope: MemoryScope) -> Released {
        let mut known = self.now(side, lane);
        known.clock += 1;
        let parent = self.items.get(lane).map_or(NONE, |own| own.node[side]);
        let node = self.push(Node { known, parents: [parent, NONE] });
        if let Some(own) = self.items.get_mut(lane) {
            own.clock[side] = known.clock;
        }
        Released { side, node, scope, group: self.group, sub: lane as u32 / self.sub_size }
    }

    fn acquire(&mut self, from: &Released, lane: usize, scope: MemoryScope) {
        if !self.reaches(from, lane, scope) {
            return;
        }
        let Some(own) = self.items.get(lane) else { return };
        let joined = self.join(own.node[from.side], from.node);
        if let Some(own) = self.items.get_mut(lane) {
            own.node[from.side] = joined;
        }
    }

    /// Returns true if each side is in the scope of the other.
    fn reaches(&self, from: &Released, lane: usize, scope: MemoryScope) -> bool {
        match from.scope.min(scope) {
            MemoryScope::Item => false,
            MemoryScope::SubGroup => from.group == self.group && from.sub == lane as u32 / self.sub_size,
            MemoryScope::Group => from.group == self.group,
            MemoryScope::Device => true,
        }
    }

    /// Handles an atomic operation of a work-item at a location that reads, writes, or both.
    pub fn atomic(
        &mut self,
        place: (usize, usize),
        side: usize,
        lane: usize,
        order: MemoryOrder,
        (reads, writes): (bool, bool),
    ) {
        if reads {
            self.read(place, side, lane, order.acquires(), order.scope());
        }
        if writes {
            self.write(place, side, lane, order, reads);
        }
    }

    /// Handles a failed comparison, which only reads.
    pub fn failed(&mut self, place: (usize, usize), side: usize, lane: usize, order: MemoryOrder) {
        self.read(place, side, lane, order.acquires_on_failure(), order.scope());
    }

    fn read(&mut self, place: (usize, usize), side: usize, lane: usize, acquires: bool, scope: MemoryScope) {
        let Some(list) = self.locations.get(&place) else { return };
        for from in list.clone() {
            if acquires && from.side == side {
                self.acquire(&from, lane, scope);
            }
            let Some(own) = self.items.get_mut(lane) else { return };
            if !own.pending.contains(&from) {
                if own.pending.len() == MAX_PENDING {
                    own.pending.remove(0);
                }
                own.pending.push(from);
            }
        }
    }

    /// Replaces the content of a location. If the operation also reads, a later acquire acquires both releases.
    fn write(&mut self, place: (usize, usize), side: usize, lane: usize, order: MemoryOrder, reads: bool) {
        let fences = self.items.get(lane).map_or([None; 2], |own| own.fence);
        let own = order.releases().then(|| self.release(side, lane, order.scope()));
        let mut list = self.locations.remove(&place).unwrap_or_default();
        if !reads {
            list.clear();
        }
        // Both the fence's scope and the operation's scope must match.
        let within = |f: Released| Released { scope: f.scope.min(order.scope()), ..f };
        for new in own.into_iter().chain(fences.into_iter().flatten().map(within)) {
            let like = |o: &&mut Released| {
                let same = o.side == new.side && o.scope == new.scope;
                same && (new.scope == MemoryScope::Device || (o.group == new.group && o.sub == new.sub))
            };
            match list.iter_mut().find(like) {
                Some(old) => old.node = self.join(old.node, new.node),
                None => list.push(new),
            }
        }
        if !list.is_empty() {
            self.locations.insert(place, list);
        }
    }

    /// Handles a fence of a work-item. Flags: 1 local, 2 global.
    pub fn fence(&mut self, lane: usize, order: MemoryOrder, flags: u32) {
        for side in (0..2).filter(|side| flags >> side & 1 != 0) {
            if order.acquires() {
                let pending = self.items.get(lane).map_or(Vec::new(), |own| own.pending.clone());
                // A relaxed read orders the memory that the fences on both sides name.
                for from in pending.iter().filter(|from| from.side == side) {
                    self.acquire(from, lane, order.scope());
                }
            }
            if order.releases() {
                let released = self.release(side, lane, order.scope());
                if let Some(own) = self.items.get_mut(lane) {
                    own.fence[side] = Some(released);
                }
            }
        }
    }

    /// Handles a barrier of the group: every work-item then knows the history of all.
    pub fn barrier(&mut self, flags: u32) {
        for side in (0..2).filter(|side| flags >> side & 1 != 0) {
            self.epochs[side] += 1;
            self.share(side, 0..self.items.len());
        }
    }

    /// Handles a barrier of the sub-groups of these lanes, which are in order.
    pub fn sub_barrier(&mut self, lanes: impl Iterator<Item = usize>, flags: u32) {
        let mut subs: Vec<usize> = lanes.map(|lane| lane / self.sub_size as usize).collect();
        subs.dedup();
        for side in (0..2).filter(|side| flags >> side & 1 != 0) {
            for sub in &subs {
                let first = sub * self.sub_size as usize;
                let range = first..(first + self.sub_size as usize).min(self.items.len());
                for lane in range.clone() {
                    let released = self.release(side, lane, MemoryScope::SubGroup);
                    self.items[lane].node[side] = released.node;
                }
                self.share(side, range);
            }
        }
    }

    fn share(&mut self, side: usize, range: std::ops::Range<usize>) {
        let nodes: Vec<u32> = range.clone().map(|lane| self.items[lane].node[side]).collect();
        let all = nodes.into_iter().fold(NONE, |all, node| self.join(all, node));
        for own in &mut self.items[range] {
            own.node[side] = all;
        }
    }
}

/// Returns everything reachable from a node.
fn walk(nodes: &[Node], from: u32) -> Known {
    let mut known = Known { node: from, ..Known::default() };
    let mut seen = vec![false; from as usize + 1];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at == NONE || std::mem::replace(&mut seen[at as usize], true) {
            continue;
        }
        let Node { known: m, parents } = nodes[at as usize];
        if m.group != 0 {
            let clock = known.items.entry((m.group, m.lane)).or_default();
            *clock = m.clock.max(*clock);
            let epoch = known.groups.entry(m.group).or_default();
            *epoch = m.epoch.max(*epoch);
        }
        open.extend(parents);
    }
    known
}
