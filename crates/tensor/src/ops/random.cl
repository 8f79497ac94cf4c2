/* Random fills of y (n) T from the stream of philox.cl.
 *
 * random_uniform   fma(u, span, low), u = (word >> 8) / 2^24, which is exact: the same bits on every device
 * random_normal    mean + spread * N(0, 1) by Box and Muller: words 0 and 1 of a draw make two normals, 2 and 3 two more
 * A work-item takes every get_global_size(0)-th run of 64 elements, VW lanes at a time.
 */
static inline void put(__global T *y, ulong i, ulong n, FV v) {
  if (i + VW <= n) {
    STV(y, i, v);
    return;
  }
#if VW > 1
  float each[VW];
  CAT(vstore, VW)(v, 0, each);
  for (ulong k = i; k < n; ++k) ST(y, k, each[k - i]);
#endif
}

#define UNIT(word) (TO_FV((word) >> 8) * 5.9604644775390625e-8f)

__kernel void random_uniform(__global T *restrict y, ulong n, ulong seed, ulong offset, float low, float span) {
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) {
      UV c[4];
      philox_draw_lanes(c, seed, offset, run * 16 + lane);
      for (uint w = 0; w < 4; ++w) put(y, run * 64 + w * 16 + lane, n, fma(UNIT(c[w]), (FV)(span), (FV)(low)));
    }
}

__kernel void random_normal(__global T *restrict y, ulong n, ulong seed, ulong offset, float mean, float spread) {
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) {
      UV c[4];
      philox_draw_lanes(c, seed, offset, run * 16 + lane);
      for (uint w = 0; w < 4; w += 2) {
        /* 1 - u is in (0, 1]: the logarithm is finite. */
        const FV r = sqrt(log((FV)(1.0f) - UNIT(c[w])) * -2.0f) * spread, turn = UNIT(c[w + 1]) * 2.0f;
        const ulong i = run * 64 + w * 16 + lane;
        put(y, i, n, fma(r, cospi(turn), (FV)(mean)));
        put(y, i + 16, n, fma(r, sinpi(turn), (FV)(mean)));
      }
    }
}
