/* Peak performance of a device, as a reference for measurements: multiply-adds from registers, and copying.
 *
 * peak   y[i] = an arbitrary number: CHAINS independent chains of ROUNDS fused multiply-adds on vectors of VW lanes each;
 *        2 * CHAINS * ROUNDS * VW flops per work-item.   y float, one element per work-item
 * copy   y[i] = x[i] for n float vectors of VW lanes.  Work-items take every get_global_size(0)-th vector; with CHUNKED
 *        (CPUs) each takes one contiguous range.
 *
 * Tuned: VW, CHAINS (enough to hide the latency of a multiply-add, few enough for the registers), WG.
 *
 * Design: independent chains of multiply-adds hide their latency (Volkov 2010, "Better Performance at Lower Occupancy"); STREAM's
 * copy (McCalpin 1995).
 */
#ifndef CHAINS
#define CHAINS 8
#endif
#ifndef ROUNDS
#define ROUNDS 1024
#endif
#ifndef CHUNKED
#define CHUNKED 0
#endif
#if VW == 1
#define COPY_AT(y, x, i) (y)[i] = (x)[i]
#else
#define COPY_AT(y, x, i) CAT(vstore, VW)(CAT(vload, VW)((i), (x)), (i), (y))
#endif

__kernel void peak(__global float *y, float a, float b) {
  const float start = (float)get_global_id(0) * 1e-9f;
  FV c[CHAINS];
  const FV va = (FV)(a), vb = (FV)(b);
  _Pragma("unroll") for (int k = 0; k < CHAINS; ++k) c[k] = (FV)(start + k);
  for (int r = 0; r < ROUNDS; ++r) {
    _Pragma("unroll") for (int k = 0; k < CHAINS; ++k) c[k] = fma(c[k], va, vb);
  }
  FV sum = (FV)(0.0f);
  _Pragma("unroll") for (int k = 0; k < CHAINS; ++k) sum += c[k];
  y[get_global_id(0)] = sum_lanes(sum);
}

__kernel void copy(__global const float *x, __global float *y, ulong n) {
#if CHUNKED
  const ulong each = (n + get_global_size(0) - 1) / get_global_size(0);
  const ulong from = get_global_id(0) * each, to = min(n, from + each);
  for (ulong i = from; i < to; ++i) COPY_AT(y, x, i);
#else
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) COPY_AT(y, x, i);
#endif
}
