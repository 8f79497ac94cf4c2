/* embedding: y[i] = table[ids[i]] over rows of C; table (V, C) T, ids (n) uint, y (n, C) T.
 *
 * embedding_fwd        item (x, y) copies vectors x, x + X, … of the rows of y (FOR_ROWS). An id outside the table gives NaN.
 * embedding_add_rows   table[ids[i]] += rows[i], rows (n, C) T, for ids that differ from each other, with the same grid.
 * For CPUs, the gradient dtable (V, C) T: the sums of dy (n, C) T by id, in float and in the order of the positions.
 * embedding_sort       order (n) uint: the positions sorted by id, those of one id in order; starts (V + 1) uint: the first index in order of
 *                      each id. Ids outside the table are left out. One item does this, since there are only n + V numbers.
 * embedding_bwd_owned  item p owns a run of table rows, such that all items have about the same number of rows and positions together.
 *                      It writes each row once, zeros if no position has it.
 *
 * Design: a stable counting sort of the positions by id, so that one owner sums each row in a fixed order.
 * Ceiling: each row read and written once. H200, GPT-2, bf16: 1.9 of 4.8 TB/s.
 */
#define LINES 16 /* lines of the next row that are prefetched; the hardware prefetches the rest */
/* STREAMING: y is larger than the caches and its rows start at multiples of a vector, so stores bypass the caches (streaming). */
#if defined(STREAMING) && STREAMING && DTYPE == 0 && defined(__clang__)
#define PUTV(p, i, v) __builtin_nontemporal_store((v), (__global FV *)((p) + (i)))
#else
#define PUTV STV
#endif

__kernel void embedding_fwd(__global const T *restrict table, __global const uint *restrict ids, __global T *restrict y,
                            ulong v, ulong c, ulong n) {
  FOR_ROWS(row, n, 1) {
    const uint id = ids[row], next = ids[min(row + 1, n - 1)];
    __global const T *from = table + (ulong)id * c;
    __global T *to = y + row * c;
    if (next < v) {
      for (ulong k = 0; k < min(c, (ulong)(LINES * 64 / sizeof(T))); k += 64 / sizeof(T)) AHEAD(table + (ulong)next * c + k);
    }
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= c; i += step) PUTV(to, i, id < v ? LDV(from, i) : (FV)(NAN));
    for (ulong k = i; k < c && k < i + VW; k++) ST(to, k, id < v ? LD(from, k) : NAN);
  }
}

__kernel void embedding_add_rows(__global T *restrict table, __global const uint *restrict ids, __global const T *restrict rows,
                                 ulong v, ulong c, ulong n) {
  FOR_ROWS(row, n, 1) {
    const uint id = ids[row];
    if (id < v) {
      __global T *to = table + (ulong)id * c;
      __global const T *from = rows + row * c;
      ulong i = get_global_id(0) * VW;
      const ulong step = get_global_size(0) * VW;
      for (; i + VW <= c; i += step) STV(to, i, LDV(to, i) + LDV(from, i));
      for (ulong k = i; k < c && k < i + VW; k++) ST(to, k, LD(to, k) + LD(from, k));
    }
  }
}

__kernel void embedding_sort(__global const uint *restrict ids, __global uint *restrict order, __global uint *restrict starts,
                             ulong v, ulong n) {
  for (ulong t = 0; t <= v; t++) starts[t] = 0;
  for (ulong i = 0; i < n; i++)
    if (ids[i] < v) starts[ids[i]]++;
  uint sum = 0;
  for (ulong t = 0; t <= v; t++) {
    sum += starts[t];
    starts[t] = sum;
  }
  /* Each start is initially the end of its row's positions; placing them from the last one on moves it to the first. */
  for (ulong i = n; i > 0; i--)
    if (ids[i - 1] < v) order[--starts[ids[i - 1]]] = (uint)(i - 1);
}

/* Returns the first row that has `work` rows and positions before it. */
static inline ulong row_after(__global const uint *starts, ulong v, ulong work) {
  ulong low = 0, high = v;
  while (low < high) {
    const ulong t = (low + high) / 2;
    if (t + starts[t] < work) low = t + 1;
    else high = t;
  }
  return low;
}

#define COLUMNS 1024
__kernel void embedding_bwd_owned(__global const T *restrict dy, __global const uint *restrict order,
                                  __global const uint *restrict starts, __global T *restrict dtable, ulong v, ulong c) {
  float acc[COLUMNS];
  const ulong positions = starts[v], work = v + positions, owners = get_num_groups(0), owner = get_group_id(0);
  const ulong share = (work + owners - 1) / owners, first = row_after(starts, v, owner * share);
  const ulong last = owner + 1 == owners ? v : row_after(starts, v, (owner + 1) * share);
  for (ulong t = first; t < last; t++) {
    const ulong begin = starts[t], end = starts[t + 1];
    for (ulong column = 0; column < c; column += COLUMNS) {
      const ulong width = min(c - column, (ulong)COLUMNS), whole = width / VW * VW;
      __global T *to = dtable + t * c + column;
      for (ulong i = 0; i < (begin == end ? 0 : width); i++) acc[i] = 0.0f;
      for (ulong s = begin; s < end; s++) {
        __global const T *from = dy + order[s] * c + column;
        if (s + 1 < positions) {
          __global const T *next = dy + order[s + 1] * c;
          for (ulong k = 0; k < min(c, (ulong)(LINES * 64 / sizeof(T))); k += 64 / sizeof(T)) AHEAD(next + k);
        }
        ulong i = 0;
        for (; i < whole; i += VW) STV_F32(acc + i, LDV_F32(acc + i) + LDV(from, i));
        for (; i < width; i++) acc[i] += LD(from, i);
      }
      ulong i = 0;
      if (begin == end) {
        for (; i < whole; i += VW) PUTV(to, i, (FV)(0.0f));
        for (; i < width; i++) ST(to, i, 0.0f);
      } else {
        for (; i < whole; i += VW) PUTV(to, i, LDV_F32(acc + i));
        for (; i < width; i++) ST(to, i, acc[i]);
      }
    }
  }
}
