/* place: dst[row * stride + start + i] = src[row * length + i] for i < length and row < rows.
 *
 * src  T (rows, length), contiguous
 * dst  T; stride, start and length count elements. Elements outside of the placed part are not accessed.
 *
 * Launch: a work-item (x, y) copies VW elements at a time: vectors x, x + get_global_size(0), ... of the rows that FOR_ROWS gives y.
 * Defines: DTYPE, VW. Launched by ops/view.rs.
 */
__kernel void place(__global const T *restrict src, __global T *restrict dst, ulong start, ulong stride, ulong length,
                    ulong rows) {
  FOR_ROWS(row, rows, 1) {
    __global const T *s = src + row * length;
    __global T *d = dst + start + row * stride;
    const ulong step = get_global_size(0) * VW;
    ulong i = get_global_id(0) * VW;
    for (; i + VW <= length; i += step) {
      FV v = LDV(s, i);
      STV(d, i, v);
    }
    for (ulong k = i; k < length && k < i + VW; k++) ST(d, k, LD(s, k));
  }
}
