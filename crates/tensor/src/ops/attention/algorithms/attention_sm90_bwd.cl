/* Shared part of the 16-bit gradients for sm_90: attention_bwd_stats, which computes the statistics of each row of queries.
 *
 * attention_bwd_stats  stats (B,H,PADDED(T)/64,2,64) f32: for 64 rows lse to base 2, +infinity past T (P = 0 there), then delta = sum_d dO*o
 *   groups             B*H*PADDED(T)/64 of 256 items
 *   o, lse             results of the forward
 *   g                  dO, strided like q
 *   tickets            ORDERED only: (B,H,PADDED(T)/64,2) int, set to 0
 *
 * Defines: those of attention_sm90.cl, ORDERED (see attention_wgmma_sm90_bwd.cl).
 */
#ifndef ORDERED
#define ORDERED 0
#endif

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_bwd_stats(
    __global const T *o, __global const float *lse, __global const T *g, ulong g0, ulong gb, ulong gh, ulong gt,
    __global float *stats,
#if ORDERED
    __global int *tickets,
#endif
    uint heads, uint t_len) {
  const int item = get_local_id(0), padded = PADDED((int)t_len), blocks = padded / 64;
  const int head = (int)get_group_id(0) / blocks, row = ((int)get_group_id(0) - head * blocks) * 64 + item / 4;
  const int b = head / (int)heads, h = head - b * (int)heads;
  float sum = 0.0f;
  if (row < (int)t_len) {
    __global const uint4 *x = (__global const uint4 *)(o + (((size_t)b * t_len + row) * heads + h) * D);
    __global const uint4 *y = (__global const uint4 *)(g + g0 + b * gb + h * gh + row * gt);
    for (int i = item & 3; i < D / 8; i += 4) {
      const uint4 u = x[i], w = y[i];
      const float2 u0 = unpack(u.x), u1 = unpack(u.y), u2 = unpack(u.z), u3 = unpack(u.w);
      const float2 w0 = unpack(w.x), w1 = unpack(w.y), w2 = unpack(w.z), w3 = unpack(w.w);
      sum += u0.x * w0.x + u0.y * w0.y + u1.x * w1.x + u1.y * w1.y + u2.x * w2.x + u2.y * w2.y + u3.x * w3.x + u3.y * w3.y;
    }
  }
  sum += swap_f(sum, 1);
  sum += swap_f(sum, 2);
#if ORDERED
  if (item < 2) tickets[(size_t)get_group_id(0) * 2 + item] = 0;
#endif
  if ((item & 3) == 0) {
    const size_t to = (size_t)get_group_id(0) * 128 + item / 4;
    stats[to] = row < (int)t_len ? lse[(size_t)head * t_len + row] * LOG2_E : INFINITY;
    stats[to + 64] = sum;
  }
}
