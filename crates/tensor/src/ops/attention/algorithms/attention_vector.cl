/* Scaled dot-product attention for CPUs: o = softmax(scale * q kᵀ + mask) v; T×S is never stored.
 *
 * Local size 1: a work-item owns BQ query rows (attention_lanes.cl), one per lane. Scores are transposed, key by key, so the softmax never sums
 * across lanes. f32 keys and values are read in place: one scalar is broadcast against QV vectors of queries. Blocks of BK keys keep the scores
 * in L1; sums are f32.
 *
 * groups    ceil(T*G / BQ), KH, B
 * q         element (b,h,t,d) at q0 + b*qb + h*qh + t*qt + d; k, v likewise with (b,kh,s,d); type T
 * o         (B,T,H,D) contiguous, type T
 * lse       (B,H,T) f32, ln of the sum of exp(scale * score); FLT_MAX if a row sees no key (its o is 0)
 *
 * Causal: query t sees keys s <= t + S - T. A window, which requires causal attention, limits these to the last WINDOW keys. Dropout: word s % 4
 * of Philox draw ((b*H + h)*T + t) * ceil(S/4) + s/4 drops its probability if it is below `drop`; otherwise the probability is multiplied by
 * `keep`.
 *
 * Design: FlashAttention-2 (Dao 2023, arXiv:2307.08691), online softmax by blocks of keys.
 * Ceiling: f32 multiply-adds of all cores, 408 GFLOP/s on two of a Xeon with AVX-512 (PoCL). Reached there, T 256, D 64: 162 to 223;
 * attention_vector_bwd 130 to 203.
 */
__kernel void attention_fwd(__global const T *q, ulong q0, ulong qb, ulong qh, ulong qt, __global const T *k, ulong k0,
                            ulong kb, ulong kh, ulong kt, __global const T *v, ulong v0, ulong vb, ulong vh, ulong vt,
                            __global T *o, __global float *lse, uint heads, uint kv_heads, uint t_len, uint s_len,
                            float scale CAP_ARG DROP_ARGS DOC_ARG) {
  DROP_START
  const uint group = heads / kv_heads, rows = t_len * group, blocks = (rows + BQ - 1) / BQ;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const uint r0 = (blocks - 1 - get_group_id(0)) * BQ; /* long causal blocks first */
  DOC_START
  q += q0 + b * qb + h * group * qh;
  k += k0 + b * kb + h * kh;
  v += v0 + b * vb + h * vh;

  FV xq[DP * QV], acc[DP * QV], p[BK * QV];
  FV top[QV], sum[QV];
  IV last[QV];
  const block_t r = block_of(r0, rows, group);
  const int more = (int)s_len - (int)t_len;
  DOC_FIRST(first, &r, more)
  load_lanes(xq, &r, SCORE_FACTOR, q, qh, qt);
  for (int j = 0; j < QV; ++j) {
    last[j] = last_key(&r, j, more);
    top[j] = (FV)(0.97f * NEG); /* above NEG, so that a masked score gives 0 even if no key was visible yet */
    sum[j] = (FV)(0.0f);
  }
  for (int i = 0; i < DP * QV; ++i) acc[i] = (FV)(0.0f);
#if CAUSAL
  const int end = (int)r.t[BQ - 1] + more + 1, all = (int)r.t[0] + more; /* every lane sees keys up to `all` */
#else
  const int end = (int)s_len, all = end;
#endif
#if DROPOUT
  UV lo[QV], hi[QV];
  drop_rows(lo, hi, &r, offset, b * heads + h * group, t_len, s_len);
#endif
#if DTYPE != 0
  float wide[BK * DP];
#endif

  for (int s0 = FIRST_KEY(&r, first, more); s0 < end; s0 += BK) {
    const int n = min(BK, end - s0);
#if DTYPE == 0
    const rows_t kr = k + s0 * kt, vr = v + s0 * vt;
    const ulong ks = kt, vs = vt;
#else
    const rows_t kr = wide, vr = wide;
    const ulong ks = DP, vs = DP;
    widen(wide, k + s0 * kt, kt, n);
#endif
    for (int i0 = 0; i0 < n; i0 += MR) DOT_TILE(p + i0 * QV, kr, ks, i0, n, xq)
#if SOFTCAP
    for (int i = 0; i < n * QV; ++i) p[i] = (cap * 1.44269504f) * tanh(p[i]);
#endif
#if CAUSAL
    for (int i = max(0, all + 1 - s0); i < n; ++i)
#pragma unroll
      for (int j = 0; j < QV; ++j)
        p[i * QV + j] = select(p[i * QV + j], (FV)(NEG), (IV)(s0 + i) > last[j]);
#endif
    MASK_WINDOW(p, s0, n, &r, last, more)
    MASK_DOCS(p, s0, n, first)
    FV by[QV];
#pragma unroll
    for (int j = 0; j < QV; ++j) by[j] = top[j];
    for (int i = 0; i < n; ++i)
#pragma unroll
      for (int j = 0; j < QV; ++j) top[j] = select(p[i * QV + j], top[j], top[j] > p[i * QV + j]);
#pragma unroll
    for (int j = 0; j < QV; ++j) {
      by[j] = exp2_neg(by[j] - top[j]);
      sum[j] *= by[j];
    }
    for (int i = 0; i < n; ++i)
#pragma unroll
      for (int j = 0; j < QV; ++j) {
        p[i * QV + j] = exp2_neg(p[i * QV + j] - top[j]);
        sum[j] += p[i * QV + j];
      }
#if DROPOUT
    for (int i = 0; i < n; i += 4)
      for (int j = 0; j < QV; ++j) {
        FV m[4];
        drop_mask(m, lo[j], hi[j], s0 + i, seed, drop, keep);
        for (int l = 0; l < 4; ++l) p[(i + l) * QV + j] *= m[l];
      }
#endif
#if DTYPE != 0
    widen(wide, v + s0 * vt, vt, n);
#endif
    ACC_ALL(acc, by, vr, vs, n, p)
  }

  const ulong wt = (ulong)heads * D;
  o += b * t_len * wt + h * group * D;
  lse += (b * heads + h * group) * t_len;
  FV by[QV];
  float stat[BQ];
  for (int j = 0; j < QV; ++j) {
    /* If all scores of a row are -infinity, the result is NaN, as the softmax of such a row is. */
    const IV empty = sum[j] == (FV)(0.0f);
#if CAUSAL
    const IV none = last[j] < (IV)(0);
#else
    const IV none = (IV)(0);
#endif
    by[j] = select(select((FV)(1.0f) / sum[j], (FV)(NAN), empty), (FV)(0.0f), none);
    CAT(vstore, VW)(select(select((top[j] + log2(sum[j])) * 0.693147181f, (FV)(NAN), empty), (FV)(-NEG), none), j, stat);
  }
  store_lanes(acc, &r, by, o, D, wt);
  for (uint i = 0; i < r.n; ++i) lse[r.g[i] * (ulong)t_len + r.t[i]] = stat[i];
}
