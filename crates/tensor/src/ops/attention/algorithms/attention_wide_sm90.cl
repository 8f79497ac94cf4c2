/* Scaled dot-product attention for heads of 129 to 256 on sm_90, after FlashAttention-3 (Shah et al. 2024): o = softmax(scale * q kᵀ + mask) v
 * by warpgroup matrix instructions, fed by bulk copies.
 *
 * A tile is 128 queries of one head. A persistent group has one producer warpgroup (one item of it copies) and two consumers of 64 queries each.
 * With D = 256, 64 x D sums take 128 registers per item, which leaves registers for the scores of 80 keys.
 *
 *   local memory          q | k 0 | k 1 | v 0 | v 1 | barriers | tile
 *                           |       |       |
 *   producer  copies        q(t) -> k(n-1), v(n-1) -> k(n-2), v(n-2) ... k(0), v(0) -> q(t+1) ...
 *   consumer  tensor cores  S(n-1) | S(n-2) O+=P(n-1)v | S(n-3) O+=P(n-2)v | ...
 *             other units          softmax S(n-1)  softmax S(n-2)    softmax S(n-3)
 *
 * Each consumer issues the scores of the next block, then O += P v of this one, and computes the softmax of those scores while the second
 * product runs. P stays in registers: a fragment of S, packed in pairs, is the A operand of the next product.
 *
 *   barrier                stages   completed by                       waited for by
 *   q_full                 1        the copy of q                      consumers, at the start of a tile
 *   q_free                 1        8 consumer warps, after their      the producer, before the next tile's q
 *                                   last scores
 *   k_full, v_full         2        the copies of a block              consumers, before a product
 *   k_free, v_free         2        8 consumer warps, after it         the producer, before the next copy
 *   (no named barriers)
 *
 * groups    one per multiprocessor, of 384 items
 * maps      at maps_at: q (boxes of 128 rows), k, v (boxes of BK rows), rank 4: (D, rows, heads, batch)
 * q, k, v   read through the maps; bound as arguments so that the queue tracks them
 * o         (B,T,H,D) contiguous, type T
 * lse       (B,H,T) f32, ln of the sum of exp(scale * score)
 * next      two counters, 0 before and after
 * together  heads that share the L2 cache
 * Causal: query t sees keys up to t + S - T, S >= T; a window limits these to the last WINDOW. scale > 0. Scores, statistics and o are f32; P is
 * rounded to T before P v.
 *
 * Defines: those of attention_sm90_fwd.cl; CW 2, D 129 to 256, no DROPOUT.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet, 620 to 740 under the power limit. Reached on an H200 with 256 x 4096 x 16 x 4 (D, T, H, B),
 * bf16: 643 TFLOP/s causal, 705 full; without spills or serialized products.
 */
/* Masks the keys of block i that the rows from `row0` (the warpgroup's first) do not see; `row` is the item's upper row. */
INLINE void mask_block(float *s, const Sizes *n, int i, int row0, int row, int q) {
#if CAUSAL
  const int past = n->s_len - n->t_len;
  if ((i + 1) * BK > row0 + past + 1) hide_after(s, BK, i * BK + 2 * q, row + past, row + past + 8);
#if WINDOW
  if (i * BK < row0 + 64 + past - WINDOW) hide_before(s, BK, i * BK + 2 * q, row + past + 1 - WINDOW, row + past + 9 - WINDOW);
#endif
#else
  if ((i + 1) * BK > n->s_len) hide_after(s, BK, i * BK + 2 * q, n->s_len - 1, n->s_len - 1);
#endif
}

/* Skips key blocks that the warpgroup's rows do not see. */
INLINE void skip_blocks(const Place *at, int blocks, uint *s, uint *parity) {
  for (; blocks > 0; --blocks) {
    mbar_wait(at->k_full + *s * 8, *parity);
    mbar_wait(at->v_full + *s * 8, *parity);
    release(at->k_free + *s * 8);
    release(at->v_free + *s * 8);
    NEXT_STAGE(*s, *parity, STAGES)
  }
}

/* Processes the tiles of consumer warpgroup `me`. */
INLINE void consume(const Place *at, const Sizes *n, int me, __global T *o, __global float *lse, float scale) {
  const int item = get_local_id(0), q = item & 3;
  uint s = 0, parity = 0, qs = 0, q_parity = 0;
  for (;;) {
    mbar_wait(at->q_full + qs * 8, q_parity);
    const int head = at->tile[2 * qs], block = at->tile[2 * qs + 1];
    if (head < 0) break;
    const int row0 = block * BQ + me * 64, row = row0 + upper_row(item), all = key_blocks(n, BK, block * BQ, BQ);
    const int inside = row0 < n->t_len, last = first_block(n, block * BQ);
    const int mine = inside ? key_blocks(n, BK, row0, 64) : last, my_last = inside ? first_block(n, row0) : last;
    const uint aq = (at->q + qs * Q_BYTES + me * 8192) >> 4;
    skip_blocks(at, all - mine, &s, &parity);
    if (!inside) {
      release(at->q_free + qs * 8);
      NEXT_STAGE(qs, q_parity, Q_STAGES)
      continue;
    }
    float S[BK / 2], O[DP / 2], by0, by8;
    uint P[BK / 4];
    Softmax x;
    mbar_wait(at->k_full + s * 8, parity);
    SCORES(S, aq, (at->k + s * K_BYTES) >> 4);
    WAIT_PRODUCTS(0);
    HOLD_SCORES(S);
    release(at->k_free + s * 8);
    mask_block(S, n, mine - 1, row0, row, q);
    softmax_first(S, &x, scale);
    pack_weights(P, BK, S);
    int keep = 0;
    for (int i = mine - 2; i >= my_last; --i) {
      uint s2 = s, parity2 = parity;
      NEXT_STAGE(s2, parity2, STAGES)
      mbar_wait(at->k_full + s2 * 8, parity2);
      HOLD_WEIGHTS(P);
      SCORES(S, aq, (at->k + s2 * K_BYTES) >> 4);
      mbar_wait(at->v_full + s * 8, parity);
      SUM_VALUES(O, P, (at->v + s * K_BYTES) >> 4, keep);
      keep = 1;
      WAIT_PRODUCTS(1);
      HOLD_SCORES(S);
      release(at->k_free + s2 * 8);
      mask_block(S, n, i, row0, row, q);
      const int grown = softmax_next(S, &x, scale, &by0, &by8);
      WAIT_PRODUCTS(0);
      HOLD_D(O);
      HOLD_WEIGHTS(P);
      release(at->v_free + s * 8);
      pack_weights(P, BK, S);
      if (grown) scale_rows(O, DP, by0, by8);
      s = s2;
      parity = parity2;
    }
    release(at->q_free + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    mbar_wait(at->v_full + s * 8, parity);
    HOLD_WEIGHTS(P);
    SUM_VALUES(O, P, (at->v + s * K_BYTES) >> 4, keep);
    x.sum0 = row_sum(x.sum0);
    x.sum8 = row_sum(x.sum8);
    WAIT_PRODUCTS(0);
    HOLD_D(O);
    release(at->v_free + s * 8);
    NEXT_STAGE(s, parity, STAGES)
    skip_blocks(at, my_last - last, &s, &parity);
    store_tile(O, &x, n, head, row, o, lse, scale, 1.0f);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_fwd(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *k_, __global const T *v_,
    __global T *o, __global float *lse, __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = forward_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0);
  if (item == 0) forward_rings(&at, 8);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(COPY_REGISTERS);
    if (item == 0) produce(&at, &n, (t_len + BQ - 1) / BQ, batch * heads, (ulong)maps + maps_at, next);
  } else {
    TAKE_REGISTERS(MATH_REGISTERS);
    consume(&at, &n, (item >> 7) - 1, o, lse, scale * LOG2_E);
  }
}
