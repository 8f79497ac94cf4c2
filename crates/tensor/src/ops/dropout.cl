/* Dropout: y = x * keep where the element's Philox word (philox.cl) is at least `drop`, else 0. The backward is the same
 * kernel over dy: the mask is drawn again, never stored.
 *
 * x, y (n) T. A work-item takes every get_global_size(0)-th run of 64 elements, VW lanes at a time.
 */
__kernel void dropout(__global const T *restrict x, __global T *restrict y, ulong n COUNTER_ARG, ulong seed, ulong site,
                      uint drop, float keep) {
  const ulong offset = STREAM_START(site);
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) {
      UV c[4];
      philox_draw_lanes(c, seed, offset, run * 16 + lane);
      for (uint w = 0; w < 4; ++w) {
        const ulong i = run * 64 + w * 16 + lane;
        if (i + VW <= n) {
          FV v = LDV(x, i) * keep;
          v = select(v, (FV)(0.0f), c[w] < (UV)(drop));
          STV(y, i, v);
        } else {
#if VW > 1
          uint word[VW];
          CAT(vstore, VW)(c[w], 0, word);
          for (ulong k = i; k < n; ++k) ST(y, k, word[k - i] < drop ? 0.0f : LD(x, k) * keep);
#endif
        }
      }
    }
}
