//! Finds the buffers that are in use at the same command.

use super::record::LiveRange;

/// Marks the absence of a command.
const NEVER: usize = 0;

/// A set of ranges that finds those in use at the same time as another range. A search takes time proportional to their number.
///
/// All ranges are sorted by their first commands. A tree over them holds the latest end of the ranges in the set. A search skips parts
/// whose ranges begin too late or have all ended.
pub(super) struct Overlaps {
    /// Ranges in order of their first commands.
    order: Vec<usize>,
    /// First and last command by position in `order`. The last one is counted from 1.
    times: Vec<(usize, usize)>,
    /// Position of each range in `order`, or `None` if no command uses it.
    place: Vec<Option<usize>>,
    /// Latest end below each node. Node 1 is the root, and node n has the children 2n and 2n + 1.
    latest: Vec<usize>,
    leaves: usize,
    /// Number of nodes that searches visited.
    #[cfg(test)]
    pub visited: std::cell::Cell<usize>,
}

impl Overlaps {
    /// Builds an empty set for these ranges.
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

    /// Adds range `i` to the set.
    pub fn insert(&mut self, i: usize) {
        let Some(at) = self.place[i] else { return };
        let end = self.times[at].1;
        let mut node = self.leaves + at;
        while node > 0 {
            self.latest[node] = self.latest[node].max(end);
            node /= 2;
        }
    }

    /// Finds the ranges of the set that are in use at a command at which range `i` is in use.
    pub fn with(&self, i: usize, found: &mut Vec<usize>) {
        found.clear();
        let Some(at) = self.place[i] else { return };
        let (first, end) = self.times[at];
        // Candidates begin before this range ends.
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
        // An end that is counted from 1 and at most `first` is before `first`.
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

    /// The work of a search is the same for each of many sequential micro-batches: each has the same number of buffers in use at the same time.
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
        // The depth of the tree, plus the ranges in use at the same time.
        let (few, many) = (visited(100), visited(1600));
        assert!(many <= few + 2 * 4, "{few} nodes visited for 100 micro-batches, {many} for 1600");
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
        // Intervals of many lengths; some last to the end, some are empty.
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
