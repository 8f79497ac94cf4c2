/* sort: every row in order, stable. unsort: the gradient.
 *
 * x (R, N) OUT_T, values (R, N) OUT_T, indices (R, N) uint: values[r, j] = x[r, indices[r, j]]. keys (R, N, 2) and order (R, N) uint are
 * memory for the passes. A NaN of either sign is the largest, -0 equals 0; equal elements keep their order, also with DESCENDING.
 * dvalues, dx (R, N) T: dx[r, indices[r, j]] = dvalues[r, j].
 * Work-group r sorts row r; in every pass, item l owns the l-th of WG equal runs of it. Defines: DESCENDING. Tuned: WG, BITS.
 *
 * Design: radix sort from the lowest digit of BITS bits upwards (Satish, Harris and Garland 2009 for the counts by item). The first pass
 * computes keys with the order of the values; an even number of passes ends in `indices`. Local memory: 2^BITS * WG + WG words. Nothing is
 * rounded.
 * Ceiling: 32 / BITS passes that read and write 8 bytes per element, with one group per row.
 */
#ifndef BITS
#define BITS 8
#endif
#ifndef DESCENDING
#define DESCENDING 0
#endif
#define BINS (1 << BITS)
#define PASSES (32 / BITS)

/* Maps a value to an unsigned key of the same order. */
static inline uint key_of(__global const OUT_T *x, ulong i) {
#if OUT == 4
  const uint key = x[i];
#elif OUT == 3
  const uint key = (uint)x[i] ^ 0x80000000u;
#elif OUT == 5
  const uint key = x[i] != 0;
#else
  const float v = LD(x, i);
  const uint u = as_uint(v == 0.0f ? 0.0f : v);
  const uint key = isnan(v) ? 0xffffffffu : (u >> 31 ? ~u : u | 0x80000000u);
#endif
  return DESCENDING ? ~key : key;
}

__kernel void sort(__global const OUT_T *restrict x, __global uint *restrict keys, __global uint *restrict order,
                   __global OUT_T *restrict values, __global uint *restrict indices, ulong n) {
  __local uint counts[BINS * WG], sums[WG];
  const uint l = get_local_id(0);
  const ulong row = get_group_id(0) * n, per = (n + WG - 1) / WG;
  const ulong begin = min(n, l * per), end = min(n, begin + per);
  x += row, order += row, values += row, indices += row, keys += 2 * row;
  for (int pass = 0; pass < PASSES; pass++) {
    const int shift = pass * BITS, odd = pass & 1;
    __global const uint *from = keys + (odd ? 0 : n), *places = odd ? order : indices;
    __global uint *to = keys + (odd ? n : 0), *places_to = odd ? indices : order;
    for (int b = 0; b < BINS; b++) counts[b * WG + l] = 0;
    for (ulong i = begin; i < end; i++) counts[((pass ? from[i] : key_of(x, i)) >> shift & (BINS - 1)) * WG + l]++;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (int b = 0; b < BINS; b++) sum += counts[l * BINS + b];
    sums[l] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint before = 0;
    for (uint k = 0; k < l; k++) before += sums[k];
    for (int b = 0; b < BINS; b++) {
      const uint count = counts[l * BINS + b];
      counts[l * BINS + b] = before;
      before += count;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (ulong i = begin; i < end; i++) {
      const uint key = pass ? from[i] : key_of(x, i);
      const uint at = counts[(key >> shift & (BINS - 1)) * WG + l]++;
      to[at] = key;
      places_to[at] = pass ? places[i] : (uint)i;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  }
#if OUT == 1 || OUT == 2
  __global const ushort *bits = (__global const ushort *)x;
  for (ulong i = l; i < n; i += WG) ((__global ushort *)values)[i] = bits[indices[i]];
#else
  for (ulong i = l; i < n; i += WG) values[i] = x[indices[i]];
#endif
}

__kernel void unsort(__global const T *restrict dvalues, __global const uint *restrict indices, __global T *restrict dx, ulong rows,
                     ulong n) {
  FOR_ROWS(i, rows * n, 0) ST(dx, i / n * n + indices[i], LD(dvalues, i));
}
