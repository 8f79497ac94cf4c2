//! Shares that are exchanged in several segments, some of them empty.

use crate::collective::{all_reduce, reduce_scatter};
use crate::{Reduction, local, shard};
use netcl_tensor::DType;
use std::time::Duration;

#[test]
fn shares_in_segments_are_those_in_one() {
    // More elements than the limit for small vectors, and shares of different lengths.
    let (n, count) = (3, 30_001usize);
    let value = |rank: usize, i: usize| (i * 7 + rank * 1000) as u32;
    let sums: Vec<u32> = (0..count).map(|i| (0..n).map(|rank| value(rank, i)).sum()).collect();
    std::thread::scope(|scope| {
        for group in local(n, Duration::from_secs(60)) {
            let sums = &sums;
            scope.spawn(move || {
                let link = &**group.transport();
                let own: Vec<u32> = (0..count).map(|i| value(group.rank(), i)).collect();
                for length in [4096, 40_000, 1 << 20] {
                    let (mut all, mut part, mut scratch) = (own.clone(), own.clone(), Vec::new());
                    let bytes = bytemuck::cast_slice_mut(&mut all);
                    all_reduce(link, DType::U32, Reduction::Sum, bytes, (&mut scratch, length)).unwrap();
                    assert!(all == *sums, "all_reduce in segments of {length}");
                    let bytes = bytemuck::cast_slice_mut(&mut part);
                    reduce_scatter(link, DType::U32, Reduction::Sum, bytes, (&mut scratch, length)).unwrap();
                    let mine = shard(count, n, group.rank());
                    assert!(part[mine.clone()] == sums[mine], "reduce_scatter in segments of {length}");
                }
            });
        }
    });
}
