/* Statistics of the columns of x (R, C) in parts of the rows, for batch norm. Sums are f32.
 *
 * batch_stats(x, part_mean, part_m2, ..)             mean of a column over the rows of part s, and the sum of squared distances from it.
 * batch_join(part_mean, part_m2, mean, var, ..)      over all rows: the mean, and the variance (divided by R).
 * batch_moments(part_mean, part_m2, found, ..)       the same, found (2, C).
 * batch_grad_sums(x, dy, mean, rstd, scale, beta, part_dy, part_xdy, ..)   sums over the rows of part s of g and of g * (x - mean) * rstd; g is dy
 *                                                    if the activation of (x - mean) * scale + beta passes it, otherwise 0.
 * x, dy T; part_mean, part_m2, part_dy, part_xdy (parts, C) float; mean, var, rstd, scale, beta (C) float. Part s has rows s * each to
 * (s + 1) * each, taken `block` at a time: on CPUs as many as fit in the first-level cache. Defines: ACT 0 none, 1 relu, 2 relu6.
 * Items of dimension 0 process every get_global_size(0)-th vector of columns, those of dimension 1 parts. Tuned: VW, WG.
 *
 * Design: two passes over a block, which the cache serves the second time; blocks and parts are joined as in Chan, Golub and LeVeque 1983.
 * Ceiling: x read once.
 */
#define EACH_VECTOR for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW)
#define COLUMNS(p, at) ((at) + VW <= (ulong)c ? LDV(p, at) : load_part((p) + (at), c - (at)))
#define STORE(to, v)                                                        \
  {                                                                         \
    float lanes[VW];                                                        \
    STV_F32(lanes, v);                                                      \
    for (int k = 0; k < VW && at + k < (ulong)c; ++k) (to)[at + k] = lanes[k]; \
  }
static inline FV floats(__global const float *p, ulong at, int c) {
  float lanes[VW];
  for (int k = 0; k < VW; ++k) lanes[k] = at + k < (ulong)c ? p[at + k] : 0.0f;
  return LDV_F32(lanes);
}

#ifndef ACT
#define ACT 0
#endif
#if ACT == 1
#define PASSED(y, g) ((y) <= 0.0f ? (FV)(0.0f) : (g))
#elif ACT == 2
#define PASSED(y, g) ((y) > 0.0f && (y) < 6.0f ? (g) : (FV)(0.0f))
#endif

__kernel void batch_stats(__global const T *restrict x, __global float *restrict part_mean, __global float *restrict part_m2,
                          long rows, int c, int parts, long each, long block) {
  FOR_ROWS(s, parts, 1) {
    const long begin = s * each, end = min(rows, begin + each);
    __global float *means = part_mean + s * c, *squares = part_m2 + s * c;
    for (long first = begin; first < end; first += block) {
      const long last = min(end, first + block);
      EACH_VECTOR {
        FV a = (FV)(0.0f), b = a;
        long r = first;
        for (; r + 1 < last; r += 2) {
          a += COLUMNS(x + r * c, at);
          b += COLUMNS(x + (r + 1) * c, at);
        }
        if (r < last) a += COLUMNS(x + r * c, at);
        const float n = (float)(last - first), before = (float)(first - begin), share = n / (n + before);
        FV mean = (a + b) / n;
        a = b = (FV)(0.0f);
        for (r = first; r + 1 < last; r += 2) {
          const FV p = COLUMNS(x + r * c, at) - mean, q = COLUMNS(x + (r + 1) * c, at) - mean;
          a = fma(p, p, a);
          b = fma(q, q, b);
        }
        if (r < last) {
          const FV p = COLUMNS(x + r * c, at) - mean;
          a = fma(p, p, a);
        }
        a += b;
        if (first > begin) {
          const FV m = floats(means, at, c), away = mean - m;
          a += floats(squares, at, c) + away * away * (before * share);
          mean = m + away * share;
        }
        STORE(means, mean)
        STORE(squares, a)
      }
    }
  }
}

/* Computes the mean m of columns over all rows, and the sum m2 of squared distances of n rows from it. */
#define JOIN_PARTS(m, m2, n)                                                                       \
  FV m = floats(part_mean, at, c), m2 = floats(part_m2, at, c);                                    \
  float n = (float)min(rows, each);                                                                \
  for (int s = 1; s < parts; ++s) {                                                                \
    const float more = (float)(min(rows, (s + 1) * each) - s * each), all = n + more;              \
    const FV away = floats(part_mean + (long)s * c, at, c) - m;                                    \
    m2 += floats(part_m2 + (long)s * c, at, c) + away * away * (n * (more / all));                 \
    m += away * (more / all);                                                                      \
    n = all;                                                                                       \
  }

__kernel void batch_join(__global const float *restrict part_mean, __global const float *restrict part_m2,
                         __global float *restrict mean, __global float *restrict var, long rows, int c, int parts, long each, long block) {
  EACH_VECTOR {
    JOIN_PARTS(m, m2, n)
    STORE(mean, m)
    STORE(var, m2 / n)
  }
}

__kernel void batch_moments(__global const float *restrict part_mean, __global const float *restrict part_m2,
                            __global float *restrict found, long rows, int c, int parts, long each, long block) {
  EACH_VECTOR {
    JOIN_PARTS(m, m2, n)
    STORE(found, m)
    STORE(found + c, m2 / n)
  }
}

__kernel void batch_grad_sums(__global const T *restrict x, __global const T *restrict dy, __global const float *restrict mean,
                              __global const float *restrict rstd, __global const float *restrict scale,
                              __global const float *restrict beta, __global float *restrict part_dy, __global float *restrict part_xdy,
                              long rows, int c, int parts, long each, long block) {
  FOR_ROWS(s, parts, 1) {
    const long begin = s * each, end = min(rows, begin + each);
    __global float *sums = part_dy + s * c, *products = part_xdy + s * c;
    for (long first = begin; first < end; first += block) {
      const long last = min(end, first + block);
      EACH_VECTOR {
        const FV m = floats(mean, at, c), to_unit = floats(rstd, at, c);
#if ACT
        const FV to_y = floats(scale, at, c), shift = floats(beta, at, c);
#endif
        FV a = (FV)(0.0f), b = a;
        if (first > begin) {
          a = floats(sums, at, c);
          b = floats(products, at, c);
        }
        for (long r = first; r < last; ++r) {
          FV g = COLUMNS(dy + r * c, at);
          const FV away = COLUMNS(x + r * c, at) - m;
#if ACT
          g = PASSED(fma(away, to_y, shift), g);
#endif
          a += g;
          b = fma(g, away * to_unit, b);
        }
        STORE(sums, a)
        STORE(products, b)
      }
    }
  }
}
