/* Batch norm on GPUs, over x (R, C): a group owns a strip of TX vectors of columns and a part of the rows, TY of them at a time. Sums are f32.
 *
 * strip_stats(x, part_mean, part_m2, ..)             mean of a column over the rows of part s, and the sum of squared distances from it.
 * strip_stats_join(part_mean, part_m2, gamma, mean, var, rstd, scale, ..)   over all rows: mean, variance (divided by R), 1 / sqrt(variance + eps),
 *                                                    and that times gamma.
 * strip_moments(part_mean, part_m2, found, ..)        over all rows: mean and variance, found (2, C).
 * strip_apply(x, mean, scale, beta, y, ..)           y = activation((x - mean) * scale + beta).
 * strip_grad_sums(x, dy, mean, rstd, scale, beta, part_dy, part_xdy, ..)   sums over the rows of part s of g and of g * (x - mean) * rstd; g is dy
 *                                                    if the activation of (x - mean) * scale + beta passes it, otherwise 0.
 * strip_grad_join(part_dy, part_xdy, rstd, scale, b, dgamma, dbeta, of_dy, slope, ..)   over all rows: both sums, in T; of_dy the mean of g, slope
 *                                                    b - scale * rstd * mean of g * (x - mean) * rstd.
 * strip_dx(x, dy, mean, scale, beta, of_dy, slope, c, dx, ..)   dx = (g - of_dy) * scale + (x - mean) * slope + c.
 *
 * x, dy, y, dx, gamma, beta, dgamma, dbeta T; all others float, (parts, C) or (C). Part s has rows s * each to (s + 1) * each. Groups (strips,
 * parts) of WG = TX * TY items. The two kernels that join parts have few columns per group, so that many items share a column's parts.
 * Defines: DTYPE, VW a divisor of C, TX, ACT 0 none, 1 relu, 2 relu6; EXTRA: b and c are read, otherwise they are 0.
 *
 * Design: means and distances are joined as in Chan, Golub and LeVeque 1983, four rows at a time in registers, then over items and parts in
 * fixed trees: every run gives the same bits.
 * Ceiling: the bytes of x, and of dy and results.
 */
#ifndef TX
#define TX 1
#endif
#ifndef ACT
#define ACT 0
#endif
#ifndef EXTRA
#define EXTRA 0
#endif
#define TY (WG / TX)
#if ACT == 1
#define ACTIVE(y) ((y) < 0.0f ? (FV)(0.0f) : (y))
#define PASSED(y, g) ((y) <= 0.0f ? (FV)(0.0f) : (g))
#elif ACT == 2
#define ACTIVE(y) ((y) < 0.0f ? (FV)(0.0f) : (y) > 6.0f ? (FV)(6.0f) : (y))
#define PASSED(y, g) ((y) > 0.0f && (y) < 6.0f ? (g) : (FV)(0.0f))
#else
#define ACTIVE(y) (y)
#endif
#if ALIGNED_VECTORS
#define COLUMN(p) LDVA_F32((p) + at)
#define PUT(p, v) STVA_F32((p) + at, v)
#else
#define COLUMN(p) LDV_F32((p) + at)
#define PUT(p, v) STV_F32((p) + at, v)
#endif
#define PLACE                                                                                             \
  const int tx = get_local_id(0) % TX, ty = get_local_id(0) / TX;                                         \
  const long at = ((long)get_group_id(0) * TX + tx) * VW;                                                 \
  const int there = at < c;
#define ROWS const long begin = get_group_id(1) * each, end = min(rows, begin + each);

/* Joins n rows of mean m and squared distances d with `more` other rows. */
#define JOIN(n, m, d, more, other_m, other_d)                                                             \
  {                                                                                                       \
    const float all_ = (n) + (more), share_ = (more) / all_;                                              \
    const FV away_ = (other_m) - (m);                                                                     \
    /* In this order nothing overflows if n is 0. */                                                      \
    d += (other_d) + away_ * ((n) * share_) * away_;                                                      \
    /* The mean of infinities of one sign is infinite, and so is the mean of further rows with them. */   \
    m += fabs(away_) < INFINITY ? away_ * share_ : (FV)(other_m);                                         \
    n = all_;                                                                                             \
  }
/* Joins the items of a column. */
#define JOIN_ITEMS(n, m, d)                                                                               \
  __local FV means[WG], squares[WG];                                                                      \
  __local float counts[WG];                                                                               \
  for (int half_ = TY / 2; half_ > 0; half_ /= 2) {                                                       \
    means[get_local_id(0)] = m, squares[get_local_id(0)] = d, counts[get_local_id(0)] = n;                \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
    const int other_ = get_local_id(0) + half_ * TX;                                                      \
    if (ty < half_ && counts[other_] > 0.0f) JOIN(n, m, d, counts[other_], means[other_], squares[other_]) \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
  }
#define ADD_ITEMS(a, b)                                                                                   \
  __local FV firsts[WG], seconds[WG];                                                                     \
  for (int half_ = TY / 2; half_ > 0; half_ /= 2) {                                                       \
    firsts[get_local_id(0)] = a, seconds[get_local_id(0)] = b;                                            \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
    if (ty < half_) a += firsts[get_local_id(0) + half_ * TX], b += seconds[get_local_id(0) + half_ * TX]; \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
  }

__kernel void strip_stats(__global const T *restrict x, __global float *restrict part_mean, __global float *restrict part_m2, long rows,
                          int c, long each) {
  PLACE
  ROWS
  FV m = (FV)(0.0f), d = m;
  float n = 0.0f;
  if (there) {
    long r = begin + ty;
    for (; r + 3 * TY < end; r += 4 * TY) {
      FV v[4];
      for (int i = 0; i < 4; ++i) v[i] = LDV(x, (r + i * TY) * c + at);
      const FV mean = ((v[0] + v[1]) + (v[2] + v[3])) * 0.25f;
      FV apart = (FV)(0.0f);
      for (int i = 0; i < 4; ++i) apart = fma(v[i] - mean, v[i] - mean, apart);
      JOIN(n, m, d, 4.0f, mean, apart)
    }
    for (; r < end; r += TY) JOIN(n, m, d, 1.0f, LDV(x, r * c + at), (FV)(0.0f))
  }
  JOIN_ITEMS(n, m, d)
  if (there && ty == 0) {
    part_mean += get_group_id(1) * c, part_m2 += get_group_id(1) * c;
    PUT(part_mean, m);
    PUT(part_m2, d);
  }
}

/* Joins the parts of a column over its items. */
#define JOIN_PARTS(n, m, d)                                                                               \
  FV m = (FV)(0.0f), d = m;                                                                               \
  float n = 0.0f;                                                                                         \
  if (there) {                                                                                            \
    for (int s = ty; s < parts; s += 4 * TY) {                                                            \
      FV means_[4], squares_[4];                                                                          \
      for (int i = 0; i < 4; ++i) {                                                                       \
        const long part = min(s + i * TY, parts - 1);                                                     \
        means_[i] = COLUMN(part_mean + part * c), squares_[i] = COLUMN(part_m2 + part * c);               \
      }                                                                                                   \
      for (int i = 0; i < 4; ++i) {                                                                       \
        const long first = (s + i * TY) * each;                                                           \
        if (s + i * TY < parts) JOIN(n, m, d, (float)(min(rows, first + each) - first), means_[i], squares_[i]) \
      }                                                                                                   \
    }                                                                                                     \
  }                                                                                                       \
  JOIN_ITEMS(n, m, d)

__kernel void strip_stats_join(__global const float *restrict part_mean, __global const float *restrict part_m2,
                               __global const T *restrict gamma, __global float *restrict mean, __global float *restrict var,
                               __global float *restrict rstd, __global float *restrict scale, long rows, int c, long each, int parts,
                               float eps) {
  PLACE
  JOIN_PARTS(n, m, d)
  if (there && ty == 0) {
    const FV v = d / n, r = 1.0f / sqrt(v + eps);
    PUT(mean, m);
    PUT(var, v);
    PUT(rstd, r);
    PUT(scale, r * LDV(gamma, at));
  }
}

__kernel void strip_moments(__global const float *restrict part_mean, __global const float *restrict part_m2,
                            __global float *restrict found, long rows, int c, long each, int parts) {
  PLACE
  JOIN_PARTS(n, m, d)
  if (there && ty == 0) {
    PUT(found, m);
    PUT(found + c, d / n);
  }
}

__kernel void strip_apply(__global const T *restrict x, __global const float *restrict mean, __global const float *restrict scale,
                          __global const T *restrict beta, __global T *restrict y, long rows, int c, long each) {
  PLACE
  ROWS
  if (!there) return;
  const FV m = COLUMN(mean), k = COLUMN(scale), b = LDV(beta, at);
  long r = begin + ty;
  for (; r + 3 * TY < end; r += 4 * TY) {
    FV v[4];
    for (int i = 0; i < 4; ++i) v[i] = LDV(x, (r + i * TY) * c + at);
    for (int i = 0; i < 4; ++i) {
      const FV z = fma(v[i] - m, k, b);
      STV(y, (r + i * TY) * c + at, ACTIVE(z));
    }
  }
  for (; r < end; r += TY) {
    const FV z = fma(LDV(x, r * c + at) - m, k, b);
    STV(y, r * c + at, ACTIVE(z));
  }
}

#if ACT
#define PASS(g, away) g = PASSED(fma(away, k, shift), g);
#else
#define PASS(g, away)
#endif

__kernel void strip_grad_sums(__global const T *restrict x, __global const T *restrict dy, __global const float *restrict mean,
                              __global const float *restrict rstd, __global const float *restrict scale, __global const T *restrict beta,
                              __global float *restrict part_dy, __global float *restrict part_xdy, long rows, int c, long each) {
  PLACE
  ROWS
  FV a = (FV)(0.0f), b = a;
  if (there) {
    const FV m = COLUMN(mean), k = COLUMN(scale), shift = LDV(beta, at);
    long r = begin + ty;
    for (; r + 3 * TY < end; r += 4 * TY) {
      FV v[4], g[4];
      for (int i = 0; i < 4; ++i) v[i] = LDV(x, (r + i * TY) * c + at), g[i] = LDV(dy, (r + i * TY) * c + at);
      for (int i = 0; i < 4; ++i) {
        const FV away = v[i] - m;
        PASS(g[i], away)
        a += g[i];
        b = fma(g[i], away, b);
      }
    }
    for (; r < end; r += TY) {
      const FV away = LDV(x, r * c + at) - m;
      FV g = LDV(dy, r * c + at);
      PASS(g, away)
      a += g;
      b = fma(g, away, b);
    }
    b *= COLUMN(rstd);
  }
  ADD_ITEMS(a, b)
  if (there && ty == 0) {
    part_dy += get_group_id(1) * c, part_xdy += get_group_id(1) * c;
    PUT(part_dy, a);
    PUT(part_xdy, b);
  }
}

__kernel void strip_grad_join(__global const float *restrict part_dy, __global const float *restrict part_xdy,
                              __global const float *restrict rstd, __global const float *restrict scale, __global const float *restrict extra,
                              __global T *restrict dgamma, __global T *restrict dbeta, __global float *restrict of_dy,
                              __global float *restrict slope, int c, int parts, float share) {
  PLACE
  FV a = (FV)(0.0f), b = a;
  if (there) {
    for (int s = ty; s < parts; s += 4 * TY) {
      FV sums[4], products[4];
      for (int i = 0; i < 4; ++i) {
        const int inside = s + i * TY < parts;
        sums[i] = inside ? COLUMN(part_dy + (long)(s + i * TY) * c) : (FV)(0.0f);
        products[i] = inside ? COLUMN(part_xdy + (long)(s + i * TY) * c) : (FV)(0.0f);
      }
      for (int i = 0; i < 4; ++i) a += sums[i], b += products[i];
    }
  }
  ADD_ITEMS(a, b)
  if (there && ty == 0) {
    STV(dbeta, at, a);
    STV(dgamma, at, b);
    PUT(of_dy, share * a);
    FV before = (FV)(0.0f);
#if EXTRA
    before = COLUMN(extra);
#endif
    PUT(slope, fma(-COLUMN(scale) * COLUMN(rstd), share * b, before));
  }
}

__kernel void strip_dx(__global const T *restrict x, __global const T *restrict dy, __global const float *restrict mean,
                       __global const float *restrict scale, __global const T *restrict beta, __global const float *restrict of_dy,
                       __global const float *restrict slope, __global const float *restrict extra, __global T *restrict dx, long rows,
                       int c, long each) {
  PLACE
  ROWS
  if (!there) return;
  const FV m = COLUMN(mean), k = COLUMN(scale), shift = LDV(beta, at), less = COLUMN(of_dy), steep = COLUMN(slope);
  FV more = (FV)(0.0f);
#if EXTRA
  more = COLUMN(extra);
#endif
  long r = begin + ty;
  for (; r + TY < end; r += 2 * TY) {
    FV v[2], g[2];
    for (int i = 0; i < 2; ++i) v[i] = LDV(x, (r + i * TY) * c + at), g[i] = LDV(dy, (r + i * TY) * c + at);
    for (int i = 0; i < 2; ++i) {
      const FV away = v[i] - m;
      PASS(g[i], away)
      STV(dx, (r + i * TY) * c + at, fma(g[i] - less, k, fma(away, steep, more)));
    }
  }
  if (r < end) {
    const FV away = LDV(x, r * c + at) - m;
    FV g = LDV(dy, r * c + at);
    PASS(g, away)
    STV(dx, r * c + at, fma(g - less, k, fma(away, steep, more)));
  }
}
