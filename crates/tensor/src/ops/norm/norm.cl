/* Normalization of rows of N, CENTER 1 (layer norm): y = (x - mean) * rstd * gamma + beta, rstd = 1 / sqrt(variance + eps); CENTER 0 (root mean
 * square): y = x * rstd * gamma, rstd = 1 / sqrt(mean(x²) + eps).
 *
 * x, y, dy, dx (R, N) T; gamma, beta, dgamma, dbeta (N) T; mean, rstd (R) float; part_gamma, part_beta (P, N) float.
 * Arguments in brackets below exist if CENTER is 1. Work-group p owns block p of the rows.
 * norm_fwd(x, gamma, [beta], y, [mean], rstd, rows, n, eps)
 *     three passes per row: mean, squared distances from it, result. The cache serves the later ones, and the variance stays
 *     exact if the mean is large.
 * norm_bwd(x, gamma, dy, [residual_grad], [mean], rstd, dx, part_gamma, [part_beta], rows, n)
 *     two passes per row: sums, then dx. With RESIDUAL_GRAD 1, residual_grad (R, N) T, the gradient that reaches x without the norm, is added to dx.
 *     The row's terms of dgamma and dbeta are added to slice p of the parts, which stays in the cache: x and dy are read from memory once.
 * norm_bwd_params(part_gamma, [part_beta], dgamma, [dbeta], parts, n)
 *     item (i, y) of a group owns VW columns i and slices y, y + Y, …; the Y sums are added in a fixed tree.
 * Tuned: WG (1 on CPUs), VW. Sums are float.
 *
 * Design: two-pass variance (Chan, Golub and LeVeque 1983); partial sums of the parameters' gradients by block of rows and a second kernel, as
 * in Apex's layer norm.
 * Ceiling: x read and y written once: 4.8 TB/s on an H200. Reached: 1.7, backward 1.5; by norm_rows 3.7 and 3.8 (f32), in a GPT-2 step 3.6 and 3.2.
 */
#ifndef CENTER
#define CENTER 1
#endif
#ifndef RESIDUAL_GRAD
#define RESIDUAL_GRAD 0
#endif

/* Returns this item's part of sum(x), and of sum((x - m)²). */
static inline float share_sum(__global const T *x, ulong n) {
  const ulong step = WG * VW;
  FV a = (FV)(0.0f), b = a, c = a, d = a;
  ulong i = get_local_id(0) * VW;
  for (; i + 3 * step + VW <= n; i += 4 * step) {
    a += LDV(x, i);
    b += LDV(x, i + step);
    c += LDV(x, i + 2 * step);
    d += LDV(x, i + 3 * step);
  }
  for (; i + VW <= n; i += step) a += LDV(x, i);
  float sum = sum_lanes((a + b) + (c + d));
  for (ulong k = i; k < n && k < i + VW; k++) sum += LD(x, k);
  return sum;
}
static inline float share_squares(__global const T *x, ulong n, float m) {
  const ulong step = WG * VW;
  FV a = (FV)(0.0f), b = a, c = a, d = a;
  ulong i = get_local_id(0) * VW;
  for (; i + 3 * step + VW <= n; i += 4 * step) {
    const FV p = LDV(x, i) - m, q = LDV(x, i + step) - m, r = LDV(x, i + 2 * step) - m, s = LDV(x, i + 3 * step) - m;
    a = fma(p, p, a);
    b = fma(q, q, b);
    c = fma(r, r, c);
    d = fma(s, s, d);
  }
  for (; i + VW <= n; i += step) {
    const FV p = LDV(x, i) - m;
    a = fma(p, p, a);
  }
  float sum = sum_lanes((a + b) + (c + d));
  for (ulong k = i; k < n && k < i + VW; k++) {
    const float p = LD(x, k) - m;
    sum = fma(p, p, sum);
  }
  return sum;
}

/* Returns sum / n, rounded about once. Divisions on GPUs may be off by 2.5 ulp, and in a row of equal elements 1 / sqrt(eps) multiplies this
 * error. */
static inline float mean_of(float sum, float n) {
  const float mean = sum / n;
  return fma(fma(-mean, n, sum), 1.0f / n, mean);
}

__kernel void norm_fwd(__global const T *restrict x, __global const T *restrict gamma,
#if CENTER
                       __global const T *restrict beta, __global T *restrict y, __global float *restrict mean,
#else
                       __global T *restrict y,
#endif
                       __global float *restrict rstd, ulong rows, ulong n, float eps) {
  GROUP_SCRATCH(scratch);
  const ulong per = (rows + get_num_groups(0) - 1) / get_num_groups(0), begin = get_group_id(0) * per;
  const ulong end = min(rows, begin + per);
  for (ulong row = begin; row < end; row++) {
    __global const T *xr = x + row * n;
    __global T *yr = y + row * n;
#if CENTER
    const float m = mean_of(GROUP_SUM(scratch, share_sum(xr, n)), (float)n);
#else
    const float m = 0.0f;
#endif
    const float r = 1.0f / sqrt(GROUP_SUM(scratch, share_squares(xr, n, m)) / (float)n + eps);
    ulong i = get_local_id(0) * VW;
#if CENTER
    for (; i + VW <= n; i += WG * VW) STV(yr, i, fma((LDV(xr, i) - m) * r, LDV(gamma, i), LDV(beta, i)));
    for (ulong k = i; k < n && k < i + VW; k++) ST(yr, k, fma((LD(xr, k) - m) * r, LD(gamma, k), LD(beta, k)));
    if (get_local_id(0) == 0) mean[row] = m;
#else
    for (; i + VW <= n; i += WG * VW) STV(yr, i, LDV(xr, i) * r * LDV(gamma, i));
    for (ulong k = i; k < n && k < i + VW; k++) ST(yr, k, LD(xr, k) * r * LD(gamma, k));
#endif
    if (get_local_id(0) == 0) rstd[row] = r;
  }
}

/* Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma and xhat = (x - mean) * rstd, without mean(g) if CENTER is 0.
 * dgamma = sum(dy * xhat), dbeta = sum(dy). */
__kernel void norm_bwd(__global const T *restrict x, __global const T *restrict gamma, __global const T *restrict dy,
#if RESIDUAL_GRAD
                       __global const T *restrict residual_grad,
#endif
#if CENTER
                       __global const float *restrict mean,
#endif
                       __global const float *restrict rstd, __global T *restrict dx, __global float *restrict part_gamma,
#if CENTER
                       __global float *restrict part_beta,
#endif
                       ulong rows, ulong n) {
  GROUP_SCRATCH(scratch);
  const ulong per = (rows + get_num_groups(0) - 1) / get_num_groups(0), begin = get_group_id(0) * per;
  const ulong end = min(rows, begin + per), l = get_local_id(0) * VW;
  __global float *sg = part_gamma + get_group_id(0) * n;
#if CENTER
  __global float *sb = part_beta + get_group_id(0) * n;
#endif
  for (ulong i = l; i < n; i += WG * VW) {
    for (ulong k = i; k < n && k < i + VW; k++) {
      sg[k] = 0.0f;
#if CENTER
      sb[k] = 0.0f;
#endif
    }
  }
  for (ulong row = begin; row < end; row++) {
    __global const T *xr = x + row * n, *dyr = dy + row * n;
    __global T *dxr = dx + row * n;
#if RESIDUAL_GRAD
    __global const T *residual_grad_row = residual_grad + row * n;
#define ADD_PASTV(i) +LDV(residual_grad_row, i)
#define ADD_PAST(i) +LD(residual_grad_row, i)
#else
#define ADD_PASTV(i)
#define ADD_PAST(i)
#endif
    const float r = rstd[row];
#if CENTER
    const float m = mean[row];
#else
    const float m = 0.0f;
#endif
    FV g_a = (FV)(0.0f), g_b = g_a, gx_a = g_a, gx_b = g_a;
    ulong i = l;
    for (; i + (WG + 1) * VW <= n; i += 2 * WG * VW) {
      const FV a = LDV(dyr, i) * LDV(gamma, i), b = LDV(dyr, i + WG * VW) * LDV(gamma, i + WG * VW);
      g_a += a;
      g_b += b;
      gx_a = fma(a, LDV(xr, i) - m, gx_a);
      gx_b = fma(b, LDV(xr, i + WG * VW) - m, gx_b);
    }
    for (; i + VW <= n; i += WG * VW) {
      const FV a = LDV(dyr, i) * LDV(gamma, i);
      g_a += a;
      gx_a = fma(a, LDV(xr, i) - m, gx_a);
    }
    float sum_g = sum_lanes(g_a + g_b), sum_gx = sum_lanes(gx_a + gx_b);
    for (ulong k = i; k < n && k < i + VW; k++) {
      const float a = LD(dyr, k) * LD(gamma, k);
      sum_g += a;
      sum_gx = fma(a, LD(xr, k) - m, sum_gx);
    }
#if CENTER
    const float mean_g = GROUP_SUM(scratch, sum_g) / (float)n;
#else
    const float mean_g = 0.0f;
#endif
    const float mean_gx = GROUP_SUM(scratch, sum_gx) * r / (float)n;
    for (i = l; i + VW <= n; i += WG * VW) {
      const FV d = LDV(dyr, i), xhat = (LDV(xr, i) - m) * r;
      STV(dxr, i, r * (d * LDV(gamma, i) - mean_g - xhat * mean_gx) ADD_PASTV(i));
      STV_F32(sg + i, fma(d, xhat, LDV_F32(sg + i)));
#if CENTER
      STV_F32(sb + i, d + LDV_F32(sb + i));
#endif
    }
    for (ulong k = i; k < n && k < i + VW; k++) {
      const float d = LD(dyr, k), xhat = (LD(xr, k) - m) * r;
      ST(dxr, k, r * (d * LD(gamma, k) - mean_g - xhat * mean_gx) ADD_PAST(k));
      sg[k] = fma(d, xhat, sg[k]);
#if CENTER
      sb[k] += d;
#endif
    }
  }
}

static inline FV load_columns(__global const float *p, ulong lanes) {
  if (lanes == VW) return LDV_F32(p);
  float part[VW];
  for (uint k = 0; k < VW; k++) part[k] = k < lanes ? p[k] : 0.0f;
  return LDV_F32(part);
}

__kernel void norm_bwd_params(__global const float *restrict part_gamma,
#if CENTER
                              __global const float *restrict part_beta, __global T *restrict dgamma,
                              __global T *restrict dbeta,
#else
                              __global T *restrict dgamma,
#endif
                              ulong parts, ulong n) {
  COLUMN_SCRATCH(scratch);
  const ulong column = get_global_id(0) * VW, lanes = column < n ? min(n - column, (ulong)VW) : 0;
  FV g = (FV)(0.0f), b = g;
  for (ulong p = get_local_id(1); p < parts && lanes > 0; p += get_local_size(1)) {
    g += load_columns(part_gamma + p * n + column, lanes);
#if CENTER
    b += load_columns(part_beta + p * n + column, lanes);
#endif
  }
  g = COLUMN_SUM(scratch, g);
#if CENTER
  b = COLUMN_SUM(scratch, b);
#endif
  if (get_local_id(1) > 0) return;
  store_part(dgamma + column, g, lanes);
#if CENTER
  store_part(dbeta + column, b, lanes);
#endif
}
