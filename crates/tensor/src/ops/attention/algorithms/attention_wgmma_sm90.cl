/* Scaled dot-product attention for heads of up to 128 on sm_90: o = softmax(scale * q kᵀ + mask) v on the tensor cores, fed by bulk copies.
 *
 * A tile is BQ = 64 * CW queries of one head, longest first. A persistent group has one producer warpgroup (one item of it copies) and CW
 * consumers of 64 queries each. They process 128 keys (BK) at a time from the last to the first. A consumer issues S = q kᵀ of the next block,
 * then o += P v of this one, and hands the tensor cores to the next consumer. While the next one multiplies, it computes
 * the softmax of S to base 2 (ping-pong). P never leaves the registers.
 *
 *   local memory           q 0 | q 1 | k 0 .. STAGES-1 | v 0 .. STAGES-1 | barriers | tiles
 *   producer  copies       q(t) -> k(n-1), v(n-1) -> ... k(0), v(0) -> q(t+1) ...
 *   consumer 0  products   S(n-1) | S(n-2) O+=P(n-1)v |                    | S(n-3) O+=P(n-2)v |
 *               softmax           | of n-1             | of n-2            |                    | of n-3
 *   consumer 1  products          | S(n-1)             | S(n-2) O+=P(n-1)v |                    | S(n-3) ...
 *
 *   barrier                       id         items           arrives                     waits
 *   q_full, k_full, v_full        (memory)   bytes           the producer's copies       consumers, before a product
 *   q_free, k_free, v_free        (memory)   CW              consumers, one item each    the producer, before the next copy
 *   TURN + i                      2, 3, (4)  256             consumer i - 1, when its    consumer i, before it issues
 *                                                            products are issued
 *   ALONE + i                     8, 9, (10) 128             the items of consumer i, when no product keeps its warps together
 *
 * groups    one per multiprocessor, of 128 * (CW + 1) items
 * maps      at maps_at: q (boxes of BQ rows), k, v (boxes of BK rows), rank 4: (D, rows, heads, batch)
 * q, k, v   read through the maps; bound as arguments so that the queue tracks them
 * o         (B,T,H,D) contiguous, type T
 * lse       (B,H,T) f32, ln of the sum of exp(scale * score)
 * next      two counters, 0 before and after
 * together  heads that share the L2 cache
 * Causal: query t sees keys up to t + S - T, where S - T >= 0 is a multiple of 64. scale > 0. Scores, statistics and o are f32; P is rounded
 * to T before P v.
 *
 * Defines: those of attention_sm90_fwd.cl; CW is 2, or 3 for D <= 64 without dropout. D is at most 128.
 * Measured on an H200 with 64 x 1024 x 12 x 16 (D, T, H, B) CW 3 and 128 x 4096 x 32 x 4, causal, bf16: 0.34 and 0.60 of 989 TFLOP/s. The limits
 * there are the exponentials (16 per clock and multiprocessor) and the power.
 *
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): warp specialization, ping-pong of two or three warpgroups, and the next scores
 * issued before this block's softmax.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet, about 620 under the power limit. Reached in a GPT-2 step (B 64, T 1024, D 64, causal, half of
 * the pairs): 303; the backward 404.
 */
#define TURN 2
#define ALONE 8

/* The tensor cores are passed around: consumer `me` waits for its turn, and then hands them to the next one. */
INLINE void take_turn(int me) { bar_sync(TURN + me, 256); }
INLINE void pass_turn(int me) { bar_arrive(TURN + (me + 1) % CW, 256); }

/* Skips the stage of a key block that consumer `me`'s rows do not see; `more` says whether further blocks of the tile follow. */
INLINE void skip_block(const Place *at, uint s, uint parity, int me, int more) {
  mbar_wait(at->k_full + s * 8, parity);
  mbar_wait(at->v_full + s * 8, parity);
  /* No product keeps the four warps together here. A late warp would miss a phase, and the queue would hang. */
  bar_sync(ALONE + me, 128);
  release_together(at->k_free + s * 8);
  release_together(at->v_free + s * 8);
  if (more) {
    take_turn(me);
    pass_turn(me);
  }
}
/* Masks the keys of block i that the rows from `row` (the item's upper row) do not see. i is the last visible block: it contains the diagonal or
 * the end of the keys. */
INLINE void mask_last_block(float *s, const Sizes *n, int i, int row) {
  const int column = i * BK + first_column(get_local_id(0));
#if CAUSAL
  const int last = row + n->s_len - n->t_len;
  hide_after(s, BK, column, last, last + 8);
#else
  if ((i + 1) * BK > n->s_len) hide_after(s, BK, column, n->s_len - 1, n->s_len - 1);
#endif
}

/* Processes the tiles of consumer warpgroup `me`. */
INLINE void consume(const Place *at, const Sizes *n, int me, __global T *o, __global float *lse, float scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3;
  uint s = 0, parity = 0, qs = 0, q_parity = 0;
  if (me == CW - 1) pass_turn(me); /* the first turn is consumer 0's */
  for (;;) {
    mbar_wait(at->q_full + qs * 8, q_parity);
    const int head = at->tile[2 * qs], block = at->tile[2 * qs + 1];
    if (head < 0) break;
    const int row0 = block * BQ + me * 64, row = row0 + upper_row(item), all = key_blocks(n, BK, block * BQ, BQ);
    const int mine = row0 < n->t_len ? key_blocks(n, BK, row0, 64) : 0;
    const uint aq = (at->q + qs * Q_BYTES + me * 8192) >> 4;
    float S[BK / 2], O[DP / 2], by0, by8;
    uint P[BK / 4], kept[BK / 64];
    const ulong below = draws_of_row(n) * 8, draw = ((ulong)head * (uint)n->t_len + row) * (below / 8);
    Softmax x;
    int keep = 0;
    for (int i = all - 1; i >= mine; --i) {
      skip_block(at, s, parity, me, i > 0);
      NEXT_STAGE(s, parity, STAGES)
    }
    if (mine == 0) {
      release_together(at->q_free + qs * 8);
      NEXT_STAGE(qs, q_parity, Q_STAGES)
      continue;
    }
    mbar_wait(at->k_full + s * 8, parity);
    SCORES(S, aq, (at->k + s * K_BYTES) >> 4);
    kept_by_rows(kept, BK, draw + (mine - 1) * (BK / 4), below, q, drop);
    WAIT_PRODUCTS(0);
    HOLD_SCORES(S);
    release_together(at->k_free + s * 8);
    mask_last_block(S, n, mine - 1, row);
    softmax_first(S, &x, scale);
    pack_kept(P, BK, S, kept);
    for (int i = mine - 2; i >= 0; --i) {
      uint s2 = s, parity2 = parity;
      NEXT_STAGE(s2, parity2, STAGES)
      mbar_wait(at->k_full + s2 * 8, parity2);
      take_turn(me);
      HOLD_WEIGHTS(P);
      SCORES(S, aq, (at->k + s2 * K_BYTES) >> 4);
      mbar_wait(at->v_full + s * 8, parity);
      SUM_VALUES(O, P, (at->v + s * K_BYTES) >> 4, keep);
      pass_turn(me);
      keep = 1;
      kept_by_rows(kept, BK, draw + i * (BK / 4), below, q, drop);
      WAIT_PRODUCTS(1);
      HOLD_SCORES(S);
      release_together(at->k_free + s2 * 8);
      const int grown = softmax_next(S, &x, scale, &by0, &by8);
      WAIT_PRODUCTS(0);
      HOLD_D(O);
      HOLD_WEIGHTS(P);
      release_together(at->v_free + s * 8);
      pack_kept(P, BK, S, kept);
      if (grown) scale_rows(O, DP, by0, by8);
      s = s2;
      parity = parity2;
    }
    release_together(at->q_free + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    mbar_wait(at->v_full + s * 8, parity);
    HOLD_WEIGHTS(P);
    SUM_VALUES(O, P, (at->v + s * K_BYTES) >> 4, keep);
    x.sum0 = row_sum(x.sum0);
    x.sum8 = row_sum(x.sum8);
    WAIT_PRODUCTS(0);
    HOLD_D(O);
    release_together(at->v_free + s * 8);
    NEXT_STAGE(s, parity, STAGES)
    store_tile(O, &x, n, head, row, o, lse, scale, drop->keep);
  }
  if (me == 0) take_turn(me);
}

__kernel __attribute__((reqd_work_group_size(128 * (CW + 1), 1, 1))) void attention_fwd(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *k_, __global const T *v_,
    __global T *o, __global float *lse, __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale DROP_ARGS) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = forward_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  const int item = get_local_id(0);
  if (item == 0) forward_rings(&at, CW);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(COPY_REGISTERS);
    if (item == 0) produce(&at, &n, (t_len + BQ - 1) / BQ, batch * heads, (ulong)maps + maps_at, next);
  } else {
    TAKE_REGISTERS(MATH_REGISTERS);
    consume(&at, &n, (item >> 7) - 1, o, lse, scale * LOG2_E, &drop_);
  }
}
