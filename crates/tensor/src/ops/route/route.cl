/* Router of a sparse mixture of experts: the K largest of a row's E logits, their softmax, and the loss that balances the experts' load.
 *
 * p = softmax(logits) over all E of a row. An expert is chosen if fewer than K logits of its row come before its own: larger ones, and equal
 * ones with a lower index. A NaN is larger than any number and -0 equals 0, so a row always has K different ids.
 *
 * route_fwd      logits (R, E) T → weights (R, K) T, ids (R, K) uint, the largest first. RENORM 1: weights are p over the sum of the
 *                row's K, otherwise p.
 * route_bwd      logits, ids, dweights (R, K) T → dlogits (R, E) T
 * balance_count  logits → part (groups, 2, E) float: rows that chose each expert, and sums of p; group g has rows g*per … g*per+per-1
 * balance_sum    part → share (E) float: rows that chose each expert over R; loss (1) float: E * sum of share * mean p
 * balance_bwd    logits, share, dloss (1) float → dlogits: share is a constant
 *
 * A work-group of (X, Y) items processes Y rows at a time, X items per row (1 x 1 on CPUs); an item owns experts x, x + X, … of its row. Sums
 * over a row start at expert 0 in every item, and sums over rows and parts are in order. Arithmetic is float. balance_sum: one group.
 * Defines: DTYPE, E, K, RENORM, X, Y, and WG of balance_sum.
 *
 * Design: top-K routing as in Mixtral (arXiv:2401.04088), the balance loss of Switch Transformers (Fedus et al. 2021, arXiv:2101.03961).
 * Ceiling: logits read and results written once; the products of the experts take a thousand times as long.
 */
#ifndef E
#define E 8
#endif
#ifndef K
#define K 2
#endif
#ifndef RENORM
#define RENORM 0
#endif
#ifndef X
#define X 1
#endif
#ifndef Y
#define Y 1
#endif
#define FOR_OWN(e) for (uint e = get_local_id(0); e < E; e += X)

/* Maps a float to an unsigned key of the same order; every NaN is the largest key, and -0 equals 0. */
static inline uint key_of(float v) {
  const uint u = as_uint(v == 0.0f ? 0.0f : v);
  return isnan(v) ? 0xffffffffu : (u >> 31 ? ~u : u | 0x80000000u);
}

/* Returns the number of logits that come before that of expert e. */
static inline uint rank_of(__local const uint *keys, uint e) {
  uint before = 0;
  for (uint i = 0; i < E; i++) before += keys[i] > keys[e] || (keys[i] == keys[e] && i < e);
  return before;
}

/* Computes exponentials of a row's logits relative to its maximum into p and, if keys is not 0, their keys. Whole groups call it; missing rows
 * are 0. */
static inline void exponentials(__local float *p, __local uint *keys, __global const T *x, int inside) {
  barrier(CLK_LOCAL_MEM_FENCE);
  FOR_OWN(e) {
    const float v = inside ? LD(x, e) : 0.0f;
    p[e] = v;
    if (keys) keys[e] = key_of(v);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float top = p[0];
  for (uint e = 1; e < E; e++) top = fmax(top, p[e]);
  barrier(CLK_LOCAL_MEM_FENCE);
  FOR_OWN(e) p[e] = exp(p[e] - top);
  barrier(CLK_LOCAL_MEM_FENCE);
}

static inline float sum_of(__local const float *p) {
  float sum = 0.0f;
  for (uint e = 0; e < E; e++) sum += p[e];
  return sum;
}

/* Rows of a group from `from` on. Whole groups iterate together, since they use barriers. */
#define FOR_ROWS_TOGETHER(from, to, step) \
  for (ulong first = (from), row = first + get_local_id(1); first < (to); first += (step), row += (step))

__kernel void route_fwd(__global const T *restrict logits, __global T *restrict weights, __global uint *restrict ids, ulong rows) {
  __local float exps[Y * E], best[Y * K];
  __local uint all_keys[Y * E];
  __local float *p = exps + get_local_id(1) * E, *chosen = best + get_local_id(1) * K;
  __local uint *keys = all_keys + get_local_id(1) * E;
  FOR_ROWS_TOGETHER(get_group_id(0) * Y, rows, get_num_groups(0) * Y) {
    const int inside = row < rows;
    exponentials(p, keys, logits + row * E, inside);
    FOR_OWN(e) {
      const uint rank = rank_of(keys, e);
      if (rank < K) {
        chosen[rank] = p[e];
        if (inside) ids[row * K + rank] = e;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0.0f;
    if (RENORM) for (uint k = 0; k < K; k++) sum += chosen[k];
    else sum = sum_of(p);
    if (inside) for (uint k = get_local_id(0); k < K; k += X) ST(weights, row * K + k, chosen[k] / sum);
  }
}

__kernel void route_bwd(__global const T *restrict logits, __global const uint *restrict ids, __global const T *restrict dweights,
                        __global T *restrict dlogits, ulong rows) {
  __local float exps[Y * E];
  __local float *p = exps + get_local_id(1) * E;
  FOR_ROWS_TOGETHER(get_group_id(0) * Y, rows, get_num_groups(0) * Y) {
    const int inside = row < rows;
    exponentials(p, 0, logits + row * E, inside);
    if (inside) {
      __global const uint *id = ids + row * K;
      __global const T *dw = dweights + row * K;
      float sum = 0.0f, mean = 0.0f;
      if (RENORM) for (uint k = 0; k < K; k++) sum += p[id[k]];
      else sum = sum_of(p);
      for (uint k = 0; k < K; k++) mean = fma(LD(dw, k), p[id[k]] / sum, mean);
      FOR_OWN(e) {
        float d = 0.0f;
        int is_chosen = 0;
        for (uint k = 0; k < K; k++)
          if (id[k] == e) d = LD(dw, k), is_chosen = 1;
        /* Experts that were not chosen do not contribute to the renormalized weights; 0 times a value that is not finite is NaN. */
        const float share = RENORM && !is_chosen ? 0.0f : p[e] / sum;
        ST(dlogits, row * E + e, share * (d - mean));
      }
    }
  }
}

__kernel void balance_count(__global const T *restrict logits, __global float *restrict part, ulong rows, ulong per) {
  __local float exps[Y * E], sums[Y * 2 * E];
  __local uint all_keys[Y * E];
  const uint y = get_local_id(1);
  __local float *p = exps + y * E, *counts = sums + y * 2 * E, *masses = counts + E;
  __local uint *keys = all_keys + y * E;
  const ulong begin = get_group_id(0) * per, end = min(rows, begin + per);
  FOR_OWN(e) counts[e] = masses[e] = 0.0f;
  FOR_ROWS_TOGETHER(begin, end, Y) {
    exponentials(p, keys, logits + row * E, row < end);
    const float sum = sum_of(p);
    FOR_OWN(e) {
      if (row < end) {
        counts[e] += rank_of(keys, e) < K ? 1.0f : 0.0f;
        masses[e] += p[e] / sum;
      }
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = y * X + get_local_id(0); i < 2 * E; i += X * Y) {
    float total = 0.0f;
    for (uint k = 0; k < Y; k++) total += sums[k * 2 * E + i];
    part[get_group_id(0) * 2 * E + i] = total;
  }
}

__kernel void balance_sum(__global const float *restrict part, __global float *restrict share, __global float *restrict loss, ulong parts,
                          ulong rows) {
  GROUP_SCRATCH(scratch);
  float sum = 0.0f;
  for (uint e = get_local_id(0); e < E; e += WG) {
    float count = 0.0f, mass = 0.0f;
    for (ulong i = 0; i < parts; i++) {
      count += part[(i * 2) * E + e];
      mass += part[(i * 2 + 1) * E + e];
    }
    share[e] = count / rows;
    sum += count / rows * (mass / rows);
  }
  sum = GROUP_SUM(scratch, sum);
  if (get_local_id(0) == 0) loss[0] = E * sum;
}

__kernel void balance_bwd(__global const T *restrict logits, __global const float *restrict share, __global const float *restrict dloss,
                          __global T *restrict dlogits, ulong rows) {
  __local float exps[Y * E];
  __local float *p = exps + get_local_id(1) * E;
  const float scale = dloss[0] * E / rows;
  FOR_ROWS_TOGETHER(get_group_id(0) * Y, rows, get_num_groups(0) * Y) {
    exponentials(p, 0, logits + row * E, row < rows);
    if (row < rows) {
      const float sum = sum_of(p);
      float mean = 0.0f;
      for (uint e = 0; e < E; e++) mean = fma(share[e], p[e] / sum, mean);
      FOR_OWN(e) ST(dlogits, row * E + e, p[e] / sum * (scale * (share[e] - mean)));
    }
  }
}
