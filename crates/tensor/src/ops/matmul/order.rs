//! Test of the order of work in the tensor-core product, without the products. That part of the source is plain OpenCL C, so it runs on any device.

use super::super::prelude::*;
use super::algorithms::wgmma::SCHEDULE;
use crate::suite::test_device;

/// Kernel that counts the visits of blocks, of the blocks whose columns a group would sum, and of the slots for such sums. It also records the part
/// of each tile that each item of work computes.
static WALK: Kernel = Kernel::new(
    "matmul_order",
    "__kernel void walk(__global int *seen, __global int *parts, __global int *summed, __global int *slots, const int rows,
                   const int cols, const int blocks, const int splits) {
  const int group = get_group_id(0), groups = get_num_groups(0);
  const Tiles t = tiles_of(rows, cols, blocks, splits);
  for (int w = group; w < t.works; w += groups) {
    const Work work = work_of(w, &t);
    __global int *part = parts + (work.tile * splits + work.split) * 3;
    part[0] = work.first, part[1] = work.count, part[2] = group;
    for (int i = 0, kb = work.begin; i < work.count; i++, kb = next_block(kb, &work)) {
      atomic_inc(seen + (work.bm * cols + work.bn) * blocks + kb);
      if (kb % rows == work.bm) atomic_inc(summed + work.bn * blocks + kb);
    }
    for (int s = work.split; s < (STREAM_K && is_whole(&work, &t) ? splits : work.split + 1); s++)
      atomic_inc(slots + (s * rows + work.bm) * cols + work.bn);
  }
}
",
)
.include(&[SCHEDULE]);

/// Checks the order of work. Every block of every tile is summed once, and so are the columns of every block of B. Every slot for column sums is
/// written once. The parts of a tile are contiguous. With equal runs, parts belong to consecutive groups, so that groups cannot deadlock.
#[test]
fn each_block_is_summed_once_and_parts_follow_one_another() {
    let device = test_device().unwrap();
    let zeros = |count: usize, value: f32| Tensor::full(&device, [count], value, DType::I32).unwrap();
    let cases: [[usize; 4]; 7] = [
        [6, 12, 256, 132],
        [24, 4, 256, 132],
        [18, 3, 1024, 132],
        [1, 1, 300, 132],
        [3, 5, 18, 132],
        [2, 2, 33, 132],
        [17, 1, 19, 24],
    ];
    for [rows, cols, blocks, groups] in cases {
        let tiles = rows * cols;
        for (stream_k, splits) in [(true, groups.div_ceil(tiles) + 1), (false, 7)] {
            let (seen, parts) = (zeros(tiles * blocks, 0.0), zeros(tiles * splits * 3, -1.0));
            let (summed, slots) = (zeros(cols * blocks, 0.0), zeros(splits * tiles, 0.0));
            let launch =
                WALK.launch("walk").define("STREAM_K", stream_k).define("SPLIT", 1).define("GROUP_M", 16);
            let launch = launch.write(&seen).write(&parts).write(&summed).write(&slots);
            let launch = [rows, cols, blocks, splits].into_iter().fold(launch, |l, v| l.scalar(v as i32));
            launch.local([1, 1, 1]).groups(groups).run().unwrap();
            let case =
                format!("{rows} x {cols} tiles of {blocks} blocks on {groups} groups, stream_k {stream_k}");
            for counts in [&seen, &summed, &slots] {
                assert!(counts.to_vec().unwrap().iter().all(|count| *count == 1.0), "{case}");
            }
            let parts: Vec<i64> = parts.to_vec().unwrap().iter().map(|v| *v as i64).collect();
            for (tile, of_tile) in parts.chunks(3 * splits).enumerate() {
                let (mut next, mut before) = (0, None);
                for part in of_tile.chunks(3).take_while(|part| part[0] >= 0) {
                    assert_eq!(part[0], next, "{case}, tile {tile}");
                    assert!(
                        !stream_k || before.is_none_or(|group: i64| part[2] == group + 1),
                        "{case}, tile {tile}"
                    );
                    (next, before) = (part[0] + part[1], Some(part[2]));
                }
                assert_eq!(next, blocks as i64, "{case}, tile {tile}");
            }
        }
    }
}
