/* Shared parts of attention_vector.cl and attention_vector_bwd.cl: lanes are queries, rows are keys.
 *
 * Rows: the G = H / KH query heads that share a key head form one list of T*G rows, row = t*G + g. They share each read of k and v, and their
 * gradients are summed in one accumulator in fixed order. A block is BQ = QV * VW rows.
 *
 * Design: FlashAttention-2 (Dao 2023, arXiv:2307.08691) with queries in SIMD lanes; the query heads of a key head as one list of rows
 * (Ainslie et al. 2023, arXiv:2305.13245).
 * Defines: D head size (1..256), CAUSAL, WINDOW (maximum keys that a query sees, 0: all), DOCS (a document mask), SOFTCAP, DROPOUT, DTYPE,
 * VW (4, 8, 16).
 *
 * Soft-capping (Gemma 2): a score s becomes cap * tanh(s / cap), and its derivative is 1 - tanh(s / cap)^2.
 */
#ifndef D
#define D 64
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef DOCS
#define DOCS 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#define QV 2
#define BQ (QV * VW)
/* MR * QV accumulators, QV operands and a broadcast value fill the registers: 16 on AVX2, 32 on AVX-512 and NEON. */
#if VW == 8
#define MR 6
#else
#define MR 12
#endif
#ifndef BK
#define BK 48
#endif
#define DV ((D + VW - 1) / VW)
#define DP (DV * VW)
#define DFULL (D / VW)
#define AS_IV(v) CAT(as_int, VW)(v)
/* Score of a masked key. */
#define NEG (-FLT_MAX)

/* Keys and values for the inner loops: read in place if f32, otherwise a block that is widened once. */
#if DTYPE == 0
typedef __global const float *rows_t;
#else
typedef const float *rows_t;
#endif

/* Computes 2^x for x <= 0, within 2 ulp; 0 below -127; NaN stays NaN. The constant shifts the integer part into the low bits. */
static inline FV exp2_neg(FV x) {
  x = select(x, (FV)(-127.0f), x < (FV)(-127.0f));
  FV n = x + (FV)(12582912.0f);
  FV f = x - (n - (FV)(12582912.0f));
  FV p = fma((FV)(0.00132647273f), f, (FV)(0.00967151299f));
  p = fma(p, f, (FV)(0.0555073358f));
  p = fma(p, f, (FV)(0.240222424f));
  p = fma(p, f, (FV)(0.693147004f));
  p = fma(p, f, (FV)(1.0f));
  return AS_FV(AS_UV(p) + (AS_UV(n) << 23));
}

/* In each run of four lanes: interleaves lanes of p and q (ZIP), or puts pairs of lanes next to each other (PAIR). */
#if VW == 16
#define ZIP_LO(p, q)                                                                                                   \
  (FV)(p.s0, q.s0, p.s1, q.s1, p.s4, q.s4, p.s5, q.s5, p.s8, q.s8, p.s9, q.s9, p.sc, q.sc, p.sd, q.sd)
#define ZIP_HI(p, q)                                                                                                   \
  (FV)(p.s2, q.s2, p.s3, q.s3, p.s6, q.s6, p.s7, q.s7, p.sa, q.sa, p.sb, q.sb, p.se, q.se, p.sf, q.sf)
#define PAIR_LO(p, q) (FV)(p.s01, q.s01, p.s45, q.s45, p.s89, q.s89, p.scd, q.scd)
#define PAIR_HI(p, q) (FV)(p.s23, q.s23, p.s67, q.s67, p.sab, q.sab, p.sef, q.sef)
#elif VW == 8
#define ZIP_LO(p, q) (FV)(p.s0, q.s0, p.s1, q.s1, p.s4, q.s4, p.s5, q.s5)
#define ZIP_HI(p, q) (FV)(p.s2, q.s2, p.s3, q.s3, p.s6, q.s6, p.s7, q.s7)
#define PAIR_LO(p, q) (FV)(p.s01, q.s01, p.s45, q.s45)
#define PAIR_HI(p, q) (FV)(p.s23, q.s23, p.s67, q.s67)
#else
#define ZIP_LO(p, q) (FV)(p.s0, q.s0, p.s1, q.s1)
#define ZIP_HI(p, q) (FV)(p.s2, q.s2, p.s3, q.s3)
#define PAIR_LO(p, q) (FV)(p.s01, q.s01)
#define PAIR_HI(p, q) (FV)(p.s23, q.s23)
#endif

/* Transposes m[VW]: 4x4 within runs of four lanes, then the runs. On x86 this needs half the shuffles of plain interleaving. */
static inline void transpose(FV *m) {
  FV s[VW];
#pragma unroll
  for (int i = 0; i < VW; i += 4) {
    FV t0 = ZIP_LO(m[i], m[i + 1]), t1 = ZIP_HI(m[i], m[i + 1]);
    FV t2 = ZIP_LO(m[i + 2], m[i + 3]), t3 = ZIP_HI(m[i + 2], m[i + 3]);
    s[i] = PAIR_LO(t0, t2);
    s[i + 1] = PAIR_HI(t0, t2);
    s[i + 2] = PAIR_LO(t1, t3);
    s[i + 3] = PAIR_HI(t1, t3);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if VW == 16
    m[i] = (FV)(s[i].lo.lo, s[i + 4].lo.lo, s[i + 8].lo.lo, s[i + 12].lo.lo);
    m[i + 4] = (FV)(s[i].lo.hi, s[i + 4].lo.hi, s[i + 8].lo.hi, s[i + 12].lo.hi);
    m[i + 8] = (FV)(s[i].hi.lo, s[i + 4].hi.lo, s[i + 8].hi.lo, s[i + 12].hi.lo);
    m[i + 12] = (FV)(s[i].hi.hi, s[i + 4].hi.hi, s[i + 8].hi.hi, s[i + 12].hi.hi);
#elif VW == 8
    m[i] = (FV)(s[i].lo, s[i + 4].lo);
    m[i + 4] = (FV)(s[i].hi, s[i + 4].hi);
#else
    m[i] = s[i];
#endif
  }
}

/* The BQ rows of a block: query of each, and head within the group; rows past the end repeat the last. */
typedef struct {
  uint t[BQ], g[BQ], n; /* n rows are real */
} block_t;

static inline block_t block_of(uint r0, uint rows, uint group) {
  block_t r;
  uint t = r0 / group, g = r0 - t * group;
  r.n = min((uint)BQ, rows - r0);
  for (uint i = 0; i < BQ; ++i) {
    r.t[i] = t;
    r.g[i] = g;
    if (i + 1 < r.n && ++g == group) {
      g = 0;
      ++t;
    }
  }
  return r;
}

/* Loads D elements of row p as DV vectors, zero beyond D. */
static inline FV load_d(__global const T *p, int c) {
#if D % VW
  if (c == DFULL) {
    float t[VW];
    for (int i = 0; i < VW; ++i) t[i] = DFULL * VW + i < D ? LD(p, DFULL * VW + i) : 0.0f;
    return CAT(vload, VW)(0, t);
  }
#endif
  return LDV(p, c * VW);
}

static inline void store_d(__global T *p, int c, FV x) {
#if D % VW
  if (c == DFULL) {
    float t[VW];
    CAT(vstore, VW)(x, 0, t);
    for (int i = 0; DFULL * VW + i < D; ++i) ST(p, DFULL * VW + i, t[i]);
    return;
  }
#endif
  STV(p, c * VW, x);
}

/* Loads the rows of a block times `by`, transposed: element d of lane vector j goes to dst[d * QV + j]. */
static inline void load_lanes(FV *dst, const block_t *r, float by, __global const T *x, ulong xh, ulong xt) {
  for (int j = 0; j < QV; ++j) {
    __global const T *at[VW];
    for (int i = 0; i < VW; ++i) at[i] = x + r->g[j * VW + i] * xh + r->t[j * VW + i] * xt;
    for (int c = 0; c < DV; ++c) {
      FV m[VW];
#pragma unroll
      for (int i = 0; i < VW; ++i) m[i] = load_d(at[i], c);
      transpose(m);
#pragma unroll
      for (int i = 0; i < VW; ++i) dst[(c * VW + i) * QV + j] = m[i] * by;
    }
  }
}

/* Stores transposed rows, with a factor `by` for each lane. */
static inline void store_lanes(const FV *src, const block_t *r, const FV *by, __global T *x, ulong xh, ulong xt) {
  for (int j = 0; j < QV; ++j)
    for (int c = 0; c < DV; ++c) {
      FV m[VW];
#pragma unroll
      for (int i = 0; i < VW; ++i) m[i] = src[(c * VW + i) * QV + j] * by[j];
      transpose(m);
#pragma unroll
      for (int i = 0; i < VW; ++i) {
        const uint l = j * VW + i;
        if (l < r->n) store_d(x + r->g[l] * xh + r->t[l] * xt, c, m[i]);
      }
    }
}

#if DTYPE != 0
/* Widens n rows of x, xt apart, into dst[n][DP]. */
static inline void widen(float *dst, __global const T *x, ulong xt, int n) {
  for (int i = 0; i < n; ++i)
    for (int c = 0; c < DV; ++c) CAT(vstore, VW)(load_d(x + i * xt, c), 0, dst + i * DP + c * VW);
}
#endif

/* Computes dst[i][j] = sum over d of rows[i0+i][d] * xt[d][j], for MR rows; rows past n repeat the last. */
#define DOT_TILE(dst, rows, stride, i0, n, xt)                                                                         \
  {                                                                                                                    \
    FV a[MR][QV];                                                                                                      \
    rows_t at[MR];                                                                                                     \
    _Pragma("unroll") for (int i = 0; i < MR; ++i) {                                                                   \
      at[i] = (rows) + (ulong)min((i0) + i, (n)-1) * (stride);                                                         \
      _Pragma("unroll") for (int j = 0; j < QV; ++j) a[i][j] = (FV)(0.0f);                                             \
    }                                                                                                                  \
    _Pragma("unroll 4") for (int d = 0; d < D; ++d) {                                                                  \
      _Pragma("unroll") for (int i = 0; i < MR; ++i) {                                                                 \
        FV x = (FV)(at[i][d]);                                                                                         \
        _Pragma("unroll") for (int j = 0; j < QV; ++j) a[i][j] = fma(x, (xt)[d * QV + j], a[i][j]);                    \
      }                                                                                                                \
    }                                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < MR; ++i)                                                                     \
        _Pragma("unroll") for (int j = 0; j < QV; ++j)(dst)[i * QV + j] = a[i][j];                                     \
  }

/* Computes ot[d0+m][j] = ot[d0+m][j] * by[j] + sum over i < n of rows[i][d0+m] * p[i][j], for M columns. */
#define ACC_TILE(M, ot, by, rows, stride, n, p, d0)                                                                    \
  {                                                                                                                    \
    FV a[M][QV];                                                                                                       \
    _Pragma("unroll") for (int m = 0; m < M; ++m)                                                                      \
        _Pragma("unroll") for (int j = 0; j < QV; ++j) a[m][j] = (ot)[((d0) + m) * QV + j] * (by)[j];                  \
    rows_t at = (rows) + (d0);                                                                                         \
    _Pragma("unroll 4") for (int i = 0; i < (n); ++i, at += (stride)) {                                                                    \
      _Pragma("unroll") for (int m = 0; m < M; ++m) {                                                                  \
        FV x = (FV)(at[m]);                                                                                            \
        _Pragma("unroll") for (int j = 0; j < QV; ++j) a[m][j] = fma(x, (p)[i * QV + j], a[m][j]);                     \
      }                                                                                                                \
    }                                                                                                                  \
    _Pragma("unroll") for (int m = 0; m < M; ++m)                                                                      \
        _Pragma("unroll") for (int j = 0; j < QV; ++j) (ot)[((d0) + m) * QV + j] = a[m][j];                            \
  }

#if D % MR
#define ACC_REST(ot, by, rows, stride, n, p) ACC_TILE(D % MR, ot, by, rows, stride, n, p, D - D % MR)
#else
#define ACC_REST(ot, by, rows, stride, n, p)
#endif
#define ACC_ALL(ot, by, rows, stride, n, p)                                                                            \
  for (int d0 = 0; d0 + MR <= D; d0 += MR) ACC_TILE(MR, ot, by, rows, stride, n, p, d0)                                \
  ACC_REST(ot, by, rows, stride, n, p)

#if SOFTCAP
#define CAP_ARG , float cap
#define SCORE_FACTOR (scale / cap) /* queries times this give the argument of tanh */
#else
#define CAP_ARG
#define SCORE_FACTOR (scale * 1.44269504f) /* scores are powers of two from here on */
#endif

/* Returns the first key of the block of keys that contains the start of the first row's window. */
static inline int first_key(const block_t *r, int more) {
#if WINDOW
  return max(0, (int)r->t[0] + more + 1 - WINDOW) / BK * BK;
#else
  return 0;
#endif
}

/* Sets scores of keys s0 .. s0 + n - 1 before a lane's window to NEG. */
#if WINDOW
#define MASK_WINDOW(p, s0, n, r, last, more)                                                                           \
  for (int i = 0; i < min((n), (int)(r)->t[BQ - 1] + (more) + 1 - WINDOW - (s0)); ++i)                                 \
    _Pragma("unroll") for (int j = 0; j < QV; ++j)                                                                     \
        (p)[i * QV + j] = select((p)[i * QV + j], (FV)(NEG), (IV)((s0) + i) <= (last)[j] - (IV)(WINDOW));
#else
#define MASK_WINDOW(p, s0, n, r, last, more)
#endif

/* Documents: query t sees keys from t + S - T - docs[b*T + t] on, where docs has its position in its document. Documents are in the order of
 * their tokens, so no later row sees a key before those of the first row. */
#if DOCS
#define DOC_ARG , __global const uint *docs
#define DOC_START docs += b * t_len;
#define FIRST_KEY(r, first, more) max(first_key(r, more), (first)[0] / BK * BK)
/* Writes the first key of each row's document. */
static inline void first_of_docs(int *first, const block_t *r, int more, __global const uint *docs) {
  for (int i = 0; i < BQ; ++i) first[i] = (int)r->t[i] + more - (int)docs[r->t[i]];
}
/* Declares the first keys of a block. */
#define DOC_FIRST(first, r, more)                                                                                      \
  int first[BQ];                                                                                                       \
  first_of_docs(first, r, more, docs);
/* Sets scores of keys s0 .. s0 + n - 1 before a lane's document to NEG. */
#define MASK_DOCS(p, s0, n, first)                                                                                     \
  for (int i = 0; i < min((n), (first)[BQ - 1] - (s0)); ++i)                                                           \
    _Pragma("unroll") for (int j = 0; j < QV; ++j)                                                                     \
        (p)[i * QV + j] = select((p)[i * QV + j], (FV)(NEG), (IV)((s0) + i) < CAT(vload, VW)(j, first));
#else
#define DOC_ARG
#define DOC_START
#define DOC_FIRST(first, r, more)
#define FIRST_KEY(r, first, more) first_key(r, more)
#define MASK_DOCS(p, s0, n, first)
#endif

/* Returns the last key that each lane of vector j sees. */
static inline IV last_key(const block_t *r, int j, int more) { return AS_IV(CAT(vload, VW)(j, r->t)) + (IV)(more); }

#if DROPOUT
#define DROP_ARGS COUNTER_ARG, ulong seed, ulong site, uint drop, float keep
#define DROP_START const ulong offset = STREAM_START(site);
/* Computes low and high words of the first counter of each lane's row; head is b*H + h of the group's first. */
static inline void drop_rows(UV *lo, UV *hi, const block_t *r, ulong offset, ulong head, ulong t_len, uint s_len) {
  for (int j = 0; j < QV; ++j) {
    uint l[VW], h[VW];
    for (int i = 0; i < VW; ++i) {
      ulong n = offset + ((head + r->g[j * VW + i]) * t_len + r->t[j * VW + i]) * (ulong)((s_len + 3) / 4);
      l[i] = (uint)n;
      h[i] = (uint)(n >> 32);
    }
    lo[j] = CAT(vload, VW)(0, l);
    hi[j] = CAT(vload, VW)(0, h);
  }
}

/* Computes the dropout factors m[4] of the probabilities of keys s..s+3 (s % 4 == 0): 0 or keep. */
static inline void drop_mask(FV *m, UV lo, UV hi, uint s, ulong seed, uint drop, float keep) {
  UV c[4];
  c[0] = lo + (UV)(s / 4);
  c[1] = hi + select((UV)(0u), (UV)(1u), c[0] < lo);
  c[2] = (UV)(0u);
  c[3] = (UV)(0u);
  philox_lanes(c, (uint2)((uint)seed, (uint)(seed >> 32)));
  for (int i = 0; i < 4; ++i) m[i] = select((FV)(keep), (FV)(0.0f), c[i] < (UV)(drop));
}
#else
#define DROP_ARGS
#define DROP_START
#endif
