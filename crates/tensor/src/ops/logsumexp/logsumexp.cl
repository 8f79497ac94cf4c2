/* Logarithm of the sum of exponentials of rows of N: y = log(sum(exp(x))), as m + log(sum(exp(x - m))) with m the row's maximum, so
 * that no exponential overflows. The gradient is a softmax: dx = dy * exp(x - m) / sum(exp(x - m)), from m and the sum rather than
 * from y, which is rounded to the size of m.
 *
 * logsumexp_fwd   x (R, N) T → y (R) T, and saved (R, 2) float: m, 1 / sum
 * logsumexp_bwd   x (R, N) T, saved (R, 2) float, dy (R) T → dx (R, N) T
 * Work-group r owns row r. The forward reads a row twice, for the maximum and for the sum; the second time it comes from the cache.
 * An infinite maximum is not subtracted: a row of -infinity alone gives -infinity, one with +infinity gives +infinity, and a NaN
 * reaches the sum in either case. Sums are float.
 * Tuned: VW. WG (1 on CPUs) follows N.
 *
 * Design: the shifted form of Blanchard, Higham and Higham 2021, "Accurately computing the log-sum-exp and softmax functions".
 * Ceiling: x read once (and dx written), a copy's bandwidth.
 */
__kernel void logsumexp_fwd(__global const T *restrict x, __global T *restrict y, __global float2 *restrict saved, ulong n) {
  GROUP_SCRATCH(scratch);
  const ulong row = get_group_id(0);
  x += row * n;
  FV high = (FV)(-INFINITY);
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) high = fmax(high, LDV(x, i));
  float top = max_lanes(high);
  for (ulong k = i; k < n && k < i + VW; k++) top = fmax(top, LD(x, k));
  top = GROUP_MAX(scratch, top);
  if (isinf(top)) top = 0.0f;

  FV acc = (FV)(0.0f);
  for (i = get_local_id(0) * VW; i + VW <= n; i += WG * VW) acc += EXP(LDV(x, i) - top);
  float sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) sum += EXP(LD(x, k) - top);
  sum = GROUP_SUM(scratch, sum);
  if (get_local_id(0) == 0) {
    ST(y, row, top + log(sum));
    saved[row] = (float2)(top, 1.0f / sum);
  }
}

__kernel void logsumexp_bwd(__global const T *restrict x, __global const float2 *restrict saved, __global const T *restrict dy,
                            __global T *restrict dx, ulong n) {
  const ulong row = get_group_id(0);
  x += row * n;
  dx += row * n;
  const float top = saved[row].x, share = saved[row].y * LD(dy, row);
  ulong i = get_local_id(0) * VW;
  for (; i + VW <= n; i += WG * VW) STV(dx, i, share * EXP(LDV(x, i) - top));
  for (ulong k = i; k < n && k < i + VW; k++) ST(dx, k, share * EXP(LD(x, k) - top));
}
