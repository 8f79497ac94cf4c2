/* Layer normalisation: y = (x - mean) * rstd * gamma + beta over rows of N.
 *
 * x, y, dy, dx (R, N) T; gamma, beta (N) T; mean, rstd (R) float; partial (2, P, N) float.
 * fwd, bwd_x     work-group r owns row r: three passes, mean, then squared distances from it, then the result. The second
 *                pass reads what the cache still holds and keeps the variance exact where the mean is large.
 * bwd_params     work-item (i, p) owns VW columns i of row block p: sums of dy * xhat and of dy, in row order.
 * Tuned: WG (1 on CPUs), VW. Sums are float.
 */
__kernel void layer_norm_fwd(__global const T *restrict x, __global const T *restrict gamma,
                             __global const T *restrict beta, __global T *restrict y, __global float *restrict mean,
                             __global float *restrict rstd, ulong n, float eps) {
  GROUP_SCRATCH(scratch);
  const ulong row = get_group_id(0);
  const ulong l = get_local_id(0) * VW;
  x += row * n;
  y += row * n;
  FV acc = (FV)(0.0f);
  ulong i = l;
  for (; i + VW <= n; i += WG * VW) acc += LDV(x, i);
  float sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) sum += LD(x, k);
  const float m = GROUP_SUM(scratch, sum) / (float)n;

  acc = (FV)(0.0f);
  for (i = l; i + VW <= n; i += WG * VW) {
    FV d = LDV(x, i) - m;
    acc = fma(d, d, acc);
  }
  sum = sum_lanes(acc);
  for (ulong k = i; k < n && k < i + VW; k++) {
    float d = LD(x, k) - m;
    sum += d * d;
  }
  const float r = 1.0f / sqrt(GROUP_SUM(scratch, sum) / (float)n + eps);

  for (i = l; i + VW <= n; i += WG * VW) {
    FV v = (LDV(x, i) - m) * r;
    STV(y, i, fma(v, LDV(gamma, i), LDV(beta, i)));
  }
  for (ulong k = i; k < n && k < i + VW; k++) ST(y, k, fma((LD(x, k) - m) * r, LD(gamma, k), LD(beta, k)));
  if (get_local_id(0) == 0) {
    mean[row] = m;
    rstd[row] = r;
  }
}

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma. */
__kernel void layer_norm_bwd_x(__global const T *restrict x, __global const T *restrict gamma,
                               __global const T *restrict dy, __global const float *restrict mean,
                               __global const float *restrict rstd, __global T *restrict dx, ulong n) {
  GROUP_SCRATCH(scratch);
  const ulong row = get_group_id(0);
  const ulong l = get_local_id(0) * VW;
  x += row * n;
  dy += row * n;
  dx += row * n;
  const float m = mean[row], r = rstd[row];
  FV acc_g = (FV)(0.0f), acc_gx = (FV)(0.0f);
  ulong i = l;
  for (; i + VW <= n; i += WG * VW) {
    FV g = LDV(dy, i) * LDV(gamma, i);
    acc_g += g;
    acc_gx = fma(g, (LDV(x, i) - m) * r, acc_gx);
  }
  float sum_g = sum_lanes(acc_g), sum_gx = sum_lanes(acc_gx);
  for (ulong k = i; k < n && k < i + VW; k++) {
    float g = LD(dy, k) * LD(gamma, k);
    sum_g += g;
    sum_gx += g * (LD(x, k) - m) * r;
  }
  const float mean_g = GROUP_SUM(scratch, sum_g) / (float)n;
  const float mean_gx = GROUP_SUM(scratch, sum_gx) / (float)n;
  for (i = l; i + VW <= n; i += WG * VW) {
    FV g = LDV(dy, i) * LDV(gamma, i);
    STV(dx, i, r * (g - mean_g - (LDV(x, i) - m) * r * mean_gx));
  }
  for (ulong k = i; k < n && k < i + VW; k++) {
    float g = LD(dy, k) * LD(gamma, k);
    ST(dx, k, r * (g - mean_g - (LD(x, k) - m) * r * mean_gx));
  }
}

__kernel void layer_norm_bwd_params(__global const T *restrict x, __global const T *restrict dy,
                                    __global const float *restrict mean, __global const float *restrict rstd,
                                    __global float *restrict partial, ulong rows, ulong n) {
  const ulong column = get_global_id(0) * VW;
  const ulong block = get_group_id(1), blocks = get_num_groups(1);
  if (column >= n) return;
  const ulong per = (rows + blocks - 1) / blocks;
  const ulong begin = min(rows, block * per), end = min(rows, begin + per);
  __global float *dgamma = partial + block * n, *dbeta = partial + (blocks + block) * n;
  if (column + VW <= n) {
    FV a = (FV)(0.0f), b = (FV)(0.0f);
    for (ulong row = begin; row < end; row++) {
      FV g = LDV(dy, row * n + column);
      a = fma(g, (LDV(x, row * n + column) - mean[row]) * rstd[row], a);
      b += g;
    }
#if VW == 1
    dgamma[column] = a;
    dbeta[column] = b;
#else
    CAT(vstore, VW)(a, 0, dgamma + column);
    CAT(vstore, VW)(b, 0, dbeta + column);
#endif
    return;
  }
  for (ulong k = column; k < n; k++) {
    float a = 0.0f, b = 0.0f;
    for (ulong row = begin; row < end; row++) {
      float g = LD(dy, row * n + k);
      a += g * (LD(x, row * n + k) - mean[row]) * rstd[row];
      b += g;
    }
    dgamma[k] = a;
    dbeta[k] = b;
  }
}
