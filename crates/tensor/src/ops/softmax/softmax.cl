/* Softmax of rows of N: y = exp(x - max) / sum, and its logarithm, y = x - max - log(sum).
 *
 * x, y, dy, dx (R, N) T. Work-group r owns row r. Maximum and sum come from one pass over the row, the result from a second pass, which the
 * cache serves. HELD 1 and more (ALIGNED_VECTORS, on GPUs): the forwards keep a row in registers instead, HELD vectors per item, and compute one
 * exponential per element. Sums are float.
 * Tuned: VW. WG (1 on CPUs) depends on N.
 *
 * Design: online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).
 * Ceiling: x read and y written once. H200, rows of 1024: 3.8 of 4.8 TB/s in f32 and 3.5 in bf16, backward 2.8 and 3.6; rows of 65: 0.8.
 */
#ifndef HELD
#define HELD 0
#endif

#if HELD
#define AT(k) ((get_local_id(0) + (ulong)(k) * WG) * VW)
#define EACH _Pragma("unroll") for (uint k = 0; k < HELD; k++)

/* Writes x minus its maximum to v, and its exponentials to e if that is not v; returns their sum. */
static inline float hold(FV *v, FV *e, __global const T *x, __local float *scratch, ulong n) {
  EACH v[k] = AT(k) < n ? LDV(x, AT(k)) : (FV)(-INFINITY);
  FV high = v[0];
  for (uint k = 1; k < HELD; k++) high = fmax(high, v[k]);
  const float top = GROUP_MAX(scratch, max_lanes(high));
  FV acc = (FV)(0.0f);
  EACH {
    v[k] -= top;
    const FV power = EXP(v[k]);
    acc += power;
    e[k] = power;
  }
  return GROUP_SUM(scratch, sum_lanes(acc));
}

__kernel void softmax_fwd(__global const T *restrict x, __global T *restrict y, ulong n) {
  GROUP_SCRATCH(scratch);
  FV v[HELD];
  const float inverse = 1.0f / hold(v, v, x + get_group_id(0) * n, scratch, n);
  y += get_group_id(0) * n;
  EACH if (AT(k) < n) STV(y, AT(k), v[k] * inverse);
}

__kernel void log_softmax_fwd(__global const T *restrict x, __global T *restrict y, ulong n) {
  GROUP_SCRATCH(scratch);
  FV v[HELD], unused[HELD];
  /* Two subtractions: max + log(sum) would be rounded to the size of the maximum. */
  const float rest = log(hold(v, unused, x + get_group_id(0) * n, scratch, n));
  y += get_group_id(0) * n;
  EACH if (AT(k) < n) STV(y, AT(k), v[k] - rest);
}
#else
__kernel void softmax_fwd(__global const T *restrict x, __global T *restrict y, ulong n) {
  GROUP_SCRATCH(scratch);
  x += get_group_id(0) * n;
  y += get_group_id(0) * n;
  const float2 share = softmax_share(x, n);
  const float top = GROUP_MAX(scratch, share.x);
  const float inverse = 1.0f / GROUP_SUM(scratch, share.y * EXP(share.x - top));
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) STV(y, i, EXP(LDV(x, i) - top) * inverse);
  for (ulong k = i; k < n && k < i + VW; k++) ST(y, k, EXP(LD(x, k) - top) * inverse);
}

__kernel void log_softmax_fwd(__global const T *restrict x, __global T *restrict y, ulong n) {
  GROUP_SCRATCH(scratch);
  x += get_group_id(0) * n;
  y += get_group_id(0) * n;
  const float2 share = softmax_share(x, n);
  const float top = GROUP_MAX(scratch, share.x);
  /* Two subtractions: max + log(sum) would be rounded to the size of the maximum. */
  const float rest = log(GROUP_SUM(scratch, share.y * EXP(share.x - top)));
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) STV(y, i, LDV(x, i) - top - rest);
  for (ulong k = i; k < n && k < i + VW; k++) ST(y, k, LD(x, k) - top - rest);
}
#endif

/* Computes dx = y * (dy - sum(dy * y)). */
__kernel void softmax_bwd(__global const T *restrict y, __global const T *restrict dy, __global T *restrict dx, ulong n) {
  GROUP_SCRATCH(scratch);
  y += get_group_id(0) * n;
  dy += get_group_id(0) * n;
  dx += get_group_id(0) * n;
  FV acc = (FV)(0.0f);
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) acc = fma(LDV(dy, i), LDV(y, i), acc);
  float sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) sum = fma(LD(dy, k), LD(y, k), sum);
  sum = GROUP_SUM(scratch, sum);
  for (i = get_local_id(0) * VW; i + VW <= n; i += WG * VW) STV(dx, i, LDV(y, i) * (LDV(dy, i) - sum));
  for (ulong k = i; k < n && k < i + VW; k++) ST(dx, k, LD(y, k) * (LD(dy, k) - sum));
}

/* Computes dx = dy - exp(y) * sum(dy). */
__kernel void log_softmax_bwd(__global const T *restrict y, __global const T *restrict dy, __global T *restrict dx,
                              ulong n) {
  GROUP_SCRATCH(scratch);
  y += get_group_id(0) * n;
  dy += get_group_id(0) * n;
  dx += get_group_id(0) * n;
  FV acc = (FV)(0.0f);
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) acc += LDV(dy, i);
  float sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) sum += LD(dy, k);
  sum = GROUP_SUM(scratch, sum);
  for (i = get_local_id(0) * VW; i + VW <= n; i += WG * VW) STV(dx, i, LDV(dy, i) - EXP(LDV(y, i)) * sum);
  for (ulong k = i; k < n && k < i + VW; k++) ST(dx, k, LD(dy, k) - EXP(LD(y, k)) * sum);
}
