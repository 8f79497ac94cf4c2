/* multinomial: y[r, s] = the index that draw s of row r falls on, where index i covers weights[r, i] / sum(weights[r]).
 *
 * weights (R, N) T, not negative, not all 0; y (R, S) uint; 0xffffffff where a row's sum is 0, infinite or NaN.
 * Work-group r owns row r; item l sums piece l of the row in order, float; the pieces' sums are added in order. Draw s takes the word
 * of element r * S + s from the stream (philox.cl), as a fraction of the row's sum; items share the draws.
 */
__kernel void multinomial(__global const T *restrict weights, __global uint *restrict y, ulong n, ulong samples, ulong seed,
                          ulong offset) {
  __local float ends[WG];
  const ulong l = get_local_id(0), row = get_group_id(0), per = (n + WG - 1) / WG;
  weights += row * n;
  float sum = 0.0f;
  for (ulong i = l * per; i < min(n, (l + 1) * per); i++) sum += LD(weights, i);
  ends[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l == 0)
    for (uint p = 1; p < WG; p++) ends[p] += ends[p - 1];
  barrier(CLK_LOCAL_MEM_FENCE);
  const float all = ends[WG - 1];
  for (ulong s = l; s < samples; s += WG) {
    const ulong element = row * samples + s;
    uint c[4];
    philox_counter(c, offset, element / 64 * 16 + element % 16);
    philox(c, (uint2)((uint)seed, (uint)(seed >> 32)));
    const float target = (float)(c[element % 64 / 16] >> 8) * 0x1p-24f * all;
    uint piece = 0;
    while (piece < WG - 1 && ends[piece] <= target) piece++;
    /* The last index with a weight stands in where rounding leaves the target at the end of its piece. */
    uint at = 0xffffffffu;
    float end = piece > 0 ? ends[piece - 1] : 0.0f;
    for (ulong i = piece * per; i < n && (end <= target || at == 0xffffffffu); i++) {
      const float w = LD(weights, i);
      end += w;
      if (w > 0.0f) at = (uint)i;
    }
    y[element] = all > 0.0f && all <= FLT_MAX ? at : 0xffffffffu;
  }
}
