/* embedding: y[i] = table[ids[i]] over rows of C; table (V, C) T, ids (n) uint, y (n, C) T.
 *
 * embedding_fwd          item (x, y) copies vectors x, x + X, … of rows y, y + Y, … An id outside the table gives NaN.
 * embedding_bwd_columns  dtable (V, C) float, zero before, gets sum of dy (n, C) T by id. Item p owns piece p of the columns
 *                        and walks the ids in order, so every sum has the order of the positions. For CPUs: few items, and a
 *                        row's piece is whole cache lines.
 */
__kernel void embedding_fwd(__global const T *restrict table, __global const uint *restrict ids, __global T *restrict y,
                            ulong v, ulong c, ulong n) {
  for (ulong row = get_global_id(1); row < n; row += get_global_size(1)) {
    const uint id = ids[row];
    __global const T *from = table + (ulong)id * c;
    __global T *to = y + row * c;
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= c; i += step) STV(to, i, id < v ? LDV(from, i) : (FV)(NAN));
    for (ulong k = i; k < c && k < i + VW; k++) ST(to, k, id < v ? LD(from, k) : NAN);
  }
}

__kernel void embedding_bwd_columns(__global const T *restrict dy, __global const uint *restrict ids,
                                    __global float *restrict dtable, ulong v, ulong c, ulong n) {
  /* Pieces are whole cache lines of 16 floats. */
  const ulong pieces = get_num_groups(0), per = ((c + 15) / 16 + pieces - 1) / pieces * 16;
  const ulong begin = min(c, get_group_id(0) * per), end = min(c, begin + per);
  for (ulong row = 0; row < n; row++) {
    const ulong id = ids[row];
    if (id >= v) continue;
    __global const T *from = dy + row * c;
    __global float *to = dtable + id * c;
    ulong i = begin;
    for (; i + VW <= end; i += VW) STV_F32(to + i, LDV_F32(to + i) + LDV(from, i));
    for (; i < end; i++) to[i] += LD(from, i);
  }
}
