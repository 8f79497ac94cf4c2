/* A sparse mixture of experts, without its products: the assignment of rows to experts, the combination of their results, gradients of the
 * weights.
 *
 * A pair is a token and one of its K slots, number token * K + slot. Its bin is the expert in ids, or E, the bin without an expert, if the id is
 * not valid. Rows are the pairs sorted by bin, those of a bin in the order of their numbers (a stable counting sort).
 *
 * dispatch_count    ids (P) → counts (blocks, E + 1) uint. Block b is a group and has pairs b*per … b*per+per-1.
 * dispatch_offsets  counts: replaces the pairs of a bin in each block by those before the block; offsets (E + 1): the first row of each bin, the
 *                   last one for rows without an expert; tiles (n_tiles, 2): the bin and the first row of each tile of at most TILE rows of one
 *                   bin, ~0 for unused entries. One group.
 * dispatch_place    → order (P): the pair of each row; tokens (P): its token; places (P): the row of each pair. One group per block.
 * dispatch_all      all three, for one block and one group.
 * combine           rows (P, N) T, weights (P) T with WEIGHTED 1, places → y (P / K, N) T: sums of a token's rows, times their weights, in
 *                   the order of its slots; with PLACED 0 row p is that of pair p, and places are not read
 * weight_rows       t (P, N), h (P, N), order, weights → dweights (P) T: sums of t * h of each row; then t and h are multiplied by the row's weight.
 *                   One group per row.
 *
 * Counts are atomic additions of integers, whose order does not matter. Sums are float. GPUs: WG items per group, in combine (X, Y) items, X
 * along N. CPUs: one item.
 *
 * Design: rows sorted by expert, and tiles that each belong to one expert, like MegaBlocks (Gale et al. 2022, arXiv:2211.15841).
 * Ceiling: copies of the same bytes. The products take a thousand times as long.
 */
#ifndef E
#define E 8
#endif
#ifndef K
#define K 2
#endif
#ifndef TILE
#define TILE 64
#endif
#ifndef WEIGHTED
#define WEIGHTED 0
#endif
#ifndef PLACED
#define PLACED 1
#endif
#define BINS (E + 1)

static inline uint bin_of(uint id) { return min(id, (uint)E); }

/* Counts the pairs from `from` to `to` in each bin. */
static inline void count_block(__local uint *bins, __global const uint *ids, ulong from, ulong to) {
  for (uint b = get_local_id(0); b < BINS; b += WG) bins[b] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (ulong p = from + get_local_id(0); p < to; p += WG) atomic_inc(bins + bin_of(ids[p]));
  barrier(CLK_LOCAL_MEM_FENCE);
}

/* Computes offsets and tiles from the sizes of the bins. Each bin's item adds the sizes before it by reads that need not wait for each other. */
static inline void lay_out(__local const uint *sizes, __global uint *offsets, __global uint *tiles, uint n_tiles) {
  uint used = 0;
  for (uint b = 0; b < BINS; b++) used += (sizes[b] + TILE - 1) / TILE;
  for (uint b = get_local_id(0); b < BINS; b += WG) {
    uint first = 0, tile = 0;
    for (uint i = 0; i < b; i++) first += sizes[i], tile += (sizes[i] + TILE - 1) / TILE;
    offsets[b] = first;
    for (uint row = 0; row < sizes[b]; row += TILE, tile++) tiles[2 * tile] = b, tiles[2 * tile + 1] = first + row;
  }
  for (uint i = used + get_local_id(0); i < n_tiles; i += WG) tiles[2 * i] = tiles[2 * i + 1] = ~0u;
}

/* Places the pairs from `from` to `to` in rows; next: the next row of each bin. */
static inline void place_block(__local uint *next, __local uint *chunk, __global const uint *ids, __global uint *order,
                               __global uint *tokens, __global uint *places, ulong from, ulong to) {
  const uint l = get_local_id(0);
  for (ulong first = from; first < to; first += WG) {
    const ulong p = first + l;
    const uint bin = p < to ? bin_of(ids[p]) : BINS;
    chunk[l] = bin;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p < to) {
      uint row = next[bin];
      for (uint i = 0; i < l; i++) row += chunk[i] == bin;
      order[row] = p;
      tokens[row] = p / K;
      places[p] = row;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p < to) atomic_inc(next + bin);
  }
}

__kernel void dispatch_count(__global const uint *restrict ids, __global uint *restrict counts, ulong pairs, ulong per) {
  __local uint bins[BINS];
  const ulong from = get_group_id(0) * per;
  count_block(bins, ids, from, min(pairs, from + per));
  for (uint b = get_local_id(0); b < BINS; b += WG) counts[get_group_id(0) * BINS + b] = bins[b];
}

__kernel void dispatch_offsets(__global uint *restrict counts, __global uint *restrict offsets, __global uint *restrict tiles, ulong blocks,
                               ulong n_tiles) {
  __local uint sizes[BINS];
  for (uint b = get_local_id(0); b < BINS; b += WG) {
    uint before = 0;
    for (ulong i = 0; i < blocks; i++) {
      const uint here = counts[i * BINS + b];
      counts[i * BINS + b] = before;
      before += here;
    }
    sizes[b] = before;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  lay_out(sizes, offsets, tiles, n_tiles);
}

__kernel void dispatch_place(__global const uint *restrict ids, __global const uint *restrict counts, __global const uint *restrict offsets,
                             __global uint *restrict order, __global uint *restrict tokens, __global uint *restrict places, ulong pairs,
                             ulong per) {
  __local uint next[BINS], chunk[WG];
  const ulong from = get_group_id(0) * per;
  for (uint b = get_local_id(0); b < BINS; b += WG) next[b] = offsets[b] + counts[get_group_id(0) * BINS + b];
  place_block(next, chunk, ids, order, tokens, places, from, min(pairs, from + per));
}

__kernel void dispatch_all(__global const uint *restrict ids, __global uint *restrict offsets, __global uint *restrict tiles,
                           __global uint *restrict order, __global uint *restrict tokens, __global uint *restrict places, ulong pairs,
                           ulong n_tiles) {
  __local uint bins[BINS], next[BINS], chunk[WG];
  count_block(bins, ids, 0, pairs);
  lay_out(bins, offsets, tiles, n_tiles);
  for (uint b = get_local_id(0); b < BINS; b += WG) {
    uint first = 0;
    for (uint i = 0; i < b; i++) first += bins[i];
    next[b] = first;
  }
  place_block(next, chunk, ids, order, tokens, places, 0, pairs);
}

__kernel void combine(__global const T *restrict rows, __global const T *restrict weights, __global const uint *restrict places,
                      __global T *restrict y, ulong count, ulong n) {
  FOR_ROWS(token, count, 1) {
    for (ulong i = get_global_id(0) * VW; i < n; i += get_global_size(0) * VW) {
      const ulong lanes = min((ulong)VW, n - i);
      FV sum = (FV)(0.0f);
      for (uint k = 0; k < K; k++) {
        __global const T *from = rows + (PLACED ? places[token * K + k] : token * K + k) * n + i;
        const FV v = lanes == VW ? LDV(from, 0) : load_part(from, lanes);
        sum = WEIGHTED ? fma((FV)(LD(weights, token * K + k)), v, sum) : sum + v;
      }
      if (lanes == VW) STV(y, token * n + i, sum);
      else store_part(y + token * n + i, sum, lanes);
    }
  }
}

__kernel void weight_rows(__global T *restrict t, __global T *restrict h, __global const uint *restrict order,
                          __global const T *restrict weights, __global T *restrict dweights, ulong n) {
  GROUP_SCRATCH(scratch);
  const uint pair = order[get_group_id(0)];
  const float w = LD(weights, pair);
  t += get_group_id(0) * n;
  h += get_group_id(0) * n;
  FV acc = (FV)(0.0f);
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) {
    const FV a = LDV(t, i), b = LDV(h, i);
    acc = fma(a, b, acc);
    STV(t, i, a * w);
    STV(h, i, b * w);
  }
  float sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) {
    const float a = LD(t, k), b = LD(h, k);
    sum = fma(a, b, sum);
    ST(t, k, a * w);
    ST(h, k, b * w);
  }
  sum = GROUP_SUM(scratch, sum);
  if (get_local_id(0) == 0) ST(dweights, pair, sum);
}
