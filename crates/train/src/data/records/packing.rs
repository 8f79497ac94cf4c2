//! Packing: several records per row.
//!
//! The longest records are placed first, each in the row in which it leaves the least room (best fit decreasing, Johnson 1974). The rows are the same
//! in every epoch; their order is another one.

use super::order::shuffled;
use std::collections::BTreeMap;

/// Records by row; every row has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    records: Vec<u32>,
    /// End of each row in the list of records.
    ends: Vec<usize>,
}

impl Packing {
    /// Packs records of these lengths into rows of `context` tokens, of which none has more.
    pub(super) fn of(lengths: &[usize], context: usize) -> Self {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|record| std::cmp::Reverse(lengths[*record]));
        let mut rows: Vec<Vec<u32>> = Vec::new();
        // Rows by the tokens that are left in them.
        let mut rooms: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for record in order {
            let tokens = lengths[record];
            let room = rooms.range(tokens..).next().map(|(room, _)| *room);
            let (row, room) = match room.and_then(|room| Some((rooms.get_mut(&room)?.pop()?, room))) {
                Some(found) => found,
                None => {
                    rows.push(Vec::new());
                    (rows.len() - 1, context)
                }
            };
            if rooms.get(&room).is_some_and(Vec::is_empty) {
                rooms.remove(&room);
            }
            rows[row].push(record as u32);
            rooms.entry(room.saturating_sub(tokens)).or_default().push(row);
        }
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        });
        let ends = ends.collect();
        Self { records: rows.concat(), ends }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the packing is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the records of a row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        let end = self.ends.get(row).copied().unwrap_or(0);
        let start = row.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.records.get(start..end).unwrap_or_default().iter().map(|record| *record as usize)
    }

    /// Returns the row at position `at` of an epoch, in an order that follows from the seed.
    pub(in crate::data) fn at(&self, seed: u64, epoch: u64, at: u64) -> usize {
        shuffled(seed, epoch, at, self.len() as u64) as usize
    }
}
