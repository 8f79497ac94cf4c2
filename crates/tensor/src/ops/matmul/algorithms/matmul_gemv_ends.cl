/* What both texts of products with few rows share: sizes, and how a finished sum becomes an element of C.
 *
 *   C = act(alpha * norm(A) B + bias) (* value | + C | + residual),   A (M, K), B (K, N), C (M, N); sums in f32
 *
 * Defines: M rows of A and C, 1 to 8. B_ALONG_K 1: B's stride along k is 1 (its lines are columns), 0: along n.
 * NORM      0: A as it is, 1: root mean square norm of its rows (Zhang and Sennrich 2019), 2: layer norm (Ba et al. 2016).
 * UNIT      with NORM: the factor is 1 + gamma.
 * ACT       -1: none, else as in activation.cl. GATED 1: B has 2N columns, those of the gate and N further those of the value that
 *           the gate's activation is multiplied by; so does the bias.
 * RESIDUAL  1: residual (M, N) T, dense, is added last.
 * QUANT     not 0: B's lines along k are rows of quantised blocks (quant/unpack.cl); strides and offset of B count bytes.
 * flags     ADD_C: C is added to. BIAS: bias is.
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
/* What B points to, and VW elements of one of its lines along k. */
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
/* Sums of a line of C: one, or the gate's and the value's. */
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
#if RESIDUAL
#define RESIDUAL_ARG , __global const T *restrict residual
#else
#define RESIDUAL_ARG
#endif

/* sum / n, rounded about once: GPUs' division may be 2.5 ulp off, and a row of equal elements multiplies that by 1 / sqrt(eps). */
static inline float mean_of(float sum, float n) {
  const float mean = sum / n;
  return fma(fma(-mean, n, sum), 1.0f / n, mean);
}

/* The element of C that these sums make. */
#if ACT >= 0
static inline AV activated(AV x) {
  AV slope;
  return activation(x, &slope);
}
#else
#define activated(x) (x)
#endif
