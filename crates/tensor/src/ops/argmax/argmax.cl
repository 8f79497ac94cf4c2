/* argmax: y[r] = the index of the largest element of row r of x, and the lowest index among equal elements. A NaN is larger than any number.
 *
 * x (R, N) T, y (R) uint. Work-group g owns block g of the rows. Each lane of an item keeps its best element; then lanes and items are compared
 * by value and index, so the result does not depend on the order of comparisons.
 *
 * Design: a tree reduction within a group (Harris 2007, "Optimizing Parallel Reduction in CUDA") over pairs of value and index.
 * Ceiling: bandwidth of a copy, with x read once. H200, 16384 rows of 1024 f32: 2.3 of 4.8 TB/s, 4096 of 50304: 4.1.
 */
/* Returns whether (v, i) comes before (w, k). */
static inline int goes_before(float v, uint i, float w, uint k) {
  if (isnan(v) || isnan(w)) return isnan(v) && (!isnan(w) || i < k);
  return v > w || (v == w && i < k);
}

__kernel void argmax(__global const T *restrict x, __global uint *restrict y, ulong rows, ulong n) {
#if WG > 1
  __local float values[WG];
  __local uint indices[WG];
#endif
  const uint l = get_local_id(0);
  const ulong each = (rows + get_num_groups(0) - 1) / get_num_groups(0), first = get_group_id(0) * each;
  for (ulong row = first; row < min(rows, first + each); row++) {
    __global const T *xr = x + row * n;
    FV top = (FV)(-INFINITY);
    UV at = (UV)(0xffffffffu);
    uint i = l * VW;
    for (; i + VW <= n; i += WG * VW) {
      const FV v = LDV(xr, i);
      /* v > top, or the first NaN, or the very first element, since a row may consist of -infinity. Comparisons of vectors give -1, of scalars
       * 1: select() accepts either. */
      const IV better = (v > top) | (isnan(v) & (top == top)) | (at == (UV)(0xffffffffu));
      top = select(top, v, better);
      at = select(at, (UV)(i), better);
    }
    float lane_top[VW], best = -INFINITY;
    uint lane_at[VW], best_at = 0xffffffffu;
    STV_F32(lane_top, top);
    STV_F32(lane_at, at);
    for (uint k = 0; k < VW; k++) {
      if (lane_at[k] != 0xffffffffu && goes_before(lane_top[k], lane_at[k] + k, best, best_at)) {
        best = lane_top[k];
        best_at = lane_at[k] + k;
      }
    }
    for (uint k = i; k < n && k < i + VW; k++) {
      if (goes_before(LD(xr, k), k, best, best_at)) {
        best = LD(xr, k);
        best_at = k;
      }
    }
#if WG > 1
    values[l] = best;
    indices[l] = best_at;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint h = WG / 2; h > 0; h >>= 1) {
      if (l < h && goes_before(values[l + h], indices[l + h], values[l], indices[l])) {
        values[l] = values[l + h];
        indices[l] = indices[l + h];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (l == 0) y[row] = indices[0];
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    y[row] = best_at;
#endif
  }
}
