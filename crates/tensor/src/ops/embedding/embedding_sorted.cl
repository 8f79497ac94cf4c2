/* embedding, the gradient of the table on many cores: dtable[t] = sum of dy[i] over the positions i with ids[i] = t, in order. The positions are
 * first sorted by id, by counting. Integer atomics only count, so their order does not affect the result. Most rows have few positions or none.
 * The few rows with more than POPULAR positions get separate groups.
 *
 * ids (n) uint in B blocks of `per`; counts (B, V) uint, zero before; starts (V + 1) uint; order (n) uint; dy (n, C) T; dtable
 * (V, C) T. Ids outside the table are left out. For the groups g of WG rows: sums (G) uint2, positions and popular rows; found
 * (G, WG) uint, those rows. popular uint: the number of popular rows, then the rows in increasing order.
 * embedding_count    counts[b, t] = the number of positions in block b with id t. Item i has position i.
 * embedding_ranks    counts[b, t] becomes the number of positions in the blocks before b with id t; starts[t] the number of positions of
 *                    the rows before t in its group. Sets sums and found. Item t.
 * embedding_starts   adds the sums of the groups before: starts becomes the exclusive running sum; popular lists the rows that the groups
 *                    found, one group after the other. Item t, the same groups.
 * embedding_order    order[starts[t] + rank] = i, where rank is the number of earlier positions with the same id: counts[b, t] plus those of
 *                    this block before i. Item i has position i.
 * embedding_sum      a group of X by Y items has Y rows; item (x, y) sums vectors x, x + X, … of row y. Rows
 *                    without positions become 0. Popular rows are left out.
 * embedding_popular  group (k, chunk) has X vectors of popular row k, the first of them X * chunk. Each of its Y items sums every Y-th
 *                    position, and their sums are added in a fixed tree.
 * Sums are float. VW is the tuned value, or 16 bytes if rows are a multiple of such vectors (ALIGNED_VECTORS).
 *
 * Design: a stable counting sort with prefix sums (Blelloch 1990), then sums of segments; PyTorch's deterministic gradient sorts as well.
 * Ceiling: reads dy and writes the table once. H200, 8192 positions, 50304 x 768 in bf16: embedding_sum 2.8 of 4.8 TB/s, including the sorting 2.5
 * (66 us).
 */

__kernel void embedding_count(__global const uint *restrict ids, __global uint *counts, ulong v, ulong n, ulong per) {
  const ulong i = get_global_id(0);
  if (i < n && ids[i] < v) atomic_inc(counts + i / per * v + ids[i]);
}

/* Returns the sum of v over the items before; total gets the sum over all items. */
static inline uint2 running_sum(__local uint2 *s, uint2 v, uint2 *total) {
  const uint l = get_local_id(0);
  s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint h = 1; h < WG; h <<= 1) {
    const uint2 more = l >= h ? s[l - h] : (uint2)(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    s[l] += more;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = s[WG - 1];
  return s[l] - v;
}

__kernel void embedding_ranks(__global uint *restrict counts, __global uint *restrict starts, __global uint2 *restrict sums,
                              __global uint *restrict found, ulong v, ulong blocks) {
  __local uint2 scratch[WG];
  const ulong t = get_global_id(0), g = get_group_id(0);
  uint count = 0;
  uint2 total;
  for (ulong b = 0; t < v && b < blocks; b++) {
    const uint here = counts[b * v + t];
    counts[b * v + t] = count;
    count += here;
  }
  const uint2 before = running_sum(scratch, (uint2)(count, count > POPULAR), &total);
  if (t < v) starts[t] = before.x;
  if (t + 1 == v) starts[v] = before.x + count;
  if (count > POPULAR) found[g * WG + before.y] = (uint)t;
  if (get_local_id(0) == 0) sums[g] = total;
}

__kernel void embedding_starts(__global uint *restrict starts, __global const uint2 *restrict sums,
                               __global const uint *restrict found, __global uint *restrict popular, ulong v) {
  __local uint2 scratch[WG];
  const ulong t = get_global_id(0), g = get_group_id(0);
  const uint l = get_local_id(0), here = sums[g].y;
  uint2 share = (uint2)(0), before;
  for (ulong i = l; i < g; i += WG) share += sums[i];
  running_sum(scratch, share, &before);
  if (t < v) starts[t] += before.x;
  if (t + 1 == v) starts[v] += before.x, popular[0] = before.y + here;
  if (l < here) popular[1 + before.y + l] = found[g * WG + l];
}

__kernel void embedding_order(__global const uint *restrict ids, __global const uint *restrict counts,
                              __global const uint *restrict starts, __global uint *restrict order, ulong v, ulong n,
                              ulong per) {
  const ulong i = get_global_id(0);
  if (i >= n) return;
  const uint id = ids[i];
  if (id >= v) return;
  uint rank = counts[i / per * v + id];
  for (ulong j = i / per * per; j < i; j++) rank += ids[j] == id;
  order[starts[id] + rank] = (uint)i;
}

/* Returns the sum of VW columns of dy over positions first, first + step, … before end, in this order. */
static inline FV sum_of(__global const T *restrict dy, __global const uint *restrict order, uint first, uint end, uint step,
                        ulong c, ulong column, ulong lanes) {
  FV acc = (FV)(0.0f);
  uint s = first;
  if (lanes == VW) {
    /* Four rows are loaded at a time, because each costs two accesses, one after the other. */
    for (; s + 3 * step < end; s += 4 * step) {
      const ulong i = order[s], j = order[s + step], k = order[s + 2 * step], m = order[s + 3 * step];
      const FV a = LDV(dy, i * c + column), b = LDV(dy, j * c + column), d = LDV(dy, k * c + column),
               e = LDV(dy, m * c + column);
      acc = (((acc + a) + b) + d) + e;
    }
    for (; s < end; s += step) acc += LDV(dy, order[s] * c + column);
  } else if (lanes > 0) {
    for (; s < end; s += step) acc += load_part(dy + order[s] * c + column, lanes);
  }
  return acc;
}

static inline void put(__global T *p, FV v, ulong lanes) {
  if (lanes == VW) STV(p, 0, v);
  else store_part(p, v, lanes);
}

__kernel void embedding_sum(__global const T *restrict dy, __global const uint *restrict order,
                            __global const uint *restrict starts, __global T *restrict dtable, ulong v, ulong c) {
  const ulong row = get_group_id(0) * get_local_size(1) + get_local_id(1);
  if (row >= v) return;
  const uint begin = starts[row], end = starts[row + 1];
  if (end - begin > POPULAR) return;
  for (ulong column = get_local_id(0) * VW; column < c; column += get_local_size(0) * VW) {
    const ulong lanes = min(c - column, (ulong)VW);
    put(dtable + row * c + column, sum_of(dy, order, begin, end, 1, c, column, lanes), lanes);
  }
}

__kernel void embedding_popular(__global const T *restrict dy, __global const uint *restrict order,
                                __global const uint *restrict starts, __global const uint *restrict popular,
                                __global T *restrict dtable, ulong c) {
  COLUMN_SCRATCH(scratch);
  const uint y = get_local_id(1);
  if (get_group_id(0) >= popular[0]) return;
  const ulong row = popular[1 + get_group_id(0)], column = (get_group_id(1) * get_local_size(0) + get_local_id(0)) * VW;
  const ulong lanes = column < c ? min(c - column, (ulong)VW) : 0;
  const FV mine = sum_of(dy, order, starts[row] + y, starts[row + 1], get_local_size(1), c, column, lanes);
  const FV sum = COLUMN_SUM(scratch, mine);
  if (y == 0) put(dtable + row * c + column, sum, lanes);
}
