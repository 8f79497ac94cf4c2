/* Sums of matmul_wgmma_sm90.cl that more than one item of work contributes to. That file has the arguments, the launch and the defines.
 *
 * add_in_turn   serial split-K (SPLIT 1): adds the sums of the previous items of the tile, in the order of k
 * store_sums    split-K with a workspace, and accumulation (SPLIT 2 and 3): stores or adds f32 sums in a plane of `part`
 *
 * sum_columns   COLUMN_SUMS: sums the columns of B
 *
 * All 128 items of a consumer warpgroup call the first two; three warps of the producer warpgroup call sum_columns.
 */
#if SPLIT == 1
/* Serial split-K: adds the sums that the previous items of the tile left in `part`. Returns whether the tile's sums are complete; otherwise they
 * are left for the next item. A warpgroup's slot has its items' sums in the order of their registers:
 *
 *   ticket     0 -> blocks summed by the first -> ... -> 0 by the last: an item's turn comes when the ticket is its own first block
 */
INLINE int add_in_turn(float (*acc)[BN / 2], const Product *p, const Tiles *t, const Work *work, int mine) {
  const int item = get_local_id(0), slot = PP ? work->tile : work->tile * 2 + mine; /* slot of one warpgroup's sums */
  __global float *sums = p->part + (size_t)slot * (MT * BN * 64) + (item & 127) * 4;
  __global int *ticket = p->tickets + slot;
  if (work->first > 0) {
    while ((item & 127) == 0 && turn_of(ticket) != work->first) {}
    bar_sync(TURN_TAKEN + mine, 128);
    UNROLL for (int i = 0; i < MT; i++)
      UNROLL for (int j = 0; j < BN / 8; j++) {
        const float4 before = part_load(sums + (i * (BN / 8) + j) * 512);
        acc[i][j * 4] += before.x, acc[i][j * 4 + 1] += before.y;
        acc[i][j * 4 + 2] += before.z, acc[i][j * 4 + 3] += before.w;
      }
  }
  if (!is_whole(work, t)) {
    UNROLL for (int i = 0; i < MT; i++)
      UNROLL for (int j = 0; j < BN / 8; j++)
        part_store(sums + (i * (BN / 8) + j) * 512, acc[i][j * 4], acc[i][j * 4 + 1], acc[i][j * 4 + 2], acc[i][j * 4 + 3]);
    bar_sync(TURN_TAKEN + mine, 128);
    if ((item & 127) == 0) {
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
      turn_set(ticket, work->first + work->count);
    }
    return 0;
  }
  bar_sync(TURN_TAKEN + mine, 128);
  if ((item & 127) == 0) turn_set(ticket, 0);
  return 1;
}
#endif

#if SPLIT >= 2
/* Stores or adds f32 sums in the item's plane of `part`: split-K with a workspace, and accumulation. tf32 products get their epilogue here. */
INLINE void store_sums(float (*acc)[BN / 2], const Product *p, const Work *work, int row_block) {
  const int quad = get_local_id(0) & 3;
  UNROLL for (int i = 0; i < MT; i++)
    UNROLL for (int j = 0; j < BN / 8; j++) {
      const int row = row_of(work, row_block, i), col = work->bn * BN + j * 8 + quad * 2;
      float *y = acc[i] + j * 4;
#if CONV
      const long above = line_of(&p->pixels, work, row), next = line_of(&p->pixels, work, row + 8);
      __global float *plane = p->part + (size_t)work->split * (p->pixels.taps * p->pixels.c) * p->n + col;
      store8(plane + above * p->n, above >= 0 && col < p->n, y[0], y[1]);
      store8(plane + next * p->n, next >= 0 && col < p->n, y[2], y[3]);
      continue;
#endif
      __global float *to = p->part + ((size_t)work->split * p->m + row) * p->n + col, *below = to + (size_t)8 * p->n;
#if DTYPE == 0
      UNROLL for (int e = 0; e < 4; e++) {
        y[e] *= p->alpha;
#if BIAS
        y[e] += as_float(load_word(p->bias + col + (e & 1), col < p->n));
#endif
      }
#endif
#if SPLIT == 3
      add8(to, row < p->m && col < p->n, y[0], y[1]);
      add8(below, row + 8 < p->m && col < p->n, y[2], y[3]);
#else
      store8(to, row < p->m && col < p->n, y[0], y[1]);
      store8(below, row + 8 < p->m && col < p->n, y[2], y[3]);
#endif
    }
}
#endif

#if DTYPE != 0 && !CONV
__attribute__((reqd_work_group_size(256, 1, 1)))
__kernel void matmul_wgmma_sum(__global const float *part, __global const T *bias, __global T *c, const ulong count,
                               const int n, const int splits, const float alpha) {
  const size_t i = get_global_id(0) * 4;
  if (i >= count) return;
  float4 y = (float4)(0.0f);
  for (int s = 0; s < splits; s++) y += *(__global const float4 *)(part + s * count + i);
  y *= alpha;
#if BIAS
  const size_t col = i % (size_t)n;
  y += (float4)(unpack(*(__global const uint *)(bias + col)), unpack(*(__global const uint *)(bias + col + 2)));
#endif
#if ADD_C
  y += (float4)(unpack(*(__global const uint *)(c + i)), unpack(*(__global const uint *)(c + i + 2)));
#endif
  *(__global uint2 *)(c + i) = (uint2)(pack(y.x, y.y), pack(y.z, y.w));
}
#endif

#if COLUMN_SUMS
/* Blocks of 64 columns that one of three warps adds. */
#define COLUMN_BLOCKS ((BN / 64 + 2) / 3)
/* Slices that the items of a group's column share. */
#define SLICES 8

/* Sums B's columns from the blocks in local memory, by the producer warpgroup's three other warps. Warp v of three has every third 64 columns of
 * B, an item two of them. The items of a row do not have bank conflicts. Each row of tiles adds its share of the blocks. */
INLINE void sum_columns(const Place *at, const Product *p, const Tiles *t) {
  const int item = get_local_id(0), lane = item & 31, v = (item >> 5) - 1;
  const int groups = get_num_groups(0);
  uint stage = 0, phase = 0;
  for (int w = get_group_id(0); w < t->works; w += groups) {
    const Work work = work_of(w, t);
    float2 sum[COLUMN_BLOCKS];
    UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) sum[i] = (float2)(0.0f);
    for (int left = work.count, kb = work.begin; left > 0; left--, kb = next_block(kb, &work)) {
      mbar_wait(at->full + stage * 8, phase);
      if (kb % t->rows == work.bm) {
        const uint first = opaque(at->ring + stage * STAGE_BYTES + A_BYTES + v * (BK * 128) + (lane & 3) * 4);
        UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) {
          if (v + 3 * i >= BN / 64) break;
          const uint block = first + 3 * i * (BK * 128);
          for (int r = 0; r < BK; r += 4)
            UNROLL for (int e = 0; e < 4; e++) sum[i] += unpack(local4(block + (r + e) * 128 + ((lane >> 2 ^ ((r & 4) + e)) << 4)));
        }
      }
      warp_sync();
      if (lane == 0) mbar_arrive(at->free + stage * 8);
      NEXT_STAGE(stage, phase, STAGES)
    }
    const int parts = STREAM_K && is_whole(&work, t) ? t->splits : work.split + 1;
    UNROLL for (int i = 0; i < COLUMN_BLOCKS; i++) {
      const int block = v + 3 * i, col = work.bn * BN + block * 64 + lane * 2;
      if (block >= BN / 64 || col >= p->n) continue;
      /* A tile's last part also writes zeros for the parts that the tile does not have. */
      for (int s = work.split; s < parts; s++, sum[i] = (float2)(0.0f))
        *(__global float2 *)(p->sums + ((size_t)s * t->rows + work.bm) * p->n + col) = sum[i];
    }
  }
}

__attribute__((reqd_work_group_size(32, SLICES, 1)))
__kernel void matmul_wgmma_columns(__global const float *sums, __global T *out, const int n, const int parts) {
  __local float shares[SLICES][32];
  const int col = get_global_id(0), lane = get_local_id(0), slice = get_local_id(1);
  float sum = 0.0f;
  if (col < n) {
#pragma unroll 8
    for (int s = slice; s < parts; s += SLICES) sum += sums[(size_t)s * n + col];
  }
  shares[slice][lane] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (slice > 0 || col >= n) return;
  for (int s = 1; s < SLICES; s++) sum += shares[s][lane];
  *(__global ushort *)(out + col) = (ushort)pack(sum, 0.0f);
}
#endif
