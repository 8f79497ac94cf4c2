/* Reads and writes elements by index along an axis.
 *
 * Tensors are seen as (O, N, I) around the axis; ids (O, M, I) uint are indices below N. Invalid indices are skipped.
 *
 * gather(x, ids, y, O, N, M, I)               y[o, m, i] = x[o, ids[o, m, i], i], NaN for an invalid index, 0 with ZERO.  x (O, N, I), y (O, M, I) T.
 * add_lines(ids, source, sums, ..)            sums[o, ids[o, m, i], i] += source[o, m, i] for m in order.         source T, sums (O, N, I) float.
 * winner_lines(ids, won, ..)                  won[o, ids[o, m, i], i] = m + 1 for m in order.                      won (O, N, I) uint.
 * add_runs(keys, order, source, sums, ..)     the same sums; keys (O, I, M) uint are the sorted ids, order their original positions.
 * winner_runs(keys, order, won, ..)           the same numbers in won.
 * pick(x, source, won, y, ..)                 y[o, n, i] = won > 0 ? source[o, won - 1, i] : x[o, n, i].
 * won_grad(dy, ids, won, dsource, ..)         dsource[o, m, i] = dy[o, n, i] if won[o, n, i] is m + 1, n = ids[o, m, i], otherwise 0.
 *
 * Items of the `lines` kernels own one line (o, i) each: nothing is atomic, and additions are in the order of m. Items of the `runs` kernels own
 * a run of equal keys, for few long lines. Items of the other kernels process elements in turn. Sums are float. Tuned: WG.
 */
#if defined(ZERO) && ZERO
#define OUTSIDE 0.0f
#else
#define OUTSIDE NAN
#endif
#define ELEMENTS(count) FOR_ROWS(e, count, 0)

__kernel void gather(__global const T *restrict x, __global const uint *restrict ids, __global T *restrict y, ulong outer, ulong n,
                     ulong m, ulong inner) {
  ELEMENTS(outer * m * inner) {
    const ulong o = e / (m * inner), i = e % inner;
    const uint id = ids[e];
    ST(y, e, id < n ? LD(x, (o * n + id) * inner + i) : OUTSIDE);
  }
}

__kernel void add_lines(__global const uint *restrict ids, __global const T *restrict source, __global float *restrict sums, ulong outer,
                        ulong n, ulong m, ulong inner) {
  FOR_ROWS(line, outer * inner, 0) {
    const ulong o = line / inner, i = line % inner;
    for (ulong k = 0; k < m; k++) {
      const ulong at = (o * m + k) * inner + i;
      const uint id = ids[at];
      if (id < n) sums[(o * n + id) * inner + i] += LD(source, at);
    }
  }
}

__kernel void winner_lines(__global const uint *restrict ids, __global uint *restrict won, ulong outer, ulong n, ulong m, ulong inner) {
  FOR_ROWS(line, outer * inner, 0) {
    const ulong o = line / inner, i = line % inner;
    for (ulong k = 0; k < m; k++) {
      const uint id = ids[(o * m + k) * inner + i];
      if (id < n) won[(o * n + id) * inner + i] = (uint)k + 1;
    }
  }
}

__kernel void add_runs(__global const uint *restrict keys, __global const uint *restrict order, __global const T *restrict source,
                       __global float *restrict sums, ulong outer, ulong n, ulong m, ulong inner) {
  ELEMENTS(outer * inner * m) {
    const ulong line = e / m, o = line / inner, i = line % inner;
    const uint id = keys[e];
    if (id >= n || (e % m > 0 && keys[e - 1] == id)) continue;
    const ulong to = (o * n + id) * inner + i, end = (line + 1) * m;
    float sum = sums[to];
    for (ulong k = e; k < end && keys[k] == id; k++) sum += LD(source, (o * m + order[k]) * inner + i);
    sums[to] = sum;
  }
}

__kernel void winner_runs(__global const uint *restrict keys, __global const uint *restrict order, __global uint *restrict won,
                          ulong outer, ulong n, ulong m, ulong inner) {
  ELEMENTS(outer * inner * m) {
    const ulong line = e / m, o = line / inner, i = line % inner;
    const uint id = keys[e];
    if (id >= n || (e % m + 1 < m && keys[e + 1] == id)) continue;
    won[(o * n + id) * inner + i] = order[e] + 1;
  }
}

__kernel void pick(__global const T *restrict x, __global const T *restrict source, __global const uint *restrict won,
                   __global T *restrict y, ulong outer, ulong n, ulong m, ulong inner) {
  ELEMENTS(outer * n * inner) {
    const ulong o = e / (n * inner), i = e % inner;
    const uint k = won[e];
    ST(y, e, k > 0 ? LD(source, (o * m + k - 1) * inner + i) : LD(x, e));
  }
}

__kernel void won_grad(__global const T *restrict dy, __global const uint *restrict ids, __global const uint *restrict won,
                       __global T *restrict dsource, ulong outer, ulong n, ulong m, ulong inner) {
  ELEMENTS(outer * m * inner) {
    const ulong o = e / (m * inner), i = e % inner, k = e / inner % m;
    const uint id = ids[e];
    const ulong at = (o * n + id) * inner + i;
    ST(dsource, e, id < n && won[at] == k + 1 ? LD(dy, at) : 0.0f);
  }
}
