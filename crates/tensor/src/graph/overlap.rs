//! Which buffers are in use at one command.

use super::record::LiveRange;

/// No command.
const NEVER: usize = 0;

/// A set of ranges that says which of them are in use while another one is, in time that grows with how many they are.
///
/// All ranges lie in the order of their first commands; over them a tree of the latest ends of those that are in the set. A search
/// looks into no part whose ranges begin too late or have all ended.
pub(super) struct Overlaps {
    /// Spans by their first commands.
    order: Vec<usize>,
    /// First and last command by place in `order`; the last one is counted from 1.
    times: Vec<(usize, usize)>,
    /// Where each range lies in `order`; ranges that no command touches lie nowhere.
    place: Vec<Option<usize>>,
    /// The latest end below each node; node 1 is the root, node n has 2n and 2n + 1 below it.
    latest: Vec<usize>,
    leaves: usize,
    /// Nodes that searches came to.
    #[cfg(test)]
    pub visited: std::cell::Cell<usize>,
}

impl Overlaps {
    /// For these ranges, none of which is in the set so far.
    pub fn of(ranges: &[LiveRange]) -> Self {
        let mut order: Vec<usize> = (0..ranges.len()).filter(|i| ranges[*i].commands.is_some()).collect();
        order.sort_by_key(|i| ranges[*i].commands);
        let time = |i: &usize| {
            ranges[*i].commands.map_or((0, NEVER), |(first, last)| (first, last.saturating_add(1)))
        };
        let times = order.iter().map(time).collect();
        let mut place = vec![None; ranges.len()];
        for (at, i) in order.iter().enumerate() {
            place[*i] = Some(at);
        }
        let leaves = order.len().next_power_of_two();
        Self {
            order,
            times,
            place,
            latest: vec![NEVER; 2 * leaves],
            leaves,
            #[cfg(test)]
            visited: Default::default(),
        }
    }

    /// Takes range `i` into the set.
    pub fn insert(&mut self, i: usize) {
        let Some(at) = self.place[i] else { return };
        let end = self.times[at].1;
        let mut node = self.leaves + at;
        while node > 0 {
            self.latest[node] = self.latest[node].max(end);
            node /= 2;
        }
    }

    /// The ranges of the set that are in use at a command at which range `i` is.
    pub fn with(&self, i: usize, found: &mut Vec<usize>) {
        found.clear();
        let Some(at) = self.place[i] else { return };
        let (first, end) = self.times[at];
        // Those that begin before this one ends.
        let begun = self.times.partition_point(|(other, _)| *other < end);
        self.search(1, (0, self.leaves), (begun, first), found);
    }

    fn search(
        &self,
        node: usize,
        (from, to): (usize, usize),
        (begun, first): (usize, usize),
        found: &mut Vec<usize>,
    ) {
        #[cfg(test)]
        self.visited.set(self.visited.get() + 1);
        // An end counted from 1 that is at most `first` lies before it.
        if from >= begun || self.latest[node] <= first {
            return;
        }
        if to - from == 1 {
            found.push(self.order[from]);
            return;
        }
        let middle = from.midpoint(to);
        self.search(2 * node, (from, middle), (begun, first), found);
        self.search(2 * node + 1, (middle, to), (begun, first), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Micro-batches one after the other: each has buffers in use at once, and all of them the same number.
    #[test]
    fn the_work_of_a_search_does_not_grow_with_what_came_before() {
        let visited = |micros: usize| {
            let range = |m: usize, i: usize| {
                let commands = Some((100 * m + i, 100 * m + 99 - i));
                LiveRange { bytes: 1, tag: "", layer: 0, op: "", made_by: "", commands, survives: false }
            };
            let ranges: Vec<LiveRange> =
                (0..micros).flat_map(|m| (0..40).map(move |i| range(m, i))).collect();
            let (mut overlaps, mut found) = (Overlaps::of(&ranges), Vec::new());
            for i in 0..ranges.len() {
                overlaps.with(i, &mut found);
                assert_eq!(found.len(), i % 40);
                overlaps.insert(i);
            }
            overlaps.visited.get() / ranges.len()
        };
        // The depth of the tree, and the ranges in use at once.
        let (few, many) = (visited(100), visited(1600));
        assert!(many <= few + 2 * 4, "{few} nodes a range of 100 micro-batches, {many} of 1600");
    }

    #[test]
    fn those_in_use_at_once_are_found_and_no_others() {
        let range = |commands| LiveRange {
            bytes: 1,
            tag: "",
            layer: 0,
            op: "",
            made_by: "",
            commands,
            survives: false,
        };
        // Intervals of many lengths, some to the end, some of nothing.
        let ranges: Vec<LiveRange> = (0..200usize)
            .map(|i| {
                let first = i * 37 % 101;
                range(match i % 9 {
                    0 => None,
                    1 => Some((first, usize::MAX)),
                    2 => Some((0, first)),
                    n => Some((first, first + i % (5 * n))),
                })
            })
            .collect();
        let overlap = |a: &LiveRange, b: &LiveRange| {
            a.commands.zip(b.commands).is_some_and(|((a, b), (c, d))| a <= d && c <= b)
        };
        let (mut overlaps, mut found) = (Overlaps::of(&ranges), Vec::new());
        for i in 0..ranges.len() {
            overlaps.with(i, &mut found);
            found.sort_unstable();
            let expected: Vec<usize> = (0..i).filter(|other| overlap(&ranges[i], &ranges[*other])).collect();
            assert_eq!(found, expected, "range {i}");
            overlaps.insert(i);
        }
    }
}
