/* embedding, the gradient of the table on many cores: dtable[t] = sum of dy[i] over the positions i with ids[i] = t, in their
 * order. The positions are sorted by id first, by counting; integer atomics only count, so they leave no trace of their order.
 *
 * ids (n) uint in B blocks of `per`; counts (B, V) uint, zero before; starts (V + 1) uint; sums (ceil(V / WG)) uint; order (n)
 * uint; dy (n, C) T; dtable (V, C) T. Ids outside the table are left out.
 * embedding_count   counts[b, t] = how often t stands in block b. Item i has position i.
 * embedding_ranks   counts[b, t] becomes how often t stands in the blocks before b; starts[t] how often the rows before it in its
 *                   group's WG stand in all, sums[g] how often the whole group's. Item t.
 * embedding_starts  adds the sums of the groups before: starts becomes the running sum, exclusive. Item t, the same groups.
 * embedding_order   order[starts[t] + rank] = i, where rank counts the same id at earlier positions: counts[b, t] and those of
 *                   this block before i. Item i has position i.
 * embedding_sum     a group of X by Y items owns Y rows; item (x, y) vectors x, x + X, … of row y alone if it has few positions,
 *                   as most have; for the others the Y items take every Y-th position each, and their sums join in a fixed tree.
 *                   Sums are float. Rows without positions become 0.
 * VW is the tuned one, or 16 bytes where rows are whole vectors of those (EVEN_VECTORS).
 *
 * Ceiling: reads dy and writes the table once.
 */
#define ALONE 16 /* positions that one item sums up */

__kernel void embedding_count(__global const uint *restrict ids, __global uint *counts, ulong v, ulong n, ulong per) {
  const ulong i = get_global_id(0);
  if (i < n && ids[i] < v) atomic_inc(counts + i / per * v + ids[i]);
}

/* The sum of v over the items before; total gets that over all. */
static inline uint running_sum(__local uint *s, uint v, uint *total) {
  const uint l = get_local_id(0);
  s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint h = 1; h < WG; h <<= 1) {
    const uint more = l >= h ? s[l - h] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    s[l] += more;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = s[WG - 1];
  return s[l] - v;
}

__kernel void embedding_ranks(__global uint *restrict counts, __global uint *restrict starts, __global uint *restrict sums,
                              ulong v, ulong blocks) {
  __local uint scratch[WG];
  const ulong t = get_global_id(0);
  uint count = 0, total;
  for (ulong b = 0; t < v && b < blocks; b++) {
    const uint here = counts[b * v + t];
    counts[b * v + t] = count;
    count += here;
  }
  const uint before = running_sum(scratch, count, &total);
  if (t < v) starts[t] = before;
  if (t + 1 == v) starts[v] = before + count;
  if (get_local_id(0) == 0) sums[get_group_id(0)] = total;
}

__kernel void embedding_starts(__global uint *restrict starts, __global const uint *restrict sums, ulong v) {
  __local uint scratch[WG];
  const ulong t = get_global_id(0);
  uint share = 0, before;
  for (ulong g = get_local_id(0); g < get_group_id(0); g += WG) share += sums[g];
  running_sum(scratch, share, &before);
  if (t < v) starts[t] += before;
  if (t + 1 == v) starts[v] += before;
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
  const ulong first = get_group_id(0) * items, end = min(v, first + items), mine = first + y;
  const uint from = mine < v ? starts[mine] : 0, to = mine < v ? starts[mine + 1] : 0;
  const bool alone = mine < v && to - from <= ALONE, others = starts[end] - starts[first] > ALONE;
  for (ulong begin = 0; begin < c; begin += get_local_size(0) * VW) {
    const ulong column = begin + get_local_id(0) * VW, lanes = column < c ? min(c - column, (ulong)VW) : 0;
    if (alone) {
      const FV acc = sum_of(dy, order, from, to, 1, c, column, lanes);
      if (lanes == VW) STV(dtable, mine * c + column, acc);
      else store_part(dtable + mine * c + column, acc, lanes);
    }
    for (ulong row = first; others && row < end; row++) {
      const uint low = starts[row], high = starts[row + 1];
      if (high - low > ALONE) {
        const FV acc = COLUMN_SUM(scratch, sum_of(dy, order, low + y, high, items, c, column, lanes));
        if (y == 0 && lanes == VW) STV(dtable, row * c + column, acc);
        else if (y == 0) store_part(dtable + row * c + column, acc, lanes);
      }
    }
  }
}
