/* multinomial: y[r, s] = the index that draw s of row r selects; index i covers the fraction weights[r, i] / sum(weights[r]).
 *
 * weights (R, N) T, not negative, not all 0; y (R, S) uint; 0xffffffff if a row's sum is 0, infinite or NaN. Work-group r owns row r. Item l
 * sums piece l of the row in order, and the pieces' sums are added in order. Draw s uses the word of element r * S + s from the stream
 * (philox.cl), as a fraction of the row's sum; the items divide the draws. A sum is two floats, the sum and its rounding error: with the many
 * weights of a vocabulary, the error of one float would exceed a weight.
 *
 * Design: inversion of the cumulative sums, which are kept as unevaluated pairs of floats (Dekker 1971).
 * Ceiling: reads the weights once; one group reads a row, so few rows do not reach a device's bandwidth.
 */
/* Returns a + b with its rounding error (Knuth). */
static inline float2 plus(float2 a, float b) {
  const float s = a.x + b, t = s - a.x;
  return (float2)(s, a.y + ((a.x - (s - t)) + (b - t)));
}
static inline int reaches(float2 end, float2 target) { return (end.x - target.x) + (end.y - target.y) > 0.0f; }

__kernel void multinomial(__global const T *restrict weights, __global uint *restrict y, ulong n, ulong samples, ulong seed,
                          ulong offset) {
  __local float2 ends[WG];
  const ulong l = get_local_id(0), row = get_group_id(0), per = (n + WG - 1) / WG;
  weights += row * n;
  float2 sum = (float2)(0.0f);
  for (ulong i = l * per; i < min(n, (l + 1) * per); i++) sum = plus(sum, LD(weights, i));
  ends[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l == 0)
    for (uint p = 1; p < WG; p++) ends[p] = plus(ends[p - 1], ends[p].x) + (float2)(0.0f, ends[p].y);
  barrier(CLK_LOCAL_MEM_FENCE);
  const float2 all = ends[WG - 1];
  for (ulong s = l; s < samples; s += WG) {
    const ulong element = row * samples + s;
    uint c[4];
    philox_counter(c, offset, element / 64 * 16 + element % 16);
    philox(c, (uint2)((uint)seed, (uint)(seed >> 32)));
    const float u = (float)(c[element % 64 / 16] >> 8) * 0x1p-24f, high = u * all.x;
    const float2 target = (float2)(high, fma(u, all.x, -high) + u * all.y);
    uint piece = 0;
    while (piece < WG - 1 && !reaches(ends[piece], target)) piece++;
    /* If rounding puts the target at the end of its piece, the last index with a weight is selected. */
    uint at = 0xffffffffu;
    float2 end = piece > 0 ? ends[piece - 1] : (float2)(0.0f);
    for (ulong i = piece * per; i < n && (!reaches(end, target) || at == 0xffffffffu); i++) {
      const float w = LD(weights, i);
      end = plus(end, w);
      if (w > 0.0f) at = (uint)i;
    }
    y[element] = all.x > 0.0f && all.x <= FLT_MAX ? at : 0xffffffffu;
  }
}
