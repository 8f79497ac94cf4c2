/* Building blocks of generated kernels' expressions: loads by storage type, functions, the end of a row. FV is a vector of VW floats.
 *
 * IN_Vd(p, i), IN_1d(p, i)   load a vector, or one value, at element i; d is the storage type: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32, 5 a mask
 * OUT_V, OUT_VA              store a vector in the type OUT; OUT_VA at a multiple of VW elements
 * ROUNDEDd(v)                v rounded to the storage type d
 * tanh_of, sigmoid, silu, gelu (exact), gelu_tanh, and silu_grad, gelu_grad, gelu_tanh_grad   FV -> FV
 * normal(x, e)               distribution function of the normal distribution at x, with e = exp(-x^2 / 2)
 * LANES(x, LOAD)             declares x, a vector with LOAD(k) in the first `lanes` lanes and 0 in the others
 *
 * CHUNKED  1 on CPUs: each work-item owns one contiguous range; 0 on GPUs: a grid-stride loop.
 * Defines: VW, OUT, ALIGNED_VECTORS and NVIDIA_CC of the prelude.
 */
#ifndef CHUNKED
#define CHUNKED 1
#endif

/* Private arrays of VW floats. */
#define LOADN(p) LDV_F32(p)
#define STOREN(v, p) STV_F32(p, v)

/* Vector (IN_V) and single (IN_1) loads by storage type: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32, 5 a mask. */
#if ALIGNED_VECTORS && VW > 1
#define IN_V0(p, i) LDVA_F32((p) + (i))
#define IN_V1(p, i) LDVA_F16((p) + (i))
#define IN_V2(p, i) LDVA_BF16((p) + (i))
#define IN_V5(p, i) LDVA_MASK((p) + (i))
#if OUT == 0
#define OUT_VA(p, i, v) STVA_F32((p) + (i), (v))
#elif OUT == 1
#define OUT_VA(p, i, v) STVA_F16((p) + (i), (v))
#elif OUT == 2
#define OUT_VA(p, i, v) STVA_BF16((p) + (i), (v))
#elif OUT == 5
#define OUT_VA(p, i, v) STVA_MASK((p) + (i), (v))
#else
#define OUT_VA OUT_V
#endif
#else
#define IN_V0(p, i) LDV_F32((p) + (i))
#define IN_V1(p, i) LDV_F16((p) + (i))
#define IN_V2(p, i) LDV_BF16((p) + (i))
#define IN_V5(p, i) LDV_MASK((p) + (i))
#define OUT_VA OUT_V
#endif
#define IN_10(p, i) ((p)[i])
#define IN_11(p, i) vload_half((i), (p))
#define IN_12(p, i) of_bf16((p)[i])
#define IN_V3(p, i) TO_FV(LDV_F32((p) + (i)))
#define IN_13(p, i) ((float)(p)[i])
#define IN_V4(p, i) TO_FV(LDV_F32((p) + (i)))
#define IN_14(p, i) ((float)(p)[i])
#define IN_15(p, i) of_mask((p)[i])

/* ROUNDEDd: values rounded to storage type d. */
#if VW == 1
static inline float ROUNDED1(float v) {
  ushort h; /* a variable of type half would need cl_khr_fp16 */
  vstore_half_rte(v, 0, (half *)&h);
  return vload_half(0, (const half *)&h);
}
static inline float ROUNDED2(float v) { return of_bf16(bf16_of(v)); }
#else
static inline FV ROUNDED1(FV v) { return f16_values(f16_rounded(v)); }
static inline FV ROUNDED2(FV v) { return AS_FV(TO_UV(bf16_rounded(v)) << 16); }
#endif
#define ROUNDED0(v) (v)
#define ROUNDED3(v) TO_FV(TO_IV(rint(v)))
#define ROUNDED4(v) TO_FV(TO_UV(rint(v)))
#define ROUNDED5(v) ((v) != (FV)(0.0f) ? (FV)(1.0f) : (FV)(0.0f))

/* Functions for expressions. GELU computes tanh from one exponential: 0.5 (1 + tanh u) = sigmoid(2u). */
#define GELU_TANH_U(x) (1.59576912f * ((x) + 0.044715f * (x) * (x) * (x)))
#if NVIDIA_CC && (OUT == 1 || OUT == 2)
/* For results that are rounded to 16 bits, hardware approximations to 2^-22 are accurate enough, and the kernel stays memory-bound. */
#define OVER(x, y) ((x) * native_recip(y))
#define OVER_ONE_PLUS(x, e) OVER(x, 1.0f + (e))
static inline FV tanh_of(FV x) {
  const FV square = x * x, near = x * fma(square, fma(square, (FV)(0.13333333f), (FV)(-0.33333333f)), (FV)(1.0f));
  const FV far = 1.0f - OVER(2.0f, 1.0f + EXP(2.0f * fabs(x)));
  return fabs(x) < 0.1f ? near : copysign(far, x);
}
/* The normal distribution at x, where e = exp(-x^2 / 2). Its tail is e times a polynomial in t = 1 / (1 + 0.44 |x| / sqrt 2),
 * fitted to a relative error of 5e-6 and accurate to that in both tails. */
static inline FV normal(FV x, FV e) {
  const FV t = OVER(1.0f, fma(fabs(x), (FV)(0.31112698f), (FV)(1.0f)));
  FV tail = fma(t, (FV)(-0.07305089f), (FV)(0.17532104f));
  tail = fma(t, tail, (FV)(0.02037083f));
  tail = fma(t, tail, (FV)(0.13179065f));
  tail = fma(t, tail, (FV)(0.12128534f));
  tail = e * t * fma(t, tail, (FV)(0.12428046f));
  return x < 0.0f ? tail : 1.0f - tail;
}
#else
#define OVER(x, y) ((x) / (y))
#if CHUNKED
#define OVER_ONE_PLUS(x, e) ((x) / (1.0f + (e)))
/* CPUs: a driver's tanh takes two divisions, and its erf computes one lane at a time. Here one exponential is a polynomial times 2^m.
 * m is added to the exponent bits. It is found by adding 1.5 * 2^23, which rounds to an integer in the last bits. Coefficients are minimax
 * fits: those of low powers were rounded to f32 first and the others fitted again. Errors were counted over all floats and over -7 to 7.
 *
 * tanh: 1.5 ulp at most, 0.32 root mean square (x + x^3 p(x^2) below 0.55, 1 - 2e / (1 + e) for e = exp(-2 |x|) above). */
static inline FV tanh_of(FV x) {
  const FV size = fabs(x), t = size > 10.0f ? (FV)(10.0f) : size, y = x * x;
  const FV shifted = fma(t, (FV)(-2.88539008f), (FV)(12582912.0f)), m = shifted - 12582912.0f;
  const FV r = fma(m, (FV)(-0.69314718f), -2.0f * t);
  FV p = fma(r, (FV)(1.3814613e-3f), (FV)(8.3687101e-3f));
  p = fma(p, r, (FV)(4.1668389e-2f));
  p = fma(p, r, (FV)(1.6666521e-1f));
  p = fma(p, r, (FV)(4.9999994e-1f));
  p = 1.0f + fma(p * r, r, r);
  const FV e = AS_FV(AS_UV(p) + (AS_UV(shifted) << 23));
  FV q = fma(y, (FV)(-6.2742410e-3f), (FV)(2.1071680e-2f));
  q = fma(q, y, (FV)(-5.3852309e-2f));
  q = fma(q, y, (FV)(1.3332586e-1f));
  q = fma(q, y, (FV)(-3.3333316e-1f));
  return copysign(t > 0.55f ? 1.0f - 2.0f * e / (1.0f + e) : fma(q * y, size, size), x);
}
/* The normal distribution at x: its tail is 2^(q(|x|) - 1) for a polynomial q, and 0 beyond 6. Error 6.3e-8 at most. */
static inline FV normal_at(FV x) {
  const FV t = fabs(x);
  FV q = fma(t, (FV)(-2.9094208e-8f), (FV)(8.6797668e-7f));
  q = fma(q, t, (FV)(-1.1074829e-5f));
  q = fma(q, t, (FV)(7.7019366e-5f));
  q = fma(q, t, (FV)(-2.8093744e-4f));
  q = fma(q, t, (FV)(4.6662993e-7f));
  q = fma(q, t, (FV)(6.9495416e-3f));
  q = fma(q, t, (FV)(-5.2445255e-2f));
  q = fma(q, t, (FV)(-4.5921892e-1f));
  q = fma(q, t, (FV)(-1.1511045f));
  const FV shifted = fma(q, t, (FV)(12582911.0f)), r = fma(q, t, 12582911.0f - shifted);
  FV p = fma(r, (FV)(1.5353362e-4f), (FV)(1.3398874e-3f));
  p = fma(p, r, (FV)(9.6184169e-3f));
  p = fma(p, r, (FV)(5.5503324e-2f));
  p = fma(p, r, (FV)(2.4022648e-1f));
  p = fma(p, r, (FV)(6.9314718e-1f));
  p = fma(p, r, (FV)(1.0f));
  const FV tail = t > 6.0f ? (FV)(0.0f) : AS_FV(AS_UV(p) + (AS_UV(shifted) << 23));
  return x < 0.0f ? tail : 1.0f - tail;
}
#define normal(x, e) normal_at(x)
#else
/* Beyond 9.02 tanh rounds to 1; some drivers return one ulp less. */
static inline FV tanh_of(FV x) { return fabs(x) > 9.02f ? copysign((FV)(1.0f), x) : tanh(x); }
#define normal(x, e) (0.5f * (1.0f + erf((x) * 0.70710678f)))
/* x / (1 + e) for e >= 0, rounded about once: division on GPUs may be off by 2.5 ulp. Exact sums and products find the rounding
 * errors of 1 + e and of the quotient and correct them, unless a value is infinite. A zero keeps its sign. */
static inline FV over_one_plus(FV x, FV e) {
  const FV d = 1.0f + e, back = d - 1.0f, lost = (1.0f - (d - back)) + (e - back), r = 1.0f / d, q = x * r;
  const FV rest = fma(-q, d, x) - q * lost;
  return fabs(rest) <= FLT_MAX && q != 0.0f ? fma(rest, r, q) : q;
}
#define OVER_ONE_PLUS(x, e) over_one_plus((FV)(x), (e))
#endif
#endif
static inline FV sigmoid(FV x) { return OVER_ONE_PLUS(1.0f, EXP(-x)); }
static inline FV silu(FV x) { return OVER_ONE_PLUS(x, EXP(-x)); }
static inline FV gelu(FV x) { return x * normal(x, EXP(-0.5f * x * x)); }
static inline FV gelu_grad(FV x) {
  const FV e = EXP(-0.5f * x * x);
  return normal(x, e) + x * 0.39894228f * e;
}
static inline FV gelu_tanh(FV x) { return OVER_ONE_PLUS(x, EXP(-GELU_TANH_U(x))); }
/* s + x s (1 - s) u' for s = sigmoid(u). Computed from e = exp(-|u|), which is at most 1: 1 - s keeps its digits where s is near 1. */
static inline FV sigmoid_product(FV x, FV u, FV slope) {
  const FV e = EXP(-fabs(u)), high = OVER(1.0f, 1.0f + e);
  return (u < 0.0f ? e * high : high) + x * (e * high * high) * slope;
}
static inline FV silu_grad(FV x) { return sigmoid_product(x, x, (FV)(1.0f)); }
static inline FV gelu_tanh_grad(FV x) {
  return sigmoid_product(x, GELU_TANH_U(x), 1.59576912f * (1.0f + 0.134145f * x * x));
}

/* A vector filled by lane from LOAD(k) for lanes below `lanes`, 0 above: the end of a row, or a gather. */
#define LANES(x, LOAD)                                   \
  FV x;                                                  \
  {                                                      \
    float part[VW];                                      \
    for (int k = 0; k < VW; k++) part[k] = k < lanes ? (LOAD) : 0.0f; \
    x = LOADN(part);                                     \
  }
