/* Scaled dot-product attention for GPUs: o = softmax(scale * q kᵀ + mask) v.
 *
 * A group of WG items owns BQ query rows and processes the keys BK at a time through local memory; T×S is never stored. Item (ty, tx), see
 * attention_grid.cl, owns rows ty + i*TY: of the scores the keys tx + j*TX, of o the four columns from 4*tx + 32*c on. Scores and sums are f32;
 * each item keeps the sum of its columns, and these are added at the end.
 *
 * groups    ceil(T*G / BQ), KH, B of WG items
 * q         element (b,h,t,d) at q0 + b*qb + h*qh + t*qt + d; k, v likewise with (b,kh,s,d); type T
 * o         (B,T,H,D) contiguous, type T
 * lse       (B,H,T) f32, ln of the sum of exp(scale * score); FLT_MAX if a row sees no key (its o is 0)
 * Causal and dropout: as in attention_vector.cl, with the same draws.
 *
 * Defines: those of attention_grid.cl, BQ, BK (defaults by D).
 *
 * Design: FlashAttention-2 (Dao 2023, arXiv:2307.08691).
 * Ceiling: 4 D products per pair of query and key, f32 multiply-adds: 60 TFLOP/s on an H200. Reached there, T 1024, D 128, not causal: 22;
 * attention_tile_bwd 12 (queries) and 13 (keys and values).
 */
#ifndef BQ
#define BQ (D <= 64 ? 64 : D <= 128 ? 32 : 16)
#define BK (D <= 128 ? 32 : 16)
#endif
#define RQ (BQ / TY)
#define RK (BK / TX)
#define PS (BK + 4)
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attention_fwd(
    __global const T *q, ulong q0, ulong qb, ulong qh, ulong qt, __global const T *k, ulong k0, ulong kb, ulong kh,
    ulong kt, __global const T *v, ulong v0, ulong vb, ulong vh, ulong vt, __global T *o, __global float *lse,
    uint heads, uint t_len, uint s_len, float scale CAP_ARG DROP_ARGS DOC_ARG) {
  DROP_START
  __local float4 tq[BQ * ROW4], tk[BK * ROW4];
  __local float p[BQ * PS], red[BQ * (TX + 1)];
  const uint rows = t_len * GROUP, blocks = (rows + BQ - 1) / BQ;
  const ulong h = get_group_id(1), b = get_group_id(2);
  const uint r0 = (blocks - 1 - get_group_id(0)) * BQ; /* long causal blocks first */
  const int n = min((int)(rows - r0), BQ), y = get_local_id(0) / TX, x = get_local_id(0) - y * TX;
  const int end = min(last_key(r0 + n - 1, rows, t_len, s_len) + 1, (int)s_len);
  DOC_START
  k += k0 + b * kb + h * kh;
  v += v0 + b * vb + h * vh;
  load_queries(tq, BQ, q + q0 + b * qb + h * GROUP * qh, r0, n, qh, qt);

  float4 acc[RQ][CHUNKS];
  float top[RQ], sum[RQ];
  int last[RQ], doc[RQ];
  UNROLL for (int i = 0; i < RQ; ++i) {
    top[i] = 0.97f * NEG; /* above NEG, so that a masked score gives 0 even if no key was visible yet */
    sum[i] = 0.0f;
    last[i] = last_key(r0 + y + i * TY, rows, t_len, s_len);
    doc[i] = FIRST_OF_DOC(r0 + y + i * TY);
    UNROLL for (int c = 0; c < CHUNKS; ++c) acc[i][c] = (float4)(0.0f);
  }
#if DROPOUT
  __local float mask[BQ * PS];
#endif
  for (int s0 = max(first_key(r0, t_len, s_len, BK), FIRST_OF_DOC(r0) / BK * BK); s0 < end; s0 += BK) {
    const int nk = min(BK, end - s0);
    load_keys(tk, BK, k, s0, nk, kt);
#if DROPOUT
    drop_tile(mask, PS, 1, BQ, BK, r0, s0, b * heads + h * GROUP, t_len, s_len, seed, offset, drop, keep);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    float s[RQ][RK];
    DOT_TILE(s, RQ, RK, tq, tk, y, x)
    UNROLL for (int i = 0; i < RQ; ++i) {
      float high = top[i];
      UNROLL for (int j = 0; j < RK; ++j) {
        const int key = s0 + x + j * TX;
        s[i][j] = UNSEEN(key, last[i]) || OUT_OF_DOC(key, doc[i]) ? NEG : SCORE(s[i][j]);
        high = high > s[i][j] ? high : s[i][j];
      }
      red[(y + i * TY) * (TX + 1) + x] = high;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    load_keys(tk, BK, v, s0, nk, vt);
    UNROLL for (int i = 0; i < RQ; ++i) {
      const int row = y + i * TY;
      float high = red[row * (TX + 1)];
      for (int j = 1; j < TX; ++j) {
        const float other = red[row * (TX + 1) + j];
        high = high > other ? high : other;
      }
      const float by = exp2(top[i] - high);
      top[i] = high;
      sum[i] *= by;
      UNROLL for (int c = 0; c < CHUNKS; ++c) acc[i][c] *= by;
      UNROLL for (int j = 0; j < RK; ++j) {
        float e = exp2(s[i][j] - high);
        sum[i] += e;
#if DROPOUT
        e *= mask[row * PS + x + j * TX];
#endif
        p[row * PS + x + j * TX] = e;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    ACC_TILE(acc, RQ, p, PS, tk, nk, y, x)
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  UNROLL for (int i = 0; i < RQ; ++i) red[(y + i * TY) * (TX + 1) + x] = sum[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  o += b * t_len * heads * D + h * GROUP * D;
  lse += (b * heads + h * GROUP) * t_len;
  UNROLL for (int i = 0; i < RQ; ++i) {
    const int row = y + i * TY;
    if (row >= n) continue;
    float all = 0.0f;
    for (int j = 0; j < TX; ++j) all += red[row * (TX + 1) + j];
    uint g, t = row_of(r0 + row, &g);
    /* If all scores of a row are -infinity, the result is NaN, as the softmax of such a row is. */
    const float by = last[i] < 0 ? 0.0f : all == 0.0f ? NAN : 1.0f / all;
    __global T *to = o + ((ulong)t * heads + g) * D;
    STORE_ROW(to, acc[i], by, x)
    if (x == 0) lse[g * (ulong)t_len + t] = last[i] < 0 ? -NEG : all == 0.0f ? NAN : (top[i] + log2(all)) * 0.693147181f;
  }
}
