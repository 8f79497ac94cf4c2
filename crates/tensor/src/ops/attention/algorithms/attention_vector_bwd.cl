/* Gradients of attention for CPUs; see attention_vector.cl for q, k, v, o, lse, causal and dropout.
 *
 * attention_bwd: local size 1; a work-item owns a key head and every parts-th block of its query rows. For each block it processes the keys
 * once: P and dS of a tile stay in L1, dq in private memory, dk and dv in `acc`. All five products are computed once, without atomics; the
 * shapes and `parts` determine the order of every sum.
 *   delta = sum_d dO*o,  P = exp(scale*s - lse),  dS = scale * P * (dO vᵀ - delta)
 *   dq = dS k,  dk = dSᵀ q,  dv = Pᵀ dO
 *   groups    parts, KH, B
 *   g         dO, strided like q;  dq, dk, dv strided, type T, every element written
 *   acc       (parts,B,KH,2,SP,DP) f32 scratch: dk and dv; SP = S rounded up to MR, DP = D rounded up to VW
 * attention_bwd_sum: adds the parts of acc to dk, dv in order if parts > 1; groups ceil(S / MR), KH, B
 *
 * Design: FlashAttention-2's gradients (Dao 2023, arXiv:2307.08691), one pass of five products.
 * Ceiling and measured rates: attention_vector.cl.
 */
/* Computes a[i][j] += sum over the BQ queries of p[i][q] * x[q][c..c+N vectors], for MR keys and N vectors of d; a is in acc. */
#define OUTER_TILE(N, dst, p, x, c)                                                                                    \
  {                                                                                                                    \
    FV a[MR][N];                                                                                                       \
    _Pragma("unroll") for (int i = 0; i < MR; ++i)                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) a[i][j] = CAT(vload, VW)((c) + j, (dst) + i * DP);               \
    _Pragma("unroll 4") for (int t = 0; t < BQ; ++t) {                                                                                     \
      FV y[N];                                                                                                         \
      _Pragma("unroll") for (int j = 0; j < N; ++j) y[j] = (x)[t * DV + (c) + j];                                      \
      _Pragma("unroll") for (int i = 0; i < MR; ++i) {                                                                 \
        FV w = (FV)((p)[i * BQ + t]);                                                                                  \
        _Pragma("unroll") for (int j = 0; j < N; ++j) a[i][j] = fma(w, y[j], a[i][j]);                                 \
      }                                                                                                                \
    }                                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < MR; ++i)                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) CAT(vstore, VW)(a[i][j], (c) + j, (dst) + i * DP);               \
  }

/* Derivative of a score with respect to the product of its query and key. */
#if SOFTCAP
#define SLOPE(at) slope[at]
#else
#define SLOPE(at) scale
#endif

/* Loads rows of a block without transposing them. */
static inline void load_rows(FV *dst, const block_t *r, __global const T *x, ulong xh, ulong xt) {
  for (int i = 0; i < BQ; ++i)
    for (int c = 0; c < DV; ++c) dst[i * DV + c] = load_d(x + r->g[i] * xh + r->t[i] * xt, c);
}

/* Returns the sum over d of x * o for the rows of lane vector j; x by rows, o in memory. */
static inline FV row_dots(const FV *x, const block_t *r, int j, __global const T *o, ulong oh, ulong ot) {
  FV m[VW];
#pragma unroll
  for (int i = 0; i < VW; ++i) {
    const int l = j * VW + i;
    __global const T *at = o + r->g[l] * oh + r->t[l] * ot;
    m[i] = (FV)(0.0f);
    for (int c = 0; c < DV; ++c) m[i] = fma(x[l * DV + c], load_d(at, c), m[i]);
  }
  transpose(m);
  FV s = m[0];
#pragma unroll
  for (int i = 1; i < VW; ++i) s += m[i];
  return s;
}

/* Adds the parts of acc, `step` floats apart, in order to keys s0..s1 of dk and dv. */
static inline void sum_parts(__global const float *acc, uint parts, ulong step, ulong dv_at, uint s0, uint s1, __global T *dk,
                      ulong dkt, __global T *dv, ulong dvt) {
  for (uint s = s0; s < s1; ++s)
    for (int c = 0; c < DV; ++c) {
      __global const float *a = acc + (ulong)s * DP + c * VW;
      FV x = CAT(vload, VW)(0, a), y = CAT(vload, VW)(0, a + dv_at);
      for (uint part = 1; part < parts; ++part) {
        x += CAT(vload, VW)(0, a + part * step);
        y += CAT(vload, VW)(0, a + part * step + dv_at);
      }
      store_d(dk + s * dkt, c, x);
      store_d(dv + s * dvt, c, y);
    }
}

__kernel void attention_bwd(__global const T *q, ulong q0, ulong qb, ulong qh, ulong qt, __global const T *k, ulong k0,
                            ulong kb, ulong kh, ulong kt, __global const T *v, ulong v0, ulong vb, ulong vh, ulong vt,
                            __global const T *o, __global const float *lse, __global const T *g, ulong g0, ulong gb,
                            ulong gh, ulong gt, __global T *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt,
                            __global T *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt, __global T *dv, ulong dv0,
                            ulong dvb, ulong dvh, ulong dvt, __global float *acc, uint heads, uint kv_heads, uint t_len,
                            uint s_len, float scale CAP_ARG DROP_ARGS DOC_ARG) {
  DROP_START
  const uint group = heads / kv_heads, rows = t_len * group, blocks = (rows + BQ - 1) / BQ;
  const uint part = get_group_id(0), parts = get_num_groups(0);
  const ulong h = get_group_id(1), b = get_group_id(2), wt = (ulong)heads * D;
  const ulong dv_at = (ulong)((s_len + MR - 1) / MR * MR) * DP;
  DOC_START
  q += q0 + b * qb + h * group * qh;
  k += k0 + b * kb + h * kh;
  v += v0 + b * vb + h * vh;
  o += b * t_len * wt + h * group * D;
  g += g0 + b * gb + h * group * gh;
  dq += dq0 + b * dqb + h * group * dqh;
  lse += (b * heads + h * group) * t_len;
  acc += ((part * get_num_groups(2) + b) * kv_heads + h) * 2 * dv_at;
  for (ulong i = 0; i < 2 * dv_at; i += VW) CAT(vstore, VW)((FV)(0.0f), 0, acc + i);

  FV xq[DP * QV], xg[DP * QV], rq[BQ * DV], rg[BQ * DV], gq[DP * QV], p[BK * QV], ds[BK * QV];
#if SOFTCAP
  FV slope[BK * QV];
#endif
  FV one[QV];
  for (int j = 0; j < QV; ++j) one[j] = (FV)(1.0f);
  const int more = (int)s_len - (int)t_len;
#if DTYPE != 0
  float wide_k[BK * DP], wide_v[BK * DP];
#endif

  for (uint block = part; block < blocks; block += parts) {
    const block_t r = block_of(block * BQ, rows, group);
    FV stat[QV], delta[QV];
    DOC_FIRST(first, &r, more)
    load_rows(rq, &r, q, qh, qt);
    load_rows(rg, &r, g, gh, gt);
    load_lanes(xq, &r, SCORE_FACTOR, q, qh, qt);
    load_lanes(xg, &r, 1.0f, g, gh, gt);
    float l[BQ];
    for (uint i = 0; i < BQ; ++i) l[i] = i < r.n ? lse[r.g[i] * (ulong)t_len + r.t[i]] * 1.44269504f : -NEG;
    for (int j = 0; j < QV; ++j) {
      stat[j] = CAT(vload, VW)(j, l);
      delta[j] = row_dots(rg, &r, j, o, D, wt);
    }
    for (int i = 0; i < DP * QV; ++i) gq[i] = (FV)(0.0f);
#if CAUSAL
    IV last[QV];
    for (int j = 0; j < QV; ++j) last[j] = last_key(&r, j, more);
    const int end = (int)r.t[BQ - 1] + more + 1, all = (int)r.t[0] + more;
#else
    const int end = (int)s_len;
#endif
#if DROPOUT
    UV lo[QV], hi[QV];
    drop_rows(lo, hi, &r, offset, b * heads + h * group, t_len, s_len);
#endif

    for (int s0 = FIRST_KEY(&r, first, more); s0 < end; s0 += BK) {
      const int n = min(BK, end - s0), full = (n + MR - 1) / MR * MR;
#if DTYPE == 0
      const rows_t kr = k + s0 * kt, vr = v + s0 * vt;
      const ulong ks = kt, vs = vt;
#else
      const rows_t kr = wide_k, vr = wide_v;
      const ulong ks = DP, vs = DP;
      widen(wide_k, k + s0 * kt, kt, n);
      widen(wide_v, v + s0 * vt, vt, n);
#endif
      for (int i0 = 0; i0 < n; i0 += MR) {
        DOT_TILE(p + i0 * QV, kr, ks, i0, n, xq)
        DOT_TILE(ds + i0 * QV, vr, vs, i0, n, xg)
      }
#if SOFTCAP
      for (int i = 0; i < full * QV; ++i) {
        const FV y = tanh(p[i]);
        p[i] = (cap * 1.44269504f) * y;
        slope[i] = scale * (1.0f - y * y);
      }
#endif
#if CAUSAL
      for (int i = max(0, all + 1 - s0); i < n; ++i)
#pragma unroll
        for (int j = 0; j < QV; ++j)
          p[i * QV + j] = select(p[i * QV + j], (FV)(NEG), (IV)(s0 + i) > last[j]);
#endif
      MASK_WINDOW(p, s0, n, &r, last, more)
      MASK_DOCS(p, s0, n, first)
      for (int i = n * QV; i < full * QV; ++i) p[i] = (FV)(NEG);
      for (int i = 0; i < full; ++i)
#pragma unroll
        for (int j = 0; j < QV; ++j) {
          p[i * QV + j] = exp2_neg(p[i * QV + j] - stat[j]);
#if !DROPOUT
          ds[i * QV + j] = p[i * QV + j] * (ds[i * QV + j] - delta[j]) * SLOPE(i * QV + j);
#endif
        }
#if DROPOUT
      for (int i = 0; i < full; i += 4)
        for (int j = 0; j < QV; ++j) {
          FV m[4];
          drop_mask(m, lo[j], hi[j], s0 + i, seed, drop, keep);
          for (int w = 0; w < 4; ++w) {
            const int at = (i + w) * QV + j;
            ds[at] = p[at] * fma(ds[at], m[w], -delta[j]) * SLOPE(at);
            p[at] *= m[w];
          }
        }
#endif
      ACC_ALL(gq, one, kr, ks, n, ds)
      for (int i0 = 0; i0 < n; i0 += MR) {
        const float *tp = (const float *)(p + i0 * QV), *td = (const float *)(ds + i0 * QV);
        __global float *tk = acc + (ulong)(s0 + i0) * DP, *tv = tk + dv_at;
        for (int c = 0; c + 2 <= DV; c += 2) {
          OUTER_TILE(2, tv, tp, rg, c)
          OUTER_TILE(2, tk, td, rq, c)
        }
#if DV % 2
        OUTER_TILE(1, tv, tp, rg, DV - 1)
        OUTER_TILE(1, tk, td, rq, DV - 1)
#endif
      }
    }
    store_lanes(gq, &r, one, dq, dqh, dqt);
  }
  if (parts == 1)
    sum_parts(acc, 1, 0, dv_at, 0, s_len, dk + dk0 + b * dkb + h * dkh, dkt, dv + dv0 + b * dvb + h * dvh, dvt);
}

__kernel void attention_bwd_sum(__global const float *acc, __global T *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt,
                                __global T *dv, ulong dv0, ulong dvb, ulong dvh, ulong dvt, uint s_len, uint parts) {
  const uint s0 = get_group_id(0) * MR;
  const ulong h = get_group_id(1), heads = get_num_groups(1), b = get_group_id(2);
  const ulong dv_at = (ulong)((s_len + MR - 1) / MR * MR) * DP;
  sum_parts(acc + (b * heads + h) * 2 * dv_at, parts, get_num_groups(2) * heads * 2 * dv_at, dv_at, s0, min(s0 + MR, s_len),
            dk + dk0 + b * dkb + h * dkh, dkt, dv + dv0 + b * dvb + h * dvh, dvt);
}
