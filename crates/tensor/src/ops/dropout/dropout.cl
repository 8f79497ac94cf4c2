/* Dropout: y = x * keep if the element's Philox word (philox.cl) is at least `drop`, otherwise x * 0. The backward is the same kernel over dy:
 * the mask is drawn again and never stored.
 *
 * x, y (n) T. CPUs: a work-item processes every get_global_size(0)-th run of 64 elements, VW lanes at a time. GPUs: VW elements are 16 bytes
 * (vector16.cl). Adjacent items process adjacent lanes of a run, so for them each of the run's four words is contiguous in memory.
 *
 * Design: inverted dropout (Srivastava et al. 2014) with a counter-based generator (Salmon et al. 2011) instead of a stored mask.
 * Ceiling: a copy of the same bytes. H200, 64 MB of f32: 45.9 us, x * 2 of the same size 36.4.
 */
#if WG == 1
#define LOAD(i) LDV(x, i)
#define STORE(i, v) STV(y, i, v)
#else
#define LOAD(i) unpack(*(__global const uint4 *)(x + (i)))
#define STORE(i, v) (*(__global uint4 *)(y + (i)) = pack(v))
#endif

/* Processes elements of a run at lanes lane … lane + VW - 1 of its four words. Inlined, because the kernel's pointers are restrict. */
static inline void drop_lanes(__global const T *x, __global T *y, ulong n, ulong seed, ulong offset, ulong run, uint lane,
                              uint drop, float keep) {
  UV c[4];
  philox_draw_lanes(c, seed, offset, run * 16 + lane);
  for (uint w = 0; w < 4; ++w) {
    const ulong i = run * 64 + w * 16 + lane;
    if (i + VW <= n) {
      /* A product, so that dropped NaN and infinities are not hidden. */
      STORE(i, LOAD(i) * select((FV)(keep), (FV)(0.0f), c[w] < (UV)(drop)));
    } else {
#if VW > 1
      uint word[VW];
      CAT(vstore, VW)(c[w], 0, word);
      for (ulong k = i; k < n; ++k) ST(y, k, LD(x, k) * (word[k - i] < drop ? 0.0f : keep));
#endif
    }
  }
}

__kernel void dropout(__global const T *restrict x, __global T *restrict y, ulong n COUNTER_ARG, ulong seed, ulong site,
                      uint drop, float keep) {
  const ulong offset = STREAM_START(site);
#if WG == 1
  for (ulong run = get_global_id(0); run * 64 < n; run += get_global_size(0))
    for (uint lane = 0; lane < 16; lane += VW) drop_lanes(x, y, n, seed, offset, run, lane, drop, keep);
#else
  for (ulong part = get_global_id(0); part / (16 / VW) * 64 < n; part += get_global_size(0))
    drop_lanes(x, y, n, seed, offset, part / (16 / VW), (uint)(part % (16 / VW)) * VW, drop, keep);
#endif
}
