/* Cross entropy of logits against class numbers: loss = (1 - s) * (lse - x[t]) + s * (lse - mean(x)) over rows of N,
 * with lse = log(sum(exp(x))) and s the label smoothing.
 *
 * x, dx (R, N) T; targets (R) int; lse (R, 2) float, max(x) and log(sum(exp(x - max(x)))), separate because their sum would be
 * rounded to the size of the maximum; loss (R) float; scale, y (1) float; dy (R) or (1) float.
 * fwd, bwd   work-group r owns row r. Ignored rows give 0; a target outside 0 … classes - 1 gives NaN and reads nothing
 *            (classes is below N if a row ends in logits of -infinity).
 * mean       one work-group: sum of the losses over the number of rows not ignored, and that number's inverse for bwd.
 * Tuned: VW. WG (1 on CPUs) depends on N, or on R for mean. Sums are float.
 *
 * Design: online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867); label smoothing as in Szegedy et al. 2016 (arXiv:1512.00567).
 * Ceiling: reads x once, and x and dx once in the backward: H200, 1024 rows of 50304 f32: 3.4 and 3.8 of 4.8 TB/s.
 */
__kernel void cross_entropy_fwd(__global const T *restrict x, __global const int *restrict targets,
                                __global float *restrict lse, __global float *restrict loss, ulong n, long ignored,
                                float smoothing, ulong classes) {
  GROUP_SCRATCH(scratch);
  const ulong row = get_group_id(0);
  const int target = targets[row];
  x += row * n;
  if (target == ignored) {
    if (get_local_id(0) == 0) loss[row] = lse[2 * row] = lse[2 * row + 1] = 0.0f;
    return;
  }
  const float2 share = softmax_share(x, n);
  const float top = GROUP_MAX(scratch, share.x);
  const float rest = log(GROUP_SUM(scratch, share.y * EXP(share.x - top)));
  float mean = 0.0f;
  if (smoothing > 0.0f) {
    FV acc = (FV)(0.0f);
    ulong i = get_local_id(0) * VW;
    for (; i + VW <= n; i += WG * VW) acc += LDV(x, i) - top;
    float sum = sum_lanes(acc);
    for (ulong k = i; k < n && k < i + VW; k++) sum += LD(x, k) - top;
    mean = GROUP_SUM(scratch, sum) / (float)n;
  }
  if (get_local_id(0) == 0) {
    const int inside = target >= 0 && target < classes;
    lse[2 * row] = top;
    lse[2 * row + 1] = rest;
    loss[row] = inside ? (1.0f - smoothing) * (top - LD(x, target) + rest) + (smoothing > 0.0f ? smoothing * (rest - mean) : 0.0f) : NAN;
  }
}

__kernel void cross_entropy_mean(__global const float *restrict loss, __global const int *restrict targets,
                                 __global float *restrict y, __global float *restrict scale, ulong rows, long ignored) {
  GROUP_SCRATCH(scratch);
  float sum = 0.0f;
  uint count = 0;
  for (ulong row = get_local_id(0); row < rows; row += WG) {
    sum += loss[row];
    count += targets[row] != ignored;
  }
  sum = GROUP_SUM(scratch, sum);
  const float inverse = 1.0f / GROUP_SUM(scratch, (float)count);
  if (get_local_id(0) == 0) {
    scale[0] = inverse;
    y[0] = sum * inverse;
  }
}

/* dx = (exp(x - lse) - s / N - (1 - s) [k = t]) * dy * scale; dy_step is 0 if one dy applies to all rows. dx may be x: each item reads an
 * element before it writes it, and no other item accesses it. */
__kernel void cross_entropy_bwd(__global const T *x, __global const int *restrict targets,
                                __global const float *restrict lse, __global const float *restrict scale,
                                __global const float *restrict dy, __global T *dx, ulong n, long ignored, float smoothing,
                                ulong dy_step, ulong classes) {
  const ulong row = get_group_id(0), l = get_local_id(0);
  const int target = targets[row];
  const int keep = target != ignored, inside = target >= 0 && target < classes;
  const float g = inside ? dy[row * dy_step] * scale[0] : NAN, top = lse[2 * row], rest = lse[2 * row + 1];
  const float even = smoothing / (float)n;
  x += row * n;
  dx += row * n;
  /* The item that owns the target's element writes it twice, from a value that it read before. */
  const int owner = keep && inside && target / VW % WG == l;
  const float chosen = owner ? LD(x, target) : 0.0f;
  ulong i = l * VW;
  for (; i + VW <= n; i += WG * VW) STV(dx, i, keep ? (EXP(LDV(x, i) - top - rest) - even) * g : (FV)(0.0f));
  for (ulong k = i; k < n && k < i + VW; k++) ST(dx, k, keep ? (EXP(LD(x, k) - top - rest) - even) * g : 0.0f);
  if (owner) ST(dx, target, (EXP(chosen - top - rest) - even - (1.0f - smoothing)) * g);
}
