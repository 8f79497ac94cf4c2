/* Product of few rows for CPUs. B is read once, and everything else stays in cache; matmul_gemv_ends.cl has the formula.
 *
 * One work-item is a work-group and owns `per` columns of C, a multiple of LINES. It keeps A in f32 in local memory, normalized if requested. It
 * processes LINES columns at a time: with B_ALONG_K up to four adjacent lines of B, each along k; otherwise vectors of adjacent columns in
 * registers, one k after the other. The order of a sum depends on neither the number of groups nor the number of cores.
 *
 * a         T; element (i, k) at a_off + i*a_rs + k*a_cs
 * b         T; element (k, j) at b_off + k*b_rs + j*b_cs; b_rs is 1 with B_ALONG_K 1, otherwise b_cs is 1
 * bias      T (N), or (2N) with GATED; read when flags has BIAS
 * c         T (M, N), dense
 * gamma, beta  T (K), with NORM, and eps
 * residual  T (M, N), with RESIDUAL
 * x         local, M * K floats
 * Groups    ceil(n / per), local size 1.
 *
 * Design: a matrix-vector product with a register block of rows, as BLIS's fused dotxf and axpyf (Van Zee and van de Geijn 2015).
 * Ceiling: memory bandwidth, with B read once.
 */
#if B_ALONG_K
/* Lines processed together, and vectors of each that are being loaded: enough sums for additions to overlap. */
#define SIDE (M == 1 ? 4 : M == 2 ? 2 : 1)
#define STEPS (M == 1 ? 2 : M <= 4 ? 2 : 1)
#define LINES 16
#else
/* Accumulators and operands fill the registers: 32 of AVX-512, 16 of others. */
#define NV (VW == 16 ? (24 / M < 12 ? 24 / M : 12) : (12 / M < 6 ? (12 / M > 0 ? 12 / M : 1) : 6))
#define LINES (NV * VW)
#endif
#define SUMS (M * LINES)

#if B_ALONG_K
/* Computes sums[i*LINES + j] of `side` lines from b on. */
__attribute__((always_inline)) static inline void sum_side(float *sums, __local const float *x, __global const B_T *b, int k, long b_cs,
                                                           const int side) {
  FV acc[M][SIDE][STEPS];
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < side; ++j) UNROLL for (int u = 0; u < STEPS; ++u) acc[i][j][u] = (FV)(0.0f);
  }
  int at = 0;
#define STEP_OF_SUM(u)                                                                                          \
  UNROLL for (int j = 0; j < side; ++j) {                                                                       \
    const FV w = LINE(b + j * b_cs, at + (u) * VW);                                                             \
    UNROLL for (int i = 0; i < M; ++i) acc[i][j][(u) % STEPS] = fma(LDV_F32(x + (size_t)i * k + at + (u) * VW), w, acc[i][j][(u) % STEPS]); \
  }
#if QUANT
  /* Whole groups of 32: the bit positions of each vector are constants, and shared values are read once. */
  for (int group = 0; group < k / 32; ++group) {
    at = 32 * group;
    UNROLL for (int u = 0; u < 32 / VW; ++u) STEP_OF_SUM(u)
  }
#else
  for (; at + STEPS * VW <= k; at += STEPS * VW) {
    UNROLL for (int u = 0; u < STEPS; ++u) STEP_OF_SUM(u)
  }
  for (; at + VW <= k; at += VW) STEP_OF_SUM(0)
#endif
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < side; ++j) {
      FV all = acc[i][j][0];
      UNROLL for (int u = 1; u < STEPS; ++u) all += acc[i][j][u];
      float sum = sum_lanes(all);
#if !QUANT /* whose lines are whole blocks */
      for (int l = at; l < k; ++l) sum = fma(x[(size_t)i * k + l], LD(b + j * b_cs, l), sum);
#endif
      sums[i * LINES + j] = sum;
    }
  }
}

static inline void sum_lines(float *sums, __local const float *x, __global const B_T *b, int lines, int k, long b_rs, long b_cs) {
  int j = 0;
  for (; j + SIDE <= lines; j += SIDE) sum_side(sums + j, x, b + j * b_cs, k, b_cs, SIDE);
  for (; j < lines; ++j) sum_side(sums + j, x, b + j * b_cs, k, b_cs, 1);
}
#else
/* Computes sums[i*LINES + j] of `vectors` vectors of columns from b on. */
__attribute__((always_inline)) static inline void sum_vectors(float *sums, __local const float *x, __global const T *b, int k, long b_rs,
                                                              const int vectors) {
  FV acc[M][NV];
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < vectors; ++j) acc[i][j] = (FV)(0.0f);
  }
  for (int l = 0; l < k; ++l, b += b_rs) {
    FV w[NV];
    UNROLL for (int j = 0; j < vectors; ++j) w[j] = LDV(b, j * VW);
    UNROLL for (int i = 0; i < M; ++i) {
      const FV by = (FV)(x[(size_t)i * k + l]);
      UNROLL for (int j = 0; j < vectors; ++j) acc[i][j] = fma(by, w[j], acc[i][j]);
    }
  }
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < vectors; ++j) STV_F32(sums + i * LINES + j * VW, acc[i][j]);
  }
}

static inline void sum_lines(float *sums, __local const float *x, __global const T *b, int lines, int k, long b_rs, long b_cs) {
  if (lines == LINES) {
    sum_vectors(sums, x, b, k, b_rs, NV);
    return;
  }
  int j = 0;
  for (; j + VW <= lines; j += VW) sum_vectors(sums + j, x, b + j, k, b_rs, 1);
  for (; j < lines; ++j) {
    for (int i = 0; i < M; ++i) {
      float sum = 0.0f;
      for (int l = 0; l < k; ++l) sum = fma(x[(size_t)i * k + l], LD(b, l * b_rs + j), sum);
      sums[i * LINES + j] = sum;
    }
  }
}
#endif

__kernel void matmul_gemv(__global const T *restrict a, __global const B_T *restrict b, __global const T *restrict bias,
                          __global T *restrict c, __local float *restrict x, long a_off, long b_off, int n, int k, long a_rs, long a_cs,
                          long b_rs, long b_cs, int per, float alpha, int flags NORM_ARGS RESIDUAL_ARG STACK_ARGS) {
  const int first = get_group_id(0) * per, end = min(n, first + per);
  b += b_off;
#if STACK
  const ulong row_of_c = get_group_id(1);
  const uint id = ids[row_of_c];
  a += row_of_c / slots * a_rs;
  b += id * (ulong)n * PARTS * b_cs;
  c += row_of_c * n;
  if (id >= matrices) {
    for (int j = first; j < end; ++j) ST(c, j, 0.0f);
    return;
  }
#endif
  for (int i = 0; i < M; ++i) STAGE_ROW(x + (size_t)i * k, a + a_off + i * a_rs);
  for (int n0 = first; n0 < end; n0 += LINES) {
    const int lines = min(LINES, end - n0);
    float sums[SUMS];
    if (lines < LINES) {
      for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    }
    sum_lines(sums, x, b + n0 * b_cs, lines, k, b_rs, b_cs);
#if GATED
    float values[SUMS];
    if (lines < LINES) {
      for (int i = 0; i < SUMS; ++i) values[i] = 0.0f;
    }
    sum_lines(values, x, b + (n + n0) * b_cs, lines, k, b_rs, b_cs);
#define VALUES values
#else
#define VALUES sums
#endif
    for (int i = 0; i < M; ++i) {
#if SWAPPED
      for (int j = 0; j < lines; ++j) END_ELEMENT(sums[i * LINES + j], 0.0f, i, n0 + j, AT(i, n0 + j));
#else
      for (int j = 0; j < lines; j += VW) {
        const ulong at = (ulong)i * n + n0 + j, lanes = min(VW, lines - j);
        END_VECTOR(LDV_F32(sums + i * LINES + j), LDV_F32(VALUES + i * LINES + j), n0 + j, at, lanes);
      }
#endif
    }
  }
}
