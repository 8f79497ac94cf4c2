/* Shared parts of the kernels for products with few rows: sizes, and how a finished sum becomes an element of C.
 *
 *   C = act(alpha * norm(A) B + bias) (* value | + C | + residual),   A (M, K), B (K, N), C (M, N); sums in f32
 *
 * Defines: M rows of A and C, 1 to 16. B_ALONG_K 1: B's stride along k is 1 (its lines are columns), 0: along n.
 * NORM      0: A unchanged, 1: root-mean-square norm of its rows (Zhang and Sennrich 2019), 2: layer norm (Ba et al. 2016).
 * UNIT      with NORM: the factor is 1 + gamma.
 * ACT       -1: no activation, otherwise as in activation.cl. GATED 1: B has 2N columns, N of the gate and N of the value; the result is the
 *           activation of the gate times the value. The bias has 2N elements too.
 * RESIDUAL  1: residual (M, N) T, dense, is added last.
 * SWAPPED   1: the product is the transpose of the requested one, whose few columns are rows here: element (i, j) is at j*M + i of C,
 *           and the bias has one element per row. Neither GATED nor ACT.
 * STACK     1: B is a stack of matrices (E, N, K), or (E, 2N, K) with GATED, with lines along k. M is 1, and dimension 1 of the groups
 *           counts the rows of C. Row r of C is row r / slots of A times matrix ids[r], zero if ids[r] is not below `matrices` (E).
 * SORTED    1: B is such a stack, and rows are sorted by matrix: offsets (E + 1) are the first row of each matrix, then the first row
 *           without a matrix. Rows without one become zero; tiles (.., 2) are a matrix and the first of at most TILE_ROWS rows of it, or twice ~0.
 *           Row r of A is line lines_of_a[r] with GATHER 1, otherwise line r.
 * QUANT     not 0: B's lines along k are rows of quantized blocks (quant/unpack.cl); strides and offset of B are in bytes.
 * flags     ADD_C: adds to C. BIAS: adds the bias.
 */
#ifndef M
#define M 1
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 1
#endif
#ifndef NORM
#define NORM 0
#endif
#ifndef UNIT
#define UNIT 0
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef QUANT
#define QUANT 0
#endif
#ifndef SWAPPED
#define SWAPPED 0
#endif
#ifndef STACK
#define STACK 0
#endif
#ifndef SORTED
#define SORTED 0
#endif
#ifndef GATHER
#define GATHER 0
#endif
#define AT(row, column) (SWAPPED ? (ulong)(column) * M + (row) : (ulong)(row) * n + (column))
#define BIAS_OF(row, column) (SWAPPED ? (row) : (column))
/* Element type of B, and loads of VW elements of one of its lines along k. */
#if QUANT
typedef uchar B_T;
#define LINE(line, at) unpack((line), (at))
#else
typedef T B_T;
#define LINE(line, at) LDV((line), (at))
#endif
#define ADD_C 1
#define BIAS 2
#define UNROLL _Pragma("unroll")
/* Sums per line of C: one, or those of the gate and the value. */
#define PARTS (GATED ? 2 : 1)

#if NORM == 2
#define NORM_ARGS , __global const T *restrict gamma, __global const T *restrict beta, float eps
#define SHIFT(i) LDV(beta, i)
#define SHIFT_1(i) LD(beta, i)
#elif NORM == 1
#define NORM_ARGS , __global const T *restrict gamma, float eps
#define SHIFT(i) (FV)(0.0f)
#define SHIFT_1(i) 0.0f
#else
#define NORM_ARGS
#endif
#if STACK
#define STACK_ARGS , __global const uint *restrict ids, uint matrices, uint slots
#else
#define STACK_ARGS
#endif
#if SORTED
#define SORTED_ARGS \
  , __global const uint *restrict lines_of_a, __global const uint *restrict offsets, __global const uint *restrict tiles, int matrices
#else
#define SORTED_ARGS
#endif
#if GATHER
#define LINE_OF_A(r) lines_of_a[r]
#else
#define LINE_OF_A(r) (r)
#endif
#if RESIDUAL
#define RESIDUAL_ARG , __global const T *restrict residual
#define RESIDUAL_OR_C residual
#else
#define RESIDUAL_ARG
#define RESIDUAL_OR_C c
#endif

/* Returns sum / n, rounded about once. Divisions on GPUs may be off by 2.5 ulp, and in a row of equal elements 1 / sqrt(eps) multiplies this
 * error. */
static inline float mean_of(float sum, float n) {
  const float mean = sum / n;
  return fma(fma(-mean, n, sum), 1.0f / n, mean);
}

/* Returns the element of C for these sums. */
#if ACT >= 0
static inline AV activated(AV x) {
  AV slope;
  return activation(x, &slope);
}
#else
#define activated(x) (x)
#endif

#if WG == 1
/* Stages a row of A as floats and, if requested, applies its norm. */
static inline void stage_row(__local float *row, __global const T *from, int k, long a_cs NORM_ARGS) {
  int j = 0;
  if (a_cs == 1) {
    for (; j + VW <= k; j += VW) STV_F32(row + j, LDV(from, j));
  }
  for (; j < k; ++j) row[j] = LD(from, j * a_cs);
#if NORM
  FV sums = (FV)(0.0f);
  float mean = 0.0f, sum = 0.0f;
#if NORM == 2
  for (j = 0; j + VW <= k; j += VW) sums += LDV_F32(row + j);
  for (; j < k; ++j) sum += row[j];
  mean = mean_of(sum + sum_lanes(sums), (float)k);
  sums = (FV)(0.0f), sum = 0.0f;
#endif
  for (j = 0; j + VW <= k; j += VW) {
    const FV d = LDV_F32(row + j) - mean;
    sums = fma(d, d, sums);
  }
  for (; j < k; ++j) sum = fma(row[j] - mean, row[j] - mean, sum);
  const float by = 1.0f / sqrt((sum + sum_lanes(sums)) / (float)k + eps);
  for (j = 0; j + VW <= k; j += VW)
    STV_F32(row + j, fma((LDV_F32(row + j) - mean) * by, LDV(gamma, j) + (float)UNIT, SHIFT(j)));
  for (; j < k; ++j) row[j] = fma((row[j] - mean) * by, LD(gamma, j) + (float)UNIT, SHIFT_1(j));
#endif
}
#if NORM == 2
#define STAGE_ROW(row, from) stage_row(row, from, k, a_cs, gamma, beta, eps)
#elif NORM == 1
#define STAGE_ROW(row, from) stage_row(row, from, k, a_cs, gamma, eps)
#else
#define STAGE_ROW(row, from) stage_row(row, from, k, a_cs)
#endif

/* Computes elements `at` .. at + lanes - 1 of C, of columns `column` .., from their sums and, with GATED, those of the values. */
#define GET(p, i) (whole ? LDV(p, i) : load_part((p) + (i), lanes))
#define END_VECTOR(sums, values, column, at, lanes)                      \
  do {                                                                   \
    const int whole = (lanes) == VW;                                     \
    FV v = alpha * (sums);                                               \
    if (flags & BIAS) v += GET(bias, column);                            \
    v = activated(v);                                                    \
    if (GATED) {                                                         \
      FV u = alpha * (values);                                           \
      if (flags & BIAS) u += GET(bias, n + (column));                    \
      v *= u;                                                            \
    }                                                                    \
    if (flags & ADD_C) v += GET(c, at);                                  \
    if (RESIDUAL) v += GET(RESIDUAL_OR_C, at);                           \
    if (whole) STV(c, at, v);                                            \
    else store_part(c + (at), v, lanes);                                 \
  } while (0)
#elif NORM
/* Computes mean and factor of each row of A. */
static inline void measure(float *mean, float *by, __local float *scratch, __global const T *a, int k, long a_rs, long a_cs, float eps) {
  for (int i = 0; i < M; ++i) {
    __global const T *row = a + i * a_rs;
    float sum = 0.0f, squares = 0.0f, m = 0.0f;
#if NORM == 2
    for (int j = get_local_id(0); j < k; j += WG) sum += LD(row, j * a_cs);
    m = mean_of(GROUP_SUM(scratch, sum), (float)k);
#endif
    for (int j = get_local_id(0); j < k; j += WG) {
      const float d = LD(row, j * a_cs) - m;
      squares = fma(d, d, squares);
    }
    mean[i] = m;
    by[i] = 1.0f / sqrt(GROUP_SUM(scratch, squares) / (float)k + eps);
  }
}
#endif

/* Stores element (row, column) of C, at `at`, from its sum and, with GATED, the sum of its value. */
#define END_ELEMENT(sum, value, row, column, at)                                                          \
  do {                                                                                                    \
    float v = alpha * (sum);                                                                              \
    if (flags & BIAS) v += LD(bias, BIAS_OF(row, column));                                                \
    v = activated(v);                                                                                     \
    if (GATED) v *= flags & BIAS ? fma(alpha, (value), LD(bias, n + (column))) : alpha * (value);         \
    if (flags & ADD_C) v += LD(c, at);                                                                    \
    if (RESIDUAL) v += LD(RESIDUAL_OR_C, at);                                                             \
    ST(c, at, v);                                                                                         \
  } while (0)
