/* Statistics of the columns of x (R, C) in parts of the rows, for batch norm. Sums are f32.
 *
 * batch_stats(x, part_mean, part_m2, ..)             mean of a column over the rows of part s, and the sum of squared distances from it.
 * batch_join(part_mean, part_m2, mean, var, ..)      of all rows: the mean, and the variance (divided by R).
 * batch_grad_sums(x, dy, mean, rstd, part_dy, part_xdy, ..)   sums over the rows of part s of dy and of dy * (x - mean) * rstd.
 * x, dy T; part_mean, part_m2, part_dy, part_xdy (parts, C) float; mean, var, rstd (C) float. Part s has rows s * each to (s + 1) * each.
 * Items of dimension 0 take every get_global_size(0)-th vector of columns, those of dimension 1 parts. Tuned: VW, WG.
 *
 * Design: two passes over a part, which the cache serves the second time; parts are joined as in Chan, Golub and LeVeque 1983.
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

__kernel void batch_stats(__global const T *restrict x, __global float *restrict part_mean, __global float *restrict part_m2,
                          long rows, int c, int parts, long each) {
  FOR_ROWS(s, parts, 1) {
    const long begin = s * each, end = min(rows, begin + each);
    EACH_VECTOR {
      FV a = (FV)(0.0f), b = a;
      long r = begin;
      for (; r + 1 < end; r += 2) {
        a += COLUMNS(x + r * c, at);
        b += COLUMNS(x + (r + 1) * c, at);
      }
      if (r < end) a += COLUMNS(x + r * c, at);
      const FV mean = (a + b) / (float)(end - begin);
      a = b = (FV)(0.0f);
      for (r = begin; r + 1 < end; r += 2) {
        const FV p = COLUMNS(x + r * c, at) - mean, q = COLUMNS(x + (r + 1) * c, at) - mean;
        a = fma(p, p, a);
        b = fma(q, q, b);
      }
      if (r < end) {
        const FV p = COLUMNS(x + r * c, at) - mean;
        a = fma(p, p, a);
      }
      STORE(part_mean + s * c, mean)
      STORE(part_m2 + s * c, a + b)
    }
  }
}

__kernel void batch_join(__global const float *restrict part_mean, __global const float *restrict part_m2,
                         __global float *restrict mean, __global float *restrict var, long rows, int c, int parts, long each) {
  EACH_VECTOR {
    FV m = floats(part_mean, at, c), m2 = floats(part_m2, at, c);
    float n = (float)min(rows, each);
    for (int s = 1; s < parts; ++s) {
      const float more = (float)(min(rows, (s + 1) * each) - s * each), all = n + more;
      const FV away = floats(part_mean + (long)s * c, at, c) - m;
      m2 += floats(part_m2 + (long)s * c, at, c) + away * away * (n * (more / all));
      m += away * (more / all);
      n = all;
    }
    STORE(mean, m)
    STORE(var, m2 / n)
  }
}

__kernel void batch_grad_sums(__global const T *restrict x, __global const T *restrict dy, __global const float *restrict mean,
                              __global const float *restrict rstd, __global float *restrict part_dy,
                              __global float *restrict part_xdy, long rows, int c, int parts, long each) {
  FOR_ROWS(s, parts, 1) {
    const long begin = s * each, end = min(rows, begin + each);
    EACH_VECTOR {
      const FV m = floats(mean, at, c), scale = floats(rstd, at, c);
      FV a = (FV)(0.0f), b = a;
      for (long r = begin; r < end; ++r) {
        const FV g = COLUMNS(dy + r * c, at);
        a += g;
        b = fma(g, (COLUMNS(x + r * c, at) - m) * scale, b);
      }
      STORE(part_dy + s * c, a)
      STORE(part_xdy + s * c, b)
    }
  }
}
