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
 * embedding_sum     group (t, x) owns row t, VW columns an item of dimension 0; items y, y + Y, … of its positions go to item
 *                   y of dimension 1, and the Y sums, float, join in a fixed tree. Rows without positions become 0.
 */
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

__kernel void embedding_sum(__global const T *restrict dy, __global const uint *restrict order,
                            __global const uint *restrict starts, __global T *restrict dtable, ulong c) {
  COLUMN_SCRATCH(scratch);
  const ulong row = get_group_id(0), column = (get_group_id(1) * get_local_size(0) + get_local_id(0)) * VW;
  const uint begin = starts[row], end = starts[row + 1];
  const ulong lanes = column < c ? min(c - column, (ulong)VW) : 0;
  FV acc = (FV)(0.0f);
  if (lanes == VW) {
    for (uint s = begin + get_local_id(1); s < end; s += get_local_size(1)) acc += LDV(dy, order[s] * c + column);
  } else if (lanes > 0) {
    for (uint s = begin + get_local_id(1); s < end; s += get_local_size(1)) acc += load_part(dy + order[s] * c + column, lanes);
  }
  if (end - begin > 1) acc = COLUMN_SUM(scratch, acc);
  if (get_local_id(1) > 0) return;
  if (lanes == VW) STV(dtable, row * c + column, acc);
  else store_part(dtable + row * c + column, acc, lanes);
}
