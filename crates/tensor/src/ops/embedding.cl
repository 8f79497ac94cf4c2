/* embedding: y[i] = table[ids[i]] over rows of C; table (V, C) T, ids (n) uint, y (n, C) T.
 *
 * embedding_fwd        item (x, y) copies vectors x, x + X, … of the rows of y (FOR_ROWS). An id outside the table gives NaN.
 * embedding_bwd_owned  dtable (V, C) float, zero before, gets the sums of dy (n, C) T by id. Item p owns table rows p, p + P, …
 *                      and walks the ids in order, so every sum has the order of the positions. For CPUs: few items, each
 *                      reading whole rows.
 */
#define LINES 16 /* of the next row that are asked for: the hardware follows those by itself */
/* PAST: y is larger than the caches and its rows start at whole vectors, so stores go past the caches. */
#if defined(PAST) && PAST && DTYPE == 0 && defined(__clang__)
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

__kernel void embedding_bwd_owned(__global const T *restrict dy, __global const uint *restrict ids,
                                  __global float *restrict dtable, ulong v, ulong c, ulong n) {
  const uint owners = get_num_groups(0), owner = get_group_id(0);
  for (ulong row = 0; row < n; row++) {
    const uint id = ids[row];
    if (id >= v || id % owners != owner) continue;
    __global const T *from = dy + row * c;
    __global float *to = dtable + id * c;
    ulong i = 0;
    for (; i + VW <= c; i += VW) STV_F32(to + i, LDV_F32(to + i) + LDV(from, i));
    for (; i < c; i++) to[i] += LD(from, i);
  }
}
