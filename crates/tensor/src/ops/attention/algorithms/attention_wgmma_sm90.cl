/* Scaled dot-product attention for sm_90: o = softmax(scale * q kᵀ + mask) v on the tensor cores, fed by bulk copies.
 *
 * A group stays for the whole launch and takes tiles of BQ = 64 * CW query rows of one head, longest first. Its first
 * warpgroup, one item of it, copies; CW warpgroups compute 64 rows each, 128 keys (BK) at a time from the last to the first:
 * issue S = q kᵀ of the next block, then o += P v of this one; hand the tensor cores to the next warpgroup (it computes its
 * exponentials while this one multiplies: ping-pong); take the softmax of S to base 2. P never leaves the registers.
 * Scores, statistics and o are f32; P is rounded to T before P v.
 *
 * groups    as many as multiprocessors, of 128 * (CW + 1) items
 * maps      at maps_at: q (boxes of BQ rows), k, v (boxes of BK rows), rank 4: (D, rows, heads, batch)
 * q, k, v   read through the maps; bound so that the queue knows
 * o         (B,T,H,D) contiguous, type T
 * lse       (B,H,T) f32, ln of the sum of exp(scale * score)
 * next      two counters, 0 before and after
 * together  heads that share the L2 cache
 * Causal: query t sees keys up to t + S - T, where S - T >= 0 is a multiple of 64. scale > 0.
 *
 * Defines: those of attention_sm90_fwd.cl; CW is 2, or 3 for D <= 64 without dropout. D is at most 128.
 * Measured on an H200 with 64 x 1024 x 12 x 16 (D, T, H, B) CW 3 and 128 x 4096 x 32 x 4, causal, bf16: 0.34 and 0.60 of
 * 989 TFLOP/s; limits there are the exponentials (16 a clock and multiprocessor) and the power.
 *
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): warp specialisation, ping-pong of two or three warpgroups, and the next
 * scores issued before this block's softmax.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet, about 620 where the power limit holds products. Reached in a GPT-2 step
 * (B 64, T 1024, D 64, causal, half of the pairs): 303; the backward 404.
 */
/* Named barriers: whose turn the tensor cores are; the items of a warpgroup. */
#define TURN 2
#define ALONE 8
#define PRODUCT_S(s, q, k) PRODUCT_D(s, 128, q, BQ, k)
#define PRODUCT_O(o, p, v, keep) PRODUCT_ROWS(o, 8, p, v, keep)

#if DROPOUT
#define DRAW(i) kept_by_rows(bits, BK, draw + (i) * (BK / 4), below, q, seed, offset, drop);
#define PACK_P(p, s)                                                                                                   \
  _Pragma("unroll") for (int i_ = 0; i_ < BK / 4; ++i_)                                                                \
      p[i_] = pack(KEPT(bits, 2 * i_) ? s[2 * i_] : 0.0f, KEPT(bits, 2 * i_ + 1) ? s[2 * i_ + 1] : 0.0f);
#define KEEP keep
#else
#define DRAW(i)
#define PACK_P(p, s) _Pragma("unroll") for (int i_ = 0; i_ < BK / 4; ++i_) p[i_] = pack(s[2 * i_], s[2 * i_ + 1]);
#define KEEP 1.0f
#endif

__kernel __attribute__((reqd_work_group_size(128 * (CW + 1), 1, 1))) void attention_fwd(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *k_, __global const T *v_,
    __global T *o_, __global float *lse, __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = forward_place(local_);
  const Sizes n = forward_sizes(batch, together, heads, kv_heads, t_len, s_len);
  const int item = get_local_id(0), warpgroup = item >> 7;
  if (item == 0) forward_rings(&at, CW);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warpgroup == 0) {
    GIVE_REGISTERS(COPY_REGISTERS);
    if (item == 0) produce(&at, &n, (ulong)maps + maps_at, next);
    return;
  }

  TAKE_REGISTERS(MATH_REGISTERS);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  uint s = 0, parity = 0, qs = 0, q_parity = 0;
  if (me == CW - 1) bar_arrive(TURN, 256); /* the first turn is warpgroup 0's */
  for (;;) {
    mbar_wait(at.q_full + qs * 8, q_parity);
    const int head = at.tile[2 * qs], block = at.tile[2 * qs + 1];
    if (head < 0) break;
    const int row0 = block * BQ + me * 64, row = row0 + warp * 16 + g, all = key_blocks(&n, block * BQ, BQ);
    const int mine = row0 < n.t_len ? key_blocks(&n, row0, 64) : 0;
    const uint aq = (at.q + qs * Q_BYTES + me * 8192) >> 4;
    float S[BK / 2], O[DP / 2];
    uint P[BK / 4];
    float high0, high8, sum0 = 0.0f, sum8 = 0.0f;
#if DROPOUT
    uint bits[BK / 64];
    const ulong below = (ulong)((s_len + 3) / 4) * 8, draw = ((ulong)head * t_len + row) * (below / 8);
#endif
    for (int i = all - 1; i >= mine; --i) { /* key blocks that none of these 64 rows sees */
      mbar_wait(at.k_full + s * 8, parity);
      mbar_wait(at.v_full + s * 8, parity);
      /* No product here keeps the four warps together, and a late one would miss a phase: the queue hung. */
      bar_sync(ALONE + me, 128);
      mbar_arrive_if(at.k_free + s * 8, first);
      mbar_arrive_if(at.v_free + s * 8, first);
      if (i > 0) {
        bar_sync(TURN + me, 256);
        bar_arrive(TURN + (me + 1) % CW, 256);
      }
      NEXT_STAGE(s, parity, STAGES)
    }
    if (mine == 0) {
      mbar_arrive_if(at.q_free + qs * 8, first);
      NEXT_STAGE(qs, q_parity, Q_STAGES)
      continue;
    }
    mbar_wait(at.k_full + s * 8, parity);
    PRODUCT_S(S, aq, (at.k + s * K_BYTES) >> 4);
    DRAW(mine - 1)
    WAIT_PRODUCTS(0);
    HOLD_F64(S);
    mbar_arrive_if(at.k_free + s * 8, first);
    {
#if CAUSAL
      const int last = row + n.s_len - n.t_len;
      hide(S, (mine - 1) * BK + 2 * q, last, last + 8);
#else
      if (mine * BK > n.s_len) hide(S, (mine - 1) * BK + 2 * q, n.s_len - 1, n.s_len - 1);
#endif
      high0 = row_max(S, S[0]);
      high8 = row_max(S + 2, S[2]);
      exponentials(S, scale, high0, high8, &sum0, &sum8);
      PACK_P(P, S)
    }
    int keep_o = 0;
    for (int i = mine - 2; i >= 0; --i) {
      uint s2 = s, parity2 = parity;
      NEXT_STAGE(s2, parity2, STAGES)
      mbar_wait(at.k_full + s2 * 8, parity2);
      bar_sync(TURN + me, 256);
      HOLD_U32(P);
      PRODUCT_S(S, aq, (at.k + s2 * K_BYTES) >> 4);
      mbar_wait(at.v_full + s * 8, parity);
      PRODUCT_O(O, P, (at.v + s * K_BYTES) >> 4, keep_o);
      bar_arrive(TURN + (me + 1) % CW, 256);
      keep_o = 1;
      DRAW(i)
      WAIT_PRODUCTS(1);
      HOLD_F64(S);
      mbar_arrive_if(at.k_free + s2 * 8, first);
      const float new0 = row_max(S, high0), new8 = row_max(S + 2, high8);
      float by0 = 1.0f, by8 = 1.0f;
      const int grown = any_item(max_f(new0 - high0, new8 - high8) * scale > SLACK);
      if (grown) {
        by0 = power2((high0 - new0) * scale), by8 = power2((high8 - new8) * scale);
        high0 = new0;
        high8 = new8;
        sum0 *= by0;
        sum8 *= by8;
      }
      exponentials(S, scale, high0, high8, &sum0, &sum8);
      WAIT_PRODUCTS(0);
      HOLD_D(O);
      HOLD_U32(P);
      mbar_arrive_if(at.v_free + s * 8, first);
      PACK_P(P, S)
      if (grown) {
#pragma unroll
        for (int j = 0; j < DP / 8; ++j) {
          O[j * 4] *= by0;
          O[j * 4 + 1] *= by0;
          O[j * 4 + 2] *= by8;
          O[j * 4 + 3] *= by8;
        }
      }
      s = s2;
      parity = parity2;
    }
    mbar_arrive_if(at.q_free + qs * 8, first);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    mbar_wait(at.v_full + s * 8, parity);
    HOLD_U32(P);
    PRODUCT_O(O, P, (at.v + s * K_BYTES) >> 4, keep_o);
    sum0 += swap_f(sum0, 1);
    sum0 += swap_f(sum0, 2);
    sum8 += swap_f(sum8, 1);
    sum8 += swap_f(sum8, 2);
    WAIT_PRODUCTS(0);
    HOLD_D(O);
    mbar_arrive_if(at.v_free + s * 8, first);
    NEXT_STAGE(s, parity, STAGES)
    const int b = head / n.heads, h = head - b * n.heads;
    const size_t stride = (size_t)heads * D;
    const int ok0 = row < n.t_len, ok8 = row + 8 < n.t_len;
    store_rows(O, o_ + ((size_t)b * t_len + row) * stride + (size_t)h * D, stride, ok0, ok8, KEEP * over1(sum0),
               KEEP * over1(sum8), q);
    __global float *to = lse + (size_t)head * t_len + row;
    store_if(to, q == 0 && ok0, (high0 * scale + log2(sum0)) * LN_2);
    store_if(to + 8, q == 0 && ok8, (high8 * scale + log2(sum8)) * LN_2);
  }
  if (me == 0) bar_sync(TURN, 256);
}
