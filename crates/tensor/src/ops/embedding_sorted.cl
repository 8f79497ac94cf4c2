/* embedding, the gradient of the table on many cores: dtable[t] = sum of dy[i] over the positions i with ids[i] = t, in their
 * order. The positions are sorted by id first, by counting; integer atomics only count, so they leave no trace of their order.
 *
 * ids (n) uint in B blocks of `per`; counts (B, V) uint, zero before; starts (V + 1) uint; order (n) uint; dy (n, C) T;
 * dtable (V, C) T. Ids outside the table are left out.
 * embedding_count   counts[b, t] = how often t stands in block b. Item i has position i.
 * embedding_ranks   counts[b, t] becomes how often t stands in the blocks before b; starts[t] how often in all. Item t.
 * embedding_starts  starts becomes its own running sum, exclusive. One work-group; item l has a WG-th of the table.
 * embedding_order   order[starts[t] + rank] = i, where rank counts the same id at earlier positions: counts[b, t] and those of
 *                   this block before i. Item i has position i.
 * embedding_sum     group (g, x) of X by Y items owns rows g Y … g Y + Y - 1, VW columns an item of dimension 0. Row g Y + y is
 *                   item y's alone if it has few positions, as most have; for the others the Y items take every Y-th position
 *                   each, and their sums join in a fixed tree. Sums are float. Rows without positions become 0.
 *
 * Ceiling: reads dy and writes the table once. H200, GPT-2, bf16: 1.2 of 4.8 TB/s.
 */#define ALONE 16 /* positions that one item sums up */

__kernel void embedding_count(__global const uint *restrict ids, __global uint *counts, ulong v, ulong n, ulong per) {
  const ulong i = get_global_id(0);
  if (i < n && ids[i] < v) atomic_inc(counts + i / per * v + ids[i]);
}

__kernel void embedding_ranks(__global uint *restrict counts, __global uint *restrict starts, ulong v, ulong blocks) {
  const ulong t = get_global_id(0);
  if (t >= v) return;
  uint before = 0;
  for (ulong b = 0; b < blocks; b++) {
    const uint here = counts[b * v + t];
    counts[b * v + t] = before;
    before += here;
  }
  starts[t] = before;
}

__kernel void embedding_starts(__global uint *restrict starts, ulong v) {
  __local uint sums[WG];
  const uint l = get_local_id(0);
  const ulong per = (v + WG - 1) / WG, begin = min(v, l * per), end = min(v, begin + per);
  uint sum = 0;
  for (ulong t = begin; t < end; t++) sum += starts[t];
  sums[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint before = 0;
  for (uint k = 0; k < l; k++) before += sums[k];
  for (ulong t = begin; t < end; t++) {
    const uint here = starts[t];
    starts[t] = before;
    before += here;
  }
  if (l == WG - 1) starts[v] = before;
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

/* Sum of VW columns of dy over positions first, first + step, … before end, in this order. */
static inline FV sum_of(__global const T *restrict dy, __global const uint *restrict order, uint first, uint end, uint step,
                        ulong c, ulong column, ulong lanes) {
  FV acc = (FV)(0.0f);
  uint s = first;
  if (lanes == VW) {
    /* Four rows on their way: each costs two accesses, one after the other. */
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

__kernel void embedding_sum(__global const T *restrict dy, __global const uint *restrict order,
                            __global const uint *restrict starts, __global T *restrict dtable, ulong v, ulong c) {
  COLUMN_SCRATCH(scratch);
  const uint y = get_local_id(1), items = get_local_size(1);
  const ulong column = (get_group_id(1) * get_local_size(0) + get_local_id(0)) * VW;
  const ulong lanes = column < c ? min(c - column, (ulong)VW) : 0;
  const ulong first = get_group_id(0) * items, mine = first + y;
  const uint from = mine < v ? starts[mine] : 0, to = mine < v ? starts[mine + 1] : 0;
  if (mine < v && to - from <= ALONE) {
    const FV acc = sum_of(dy, order, from, to, 1, c, column, lanes);
    if (lanes == VW) STV(dtable, mine * c + column, acc);
    else store_part(dtable + mine * c + column, acc, lanes);
  }
  for (ulong row = first; row < min(v, first + items); row++) {
    const uint begin = starts[row], end = starts[row + 1];
    if (end - begin > ALONE) {
      const FV acc = COLUMN_SUM(scratch, sum_of(dy, order, begin + y, end, items, c, column, lanes));
      if (y == 0 && lanes == VW) STV(dtable, row * c + column, acc);
      else if (y == 0) store_part(dtable + row * c + column, acc, lanes);
    }
  }
}
