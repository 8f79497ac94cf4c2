/* Embeddings of new tokens: y[b, t] = scale * table[ids[b, t]] + positions[position[b * position_step] + t].
 *
 * table     (V, C) T; ids (B, T_LEN) uint, dense from ids_off on
 * positions (P, C) T, with PLACED; position uint from position_off on: the number of earlier tokens
 * y         (B, T_LEN, C) T
 * Items of dimension 0 process every get_global_size(0)-th vector of a row, those of dimension 1 rows. An id outside of the table and a position
 * outside of the positions give NaN.
 *
 * Ceiling: launch latency, since only three rows are moved.
 */
#ifndef PLACED
#define PLACED 0
#endif

__kernel void decode_embedding(__global const T *restrict table, __global const T *restrict positions, __global const uint *ids,
                               __global const uint *position, __global T *restrict y, uint ids_off, uint position_off, uint position_step,
                               ulong v, ulong p, ulong c, ulong rows, uint t_len, float scale) {
  FOR_ROWS(row, rows, 1) {
    const uint id = ids[ids_off + row], b = row / t_len;
    __global const T *from = table + (ulong)id * c;
    __global T *to = y + row * c;
    int known = id < v;
#if PLACED
    const ulong place = (ulong)position[position_off + b * position_step] + (row - b * (ulong)t_len);
    __global const T *at = positions + place * c;
    known = known && place < p;
#define SHIFTED(x, shift) fma((x), (FV)(scale), (shift))
#else
#define SHIFTED(x, shift) ((x) * scale)
#endif
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= c; i += step) STV(to, i, known ? SHIFTED(LDV(from, i), LDV(at, i)) : (FV)(NAN));
    for (; i < c; i += step) store_part(to + i, known ? SHIFTED(load_part(from + i, c - i), load_part(at + i, c - i)) : (FV)(NAN), c - i);
  }
}
