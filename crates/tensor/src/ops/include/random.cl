/* Random fills of y (n) T from the stream of philox.cl.
 *
 * random_uniform   fma(u, span, low), at most `top`, u = (word >> 8) / 2^24, which is exact: the same bits on every device. `top` is the
 *                  largest T below the end of the range; rounding could otherwise reach the end
 * random_normal    fma(z, spread, mean), z by normal.cl from one word: the same bits on every device
 * A work-item processes every get_global_size(0)-th run of 64 elements, VW lanes at a time.
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

__kernel void random_uniform(__global T *restrict y, ulong n, ulong seed, ulong offset, float low, float span, float top) {
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) {
      UV c[4];
      philox_draw_lanes(c, seed, offset, run * 16 + lane);
      for (uint w = 0; w < 4; ++w)
        put(y, run * 64 + w * 16 + lane, n, fmin(fma(UNIT(c[w]), (FV)(span), (FV)(low)), (FV)(top)));
    }
}

/* One table lookup per lane, because it does not have a vector form. */
static inline FV normal_lanes(UV words) {
#if VW > 1
  uint word[VW];
  float z[VW];
  CAT(vstore, VW)(words, 0, word);
  for (uint lane = 0; lane < VW; ++lane) z[lane] = normal_of(word[lane]);
  return CAT(vload, VW)(0, z);
#else
  return normal_of(words);
#endif
}

__kernel void random_normal(__global T *restrict y, ulong n, ulong seed, ulong offset, float mean, float spread) {
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) {
      UV c[4];
      philox_draw_lanes(c, seed, offset, run * 16 + lane);
      for (uint w = 0; w < 4; ++w)
        put(y, run * 64 + w * 16 + lane, n, fma(normal_lanes(c[w]), (FV)(spread), (FV)(mean)));
    }
}
