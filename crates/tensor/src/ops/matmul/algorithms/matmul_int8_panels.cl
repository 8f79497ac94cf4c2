/* Product by quantized rows for CPUs, in integers. Activations are rounded to bytes while they are staged, and codes are multiplied by codes.
 * matmul_gemv_ends.cl has the formula.
 *
 * One work-item is a work-group and owns `per` columns of C, in whole panels of 16. It processes M rows of A at a time. Each row is normalized
 * if requested and rounded in groups of 32, x = d * q with q = round(x / d), d = max |x| / 127 (Jacob et al. 2018). Then every panel is read
 * once for all of them. A lane is a column: nothing is added across lanes, and the order of a sum depends neither on M nor on the number of
 * groups. The products of codes in a group of 32 are added exactly, as int.
 *
 * a         T; element (i, k) at a_off + i*a_rs + k*a_cs, `rows` rows; a NaN or an infinity makes the results of its row NaN
 * b         panels of blocks (quant/panels.rs); a line has b_cs bytes
 * bias      T (N), or (2N) with GATED; read when flags has BIAS
 * c         T; element (i, j) at c_off + i*c_rs + j
 * gamma, beta  T (K), with NORM, and eps
 * residual  T, with RESIDUAL, at the positions of c
 * row       local, K floats
 * xs        local, M * (K bytes, K / 32 floats, K / SUB ints)
 * Groups    ceil(n / per), local size 1. With SORTED, matrices have whole panels. Dimension 1 then has E + 1 groups, each with the rows of a
 *           matrix; the last one has the rows without a matrix.
 *
 * Defines: those of matmul_gemv_ends.cl and of quant/codes.cl, with PANELS 1 and VW 16.
 *
 * Design: lanes of columns, as a register block of BLIS (Van Zee and van de Geijn 2015), with dot products of four bytes.
 * Ceiling: memory bandwidth, with B read once for M rows.
 */

/* Distance of prefetches, in bytes. */
#define DISTANCE 8192

/* Initial value of a group's sum, or the value that its minimum is multiplied by. */
#if LOW
typedef float START;
#else
typedef int START;
#endif

/* Rounds a row's K elements to codes, and computes the scales and the sums of the codes. */
static inline void round_row(__local char *codes, __local float *d, __local START *start, __local const float *row, int k) {
  for (int j = 0; j < k / 32; ++j) {
    const float16 u = vload16(0, row + 32 * j), v = vload16(0, row + 32 * j + 16);
    /* Magnitudes of floats have the order of their bits, and NaNs are above all of them. */
    const uint16 both = max(as_uint16(u) & 0x7fffffffu, as_uint16(v) & 0x7fffffffu);
    const uint8 eight = max(both.lo, both.hi);
    const uint4 four = max(eight.lo, eight.hi);
    const uint most = max(max(four.x, four.y), max(four.z, four.w));
    const int finite = most < 0x7f800000u;
    /* Below 2^-100 all elements become zero, since the factor must be finite. */
    const float top = finite && most >= 0x0d800000u ? as_float(most) : 0.0f;
    const float by = top > 0.0f ? 127.0f / top : 0.0f;
    /* The bits of the float 3 * 2^22 + x are those of 3 * 2^22, plus x rounded to the nearest even integer. */
    const int16 p = as_int16(fma(finite ? u : (float16)(0.0f), (float16)(by), (float16)(12582912.0f))) - 0x4b400000;
    const int16 q = as_int16(fma(finite ? v : (float16)(0.0f), (float16)(by), (float16)(12582912.0f))) - 0x4b400000;
    *(__local char16 *)(codes + 32 * j) = convert_char16(p);
    *(__local char16 *)(codes + 32 * j + 16) = convert_char16(q);
    const float scale = finite ? top / 127.0f : NAN;
    d[j] = scale;
    const int8 p8 = p.lo + p.hi, q8 = q.lo + q.hi;
    const int4 p4 = p8.lo + p8.hi, q4 = q8.lo + q8.hi;
    const int ps = p4.x + p4.y + p4.z + p4.w, qs = q4.x + q4.y + q4.z + q4.w;
#if LOW && HALVES == 2
    start[2 * j] = scale * (float)ps;
    start[2 * j + 1] = scale * (float)qs;
#elif LOW
    start[j] = scale * (float)(ps + qs);
#elif HALVES == 2
    start[2 * j] = -ZERO * ps;
    start[2 * j + 1] = -ZERO * qs;
#else
    start[j] = -ZERO * (ps + qs);
#endif
  }
}

/* Computes acc[i], the sums of 16 columns for row i. */
__attribute__((always_inline)) static inline void sum_panel(F *acc, __local const char *xs, __local const float *d, __local const START *start,
                                                            BLOCK_AT b, int k) {
  UNROLL for (int i = 0; i < M; ++i) acc[i] = (F)(0.0f);
  for (int block = 0; block < k / BLOCK; ++block, b += PANEL_ROWS * BYTES) {
    /* Prefetches farther ahead than hardware prefetchers do. */
    UNROLL for (int line = 0; line < PANEL_ROWS * BYTES; line += 64) AHEAD(b + DISTANCE + line);
#if BLOCK == 32
    const int g = 0, j = block;
    {
#elif M == 1
    /* Processes the groups of a block together, so that bit positions are constants. */
    UNROLL for (int g = 0; g < BLOCK / 32; ++g) {
      const int j = block * (BLOCK / 32) + g;
#else
    for (int g = 0; g < BLOCK / 32; ++g) {
      const int j = block * (BLOCK / 32) + g;
#endif
      I sum[M][2];
      UNROLL for (int i = 0; i < M; ++i) {
        UNROLL for (int h = 0; h < 2; ++h) sum[i][h] = LOW || h >= HALVES ? (I)(0) : (I)(convert_int(start[(i * k / 32 + j) * HALVES + h]));
      }
      UNROLL for (int w = 0; w < 8; ++w) {
        const U four = codes(b, g, w);
        UNROLL for (int i = 0; i < M; ++i)
          sum[i][w / 4] = dot4(sum[i][w / 4], four, ((__local const int *)(xs + i * k + 32 * j))[w]);
      }
      UNROLL for (int h = 0; h < HALVES; ++h) {
        const F by = scale(b, g, h);
#if LOW
        const F from = low(b, g, h);
#endif
        UNROLL for (int i = 0; i < M; ++i) {
          const F of = TO_F(HALVES == 2 ? sum[i][h] : sum[i][0] + sum[i][1]);
          acc[i] = fma(of, by * d[i * k / 32 + j], acc[i]);
#if LOW
          acc[i] = fma(from, (F)(start[(i * k / 32 + j) * HALVES + h]), acc[i]);
#endif
        }
      }
    }
  }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void matmul_int8(
    __global const T *restrict a, __global const uchar *restrict b, __global const T *restrict bias, __global T *restrict c,
    __local float *restrict row, __local char *restrict xs, long a_off, long c_off, int rows, int n, int k, long a_rs, long a_cs, long b_cs,
    long c_rs, int per, float alpha, int flags NORM_ARGS RESIDUAL_ARG SORTED_ARGS) {
  const int first = get_group_id(0) * per, end = min(n, first + per);
  __local float *d = (__local float *)(xs + (size_t)M * k);
  __local START *start = (__local START *)(d + M * k / 32);
  int row_first = 0;
#if SORTED
  const int e = get_group_id(1);
  row_first = offsets[e];
  if (e == matrices) {
    for (int i = row_first; i < rows; ++i)
      for (int j = first; j < end; ++j) ST(c, c_off + i * c_rs + j, 0.0f);
    return;
  }
  rows = offsets[e + 1];
  b += (ulong)e * n * PARTS * b_cs;
#endif
  for (int row0 = row_first; row0 < rows; row0 += M) {
    for (int i = 0; i < M; ++i) {
      /* Rows past the end repeat the last one. Their sums are not stored. */
      STAGE_ROW(row, a + a_off + LINE_OF_A(min(row0 + i, rows - 1)) * a_rs);
      round_row(xs + (size_t)i * k, d + i * k / 32, start + i * k / SUB, row, k);
    }
    for (int n0 = first; n0 < end; n0 += PANEL_ROWS) {
      F sums[M];
      sum_panel(sums, xs, d, start, b + n0 * b_cs, k);
#if GATED
      /* The values' columns start at the first column of a panel only if N is a multiple of a panel. */
      const int value0 = n + n0, within = value0 % PANEL_ROWS;
      F values[M];
      sum_panel(values, xs, d, start, b + (value0 - within) * b_cs, k);
      if (within) {
        F next[M];
        const int more = value0 - within + PANEL_ROWS < 2 * n;
        if (more) sum_panel(next, xs, d, start, b + (value0 - within + PANEL_ROWS) * b_cs, k);
        for (int i = 0; i < M; ++i) {
          float both[2 * PANEL_ROWS];
          vstore16(values[i], 0, both);
          vstore16(more ? next[i] : values[i], 1, both);
          values[i] = vload16(0, both + within);
        }
      }
#define VALUES values
#else
#define VALUES sums
#endif
      const ulong lanes = min(PANEL_ROWS, n - n0);
      for (int i = 0; i < M && row0 + i < rows; ++i) {
        const ulong at = c_off + (row0 + i) * c_rs + n0;
        END_VECTOR(sums[i], VALUES[i], n0, at, lanes);
      }
    }
  }
}
