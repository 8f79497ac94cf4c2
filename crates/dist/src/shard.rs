//! How elements are divided among ranks.

use std::ops::Range;

/// The elements of `count` that belong to `rank` of `size`: consecutive, and of lengths that differ by one at most.
pub fn shard(count: usize, size: usize, rank: usize) -> Range<usize> {
    let (least, longer) = (count / size.max(1), count % size.max(1));
    let begin = rank * least + rank.min(longer);
    begin..begin + least + usize::from(rank < longer)
}
