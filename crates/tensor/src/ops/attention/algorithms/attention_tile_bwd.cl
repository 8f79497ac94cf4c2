/* Gradients of attention for GPUs; see attention_grid.cl for the tiles, attention_tile.cl for q, k, v, o, lse.
 *
 * Two kernels without atomics; the shapes determine the order of every sum.
 *   delta = sum_d dO*o,  P = exp(scale*s - lse),  dS = scale * P * (dO vᵀ - delta)
 * attention_bwd_q    a group owns BT query rows and processes the keys:     delta (B,H,T) f32, dq = dS k
 * attention_bwd_kv   runs last; a group owns BT keys and processes the query rows: dk = dSᵀ q, dv = Pᵀ dO; reads delta
 *   groups           ceil(T*G / BT), KH, B and ceil(S / BT), KH, B of WG items
 *   g                dO, strided like q;  dq, dk, dv strided, type T, every element written
 * Defines: BT rows and keys of a tile, WG / TX at most BT (defaults by D).
 *
 * Design: FlashAttention-2's gradients (Dao 2023, arXiv:2307.08691) in two kernels, one that owns keys and one that owns queries, instead of
 * atomics on dq. Ceiling and measured rates: attention_tile.cl.
 */
#ifndef BT
#define BT (D <= 64 ? 32 : D <= 128 ? 16 : 8)
#endif
#define NY (BT / TY)
#define NX (BT / TX)
#define PS (BT + 4)

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attention_bwd_q(
    __global const T *q, ulong q0, ulong qb, ulong qh, ulong qt, __global const T *k, ulong k0, ulong kb, ulong kh,
    ulong kt, __global const T *v, ulong v0, ulong vb, ulong vh, ulong vt, __global const T *o,
    __global const float *lse, __global const T *g, ulong g0, ulong gb, ulong gh, ulong gt, __global T *dq, ulong dq0,
    ulong dqb, ulong dqh, ulong dqt, __global float *delta, uint heads, uint t_len, uint s_len, float scale CAP_ARG DROP_ARGS DOC_ARG) {
  DROP_START
  __local float4 tq[BT * ROW4], tg[BT * ROW4], tk[BT * ROW4], tv[BT * ROW4];
  __local float ds[BT * PS];
  const uint rows = t_len * GROUP, blocks = (rows + BT - 1) / BT;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const uint r0 = (blocks - 1 - get_group_id(0)) * BT;
  const int n = min((int)(rows - r0), BT), y = get_local_id(0) / TX, x = get_local_id(0) - y * TX;
  const int end = min(last_key(r0 + n - 1, rows, t_len, s_len) + 1, (int)s_len);
  DOC_START
  k += k0 + b * kb + h * kh;
  v += v0 + b * vb + h * vh;
  dq += dq0 + b * dqb + h * GROUP * dqh;
  o += b * t_len * heads * D + h * GROUP * D;
  lse += (b * heads + h * GROUP) * t_len;
  delta += (b * heads + h * GROUP) * t_len;
  load_queries(tq, BT, q + q0 + b * qb + h * GROUP * qh, r0, n, qh, qt);
  load_queries(tg, BT, g + g0 + b * gb + h * GROUP * gh, r0, n, gh, gt);
  load_queries(tk, BT, o, r0, n, D, (ulong)heads * D);
  barrier(CLK_LOCAL_MEM_FENCE);

  float4 acc[NY][CHUNKS];
  float stat[NY], dot_o[NY];
  int last[NY], doc[NY];
  /* lse is read without a branch; rows past the end see no key anyway. Intel's CPU compiler (2026.2) would move the negation of stat into such a
   * branch, and then give every item the last item's value after the next barrier. */
  UNROLL for (int i = 0; i < NY; ++i) {
    const int row = y + i * TY;
    uint m, t = row_of(min(r0 + row, rows - 1), &m);
    last[i] = last_key(r0 + row, rows, t_len, s_len);
    doc[i] = FIRST_OF_DOC(r0 + row);
    stat[i] = lse[m * (ulong)t_len + t] * LOG2_E;
    UNROLL for (int c = 0; c < CHUNKS; ++c) acc[i][c] = (float4)(0.0f);
    /* Summed in the order of DOT_TILE: for a query that sees one key, dO*v and dO*o are then equal and its gradient is 0. */
    dot_o[i] = 0.0f;
    for (int d = 0; d < D4; ++d) {
      const float4 u = tg[row * ROW4 + d], w = tk[row * ROW4 + d];
      dot_o[i] = fma(u.x, w.x, fma(u.y, w.y, fma(u.z, w.z, fma(u.w, w.w, dot_o[i]))));
    }
    if (x == 0 && row < n) delta[m * (ulong)t_len + t] = dot_o[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#if DROPOUT
  __local float mask[BT * PS];
#endif
  for (int s0 = max(first_key(r0, t_len, s_len, BT), FIRST_OF_DOC(r0) / BT * BT); s0 < end; s0 += BT) {
    const int nk = min(BT, end - s0);
    load_keys(tk, BT, k, s0, nk, kt);
    load_keys(tv, BT, v, s0, nk, vt);
#if DROPOUT
    drop_tile(mask, PS, 1, BT, BT, r0, s0, b * heads + h * GROUP, t_len, s_len, seed, offset, drop, keep);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    float s[NY][NX], dp[NY][NX];
    DOT_TILE(s, NY, NX, tq, tk, y, x)
    DOT_TILE(dp, NY, NX, tg, tv, y, x)
    UNROLL for (int i = 0; i < NY; ++i)
      UNROLL for (int j = 0; j < NX; ++j) {
        const int at = (y + i * TY) * PS + x + j * TX, key = s0 + x + j * TX;
        const int unseen = UNSEEN(key, last[i]) || OUT_OF_DOC(key, doc[i]);
#if SOFTCAP
        const float score = SCORE(s[i][j]), e = unseen ? 0.0f : exp2(score - stat[i]);
#else
        const float score = 0.0f;
        const float e = unseen ? 0.0f : exp2(fma(s[i][j], scale * LOG2_E, -stat[i]));
#endif
#if DROPOUT
        dp[i][j] *= mask[at];
#endif
        ds[at] = e * (dp[i][j] - dot_o[i]) * SLOPE(score);
      }
    barrier(CLK_LOCAL_MEM_FENCE);
    ACC_TILE(acc, NY, ds, PS, tk, nk, y, x)
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  UNROLL for (int i = 0; i < NY; ++i) {
    uint m, t = row_of(r0 + y + i * TY, &m);
    if (y + i * TY >= n) continue;
    __global T *to = dq + m * dqh + t * dqt;
    STORE_ROW(to, acc[i], 1.0f, x)
  }
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attention_bwd_kv(
    __global const T *q, ulong q0, ulong qb, ulong qh, ulong qt, __global const T *k, ulong k0, ulong kb, ulong kh,
    ulong kt, __global const T *v, ulong v0, ulong vb, ulong vh, ulong vt, __global const float *lse,
    __global const T *g, ulong g0, ulong gb, ulong gh, ulong gt, __global T *dk, ulong dk0, ulong dkb, ulong dkh,
    ulong dkt, __global T *dv, ulong dv0, ulong dvb, ulong dvh, ulong dvt, __global const float *delta, uint heads,
    uint t_len, uint s_len, float scale CAP_ARG DROP_ARGS DOC_ARG) {
  DROP_START
  __local float4 tq[BT * ROW4], tg[BT * ROW4], tk[BT * ROW4], tv[BT * ROW4];
  __local float p[BT * PS], ds[BT * PS];
  const uint rows = t_len * GROUP;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const int s0 = get_group_id(0) * BT, n = min((int)s_len - s0, BT);
  const int y = get_local_id(0) / TX, x = get_local_id(0) - y * TX;
  q += q0 + b * qb + h * GROUP * qh;
  DOC_START
  g += g0 + b * gb + h * GROUP * gh;
  lse += (b * heads + h * GROUP) * t_len;
  delta += (b * heads + h * GROUP) * t_len;
  load_keys(tk, BT, k + k0 + b * kb + h * kh, s0, n, kt);
  load_keys(tv, BT, v + v0 + b * vb + h * vh, s0, n, vt);

  float4 ak[NY][CHUNKS], av[NY][CHUNKS];
  UNROLL for (int i = 0; i < NY; ++i)
    UNROLL for (int c = 0; c < CHUNKS; ++c) ak[i][c] = av[i][c] = (float4)(0.0f);
#if CAUSAL
  const uint first = (uint)max(0, s0 - (int)s_len + (int)t_len) * GROUP / BT * BT;
#else
  const uint first = 0;
#endif
#if WINDOW
  /* Queries beyond this have a window that starts after this tile's last key. */
  const uint seen = min((ulong)rows, (ulong)max(0, s0 + n - 1 + WINDOW - (int)s_len + (int)t_len) * GROUP);
#else
  const uint seen = rows;
#endif
#if DROPOUT
  __local float mask[BT * PS];
#endif
  for (uint r0 = first; r0 < seen; r0 += BT) {
    /* Rows from here on are in documents that begin after this tile. */
    if (OUT_OF_DOC(s0 + n - 1, FIRST_OF_DOC(r0))) break;
    const int nq = min((int)(rows - r0), BT);
    barrier(CLK_LOCAL_MEM_FENCE);
    load_queries(tq, BT, q, r0, nq, qh, qt);
    load_queries(tg, BT, g, r0, nq, gh, gt);
#if DROPOUT
    drop_tile(mask, 1, PS, BT, BT, r0, s0, b * heads + h * GROUP, t_len, s_len, seed, offset, drop, keep);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    float s[NY][NX], dp[NY][NX];
    DOT_TILE(s, NY, NX, tk, tq, y, x)
    DOT_TILE(dp, NY, NX, tv, tg, y, x)
    UNROLL for (int j = 0; j < NX; ++j) {
      const uint r = r0 + x + j * TX;
      const int last = last_key(r, rows, t_len, s_len), doc = FIRST_OF_DOC(r);
      uint m, t = row_of(r, &m);
      const ulong at = m * (ulong)t_len + t;
      const float stat = r < rows ? lse[at] * LOG2_E : -NEG, dot_o = r < rows ? delta[at] : 0.0f;
      UNROLL for (int i = 0; i < NY; ++i) {
        const int to = (y + i * TY) * PS + x + j * TX, key = s0 + y + i * TY;
        const int unseen = UNSEEN(key, last) || OUT_OF_DOC(key, doc);
#if SOFTCAP
        const float score = SCORE(s[i][j]), e = unseen ? 0.0f : exp2(score - stat);
#else
        const float score = 0.0f, e = unseen ? 0.0f : exp2(fma(s[i][j], scale * LOG2_E, -stat));
#endif
#if DROPOUT
        const float w = mask[to];
#else
        const float w = 1.0f;
#endif
        p[to] = e * w;
        ds[to] = e * (dp[i][j] * w - dot_o) * SLOPE(score);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    ACC_TILE(av, NY, p, PS, tg, nq, y, x)
    ACC_TILE(ak, NY, ds, PS, tq, nq, y, x)
  }
  dk += dk0 + b * dkb + h * dkh;
  dv += dv0 + b * dvb + h * dvh;
  UNROLL for (int i = 0; i < NY; ++i) {
    const int row = y + i * TY;
    if (row >= n) continue;
    __global T *tk_out = dk + (ulong)(s0 + row) * dkt, *tv_out = dv + (ulong)(s0 + row) * dvt;
    STORE_ROW(tk_out, ak[i], 1.0f, x)
    STORE_ROW(tv_out, av[i], 1.0f, x)
  }
}
