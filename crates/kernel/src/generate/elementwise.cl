/* Element by element: y[i] = EXPR over x0[i], x1[i], … in float.
 *
 * PARAMS   the inputs' parameters: pointer pI and element offset oI each, then scalars sJ
 * SIZES, ROW_OFFSETS   for FLAT 0: the parameters and the code that turn a row number into input offsets aI
 * EXPR     expression in x0…, s0… (FV and float)
 * LOADS    loads xI from pI at FLAT index i (vector) or, when !FLAT, at index oI + row offset + inner
 * LOADS1   the same for the last, partial vector of `lanes` lanes
 * OUT      storage type of y: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32
 * FLAT 1:  every input is contiguous with y's shape: one index. n = elements.
 * FLAT 0:  rows of `inner` elements; the row number is taken apart over OUTER dimensions whose sizes (dD) and strides
 *          (tI_D) are arguments; the stride along a row is 0, 1 or rI by the macros in LOADS.
 * EVEN_VECTORS 1: FLAT, and every pointer with its offset is a multiple of VW elements.
 * CHUNKED  1 on CPUs: each work-item owns one contiguous range; 0 on GPUs: items stride over the whole.
 * No work-item touches another's elements; nothing is accumulated.
 */
#ifndef EXPR
#define EXPR x0
#define PARAMS __global const float *p0, ulong o0,
#define LOADS FV x0 = IN_V0(p0 + o0, i);
#define LOADS1 LANES(x0, IN_10(p0 + o0, i + k))
#define FLAT 1
#endif
#ifndef CHUNKED
#define CHUNKED 1
#endif

/* Private arrays of VW floats. */
#define LOADN(p) LDV_F32(p)
#define STOREN(v, p) STV_F32(p, v)

/* Vector (IN_V) and single (IN_1) loads by storage type: 0 f32, 1 f16, 2 bf16, 3 i32, 4 u32. */
#if EVEN_VECTORS && VW > 1
#define IN_V0(p, i) LDVA_F32((p) + (i))
#define IN_V1(p, i) LDVA_F16((p) + (i))
#define IN_V2(p, i) LDVA_BF16((p) + (i))
#if OUT == 0
#define OUT_VA(p, i, v) STVA_F32((p) + (i), (v))
#elif OUT == 1
#define OUT_VA(p, i, v) STVA_F16((p) + (i), (v))
#elif OUT == 2
#define OUT_VA(p, i, v) STVA_BF16((p) + (i), (v))
#else
#define OUT_VA OUT_V
#endif
#else
#define IN_V0(p, i) LDV_F32((p) + (i))
#define IN_V1(p, i) LDV_F16((p) + (i))
#define IN_V2(p, i) LDV_BF16((p) + (i))
#define OUT_VA OUT_V
#endif
#define IN_10(p, i) ((p)[i])
#define IN_11(p, i) vload_half((i), (p))
#define IN_12(p, i) of_bf16((p)[i])
#define IN_V3(p, i) TO_FV(LDV_F32((p) + (i)))
#define IN_13(p, i) ((float)(p)[i])
#define IN_V4(p, i) TO_FV(LDV_F32((p) + (i)))
#define IN_14(p, i) ((float)(p)[i])

/* Functions that expressions use. The tanh of GELU comes from one exponential: 0.5 (1 + tanh u) = sigmoid(2u). One division
 * instead of a product with a sigmoid rounds once less. */
#define SIGMOID(x) (1.0f / (1.0f + exp(-(x))))
#define SILU_GRAD(x, s) ((s) * (1.0f + (x) * (1.0f - (s))))
#define GELU_GRAD(x) \
  (0.5f * (1.0f + erf((x) * 0.70710678f)) + (x) * 0.39894228f * exp(-0.5f * (x) * (x)))
#define GELU_TANH_S(x) SIGMOID(1.59576912f * ((x) + 0.044715f * (x) * (x) * (x)))
#define SILU(x) ((x) / (1.0f + exp(-(x))))
#define GELU_TANH(x) ((x) / (1.0f + exp(-1.59576912f * ((x) + 0.044715f * (x) * (x) * (x)))))
static inline FV gelu_tanh_grad(FV x, FV s) {
  return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * x * x);
}
#define GELU_TANH_GRAD(x, s) gelu_tanh_grad((x), (s))

/* A vector filled lane by lane from LOAD(k) for lanes below `lanes`, 0 above: the end of a row, or a gather. */
#define LANES(x, LOAD)                                   \
  FV x;                                                  \
  {                                                      \
    float part[VW];                                      \
    for (int k = 0; k < VW; k++) part[k] = k < lanes ? (LOAD) : 0.0f; \
    x = LOADN(part);                                     \
  }

#if FLAT
__kernel void elementwise(PARAMS __global OUT_T *restrict y, ulong oy, ulong n) {
  const ulong items = get_global_size(0), id = get_global_id(0);
  y += oy;
#if CHUNKED
  const ulong per = (n + items * VW - 1) / (items * VW) * VW;
  const ulong begin = min(n, id * per), end = min(n, begin + per), step = VW;
#else
  const ulong begin = id * VW, end = n, step = items * VW;
#endif
  ulong i = begin;
  for (; i + VW <= end; i += step) {
    LOADS
    OUT_VA(y, i, (FV)(EXPR));
  }
  if (i < end) {
    const int lanes = (int)(end - i);
    LOADS1
    float part[VW];
    STOREN((FV)(EXPR), part);
    for (int k = 0; k < lanes; k++) OUT_1(y, i + k, part[k]);
  }
}
#else
__kernel void elementwise(PARAMS SIZES __global OUT_T *restrict y, ulong oy, ulong rows, ulong inner) {
  /* Dimension 0 walks along rows, dimension 1 over rows. */
  FOR_ROWS(row, rows, 1) {
    ROW_OFFSETS
    __global OUT_T *yr = y + oy + row * inner;
    ulong i = get_global_id(0) * VW;
    const ulong step = get_global_size(0) * VW;
    for (; i + VW <= inner; i += step) {
      const int lanes = VW;
      LOADS
      OUT_V(yr, i, (FV)(EXPR));
    }
    if (i < inner) {
      const int lanes = (int)(inner - i);
      LOADS1
      float part[VW];
      STOREN((FV)(EXPR), part);
      for (int k = 0; k < lanes; k++) OUT_1(yr, i + k, part[k]);
    }
  }
}
#endif
