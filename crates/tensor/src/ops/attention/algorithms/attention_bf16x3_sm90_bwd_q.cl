/* Gradient of the queries in f32: dq = scale * dS k, with dS = P * (dO vᵀ - delta) and P = 2^(scale * s - stat). It is the third part of
 * attention_bf16x3_sm90_bwd.cl, which has the barriers and the layout of local memory.
 *
 * attention_bwd_q  A tile is 128 queries of a head, 64 per consumer. The consumers keep dq in registers and process the visible key blocks in
 *                  ascending order.
 *   q, g, k, v     images of bf16 parts of q, dO, k, v (attention_planes): (B, heads, blocks of 64 rows, 3, 8, 64, 8), k and v with KH heads
 *   stats          result of attention_bwd_stats, f32
 *   dq             f32 (B,H,T,D), strided: first element dq0, strides dqb, dqh, dqt in elements; every element is written once
 *   next           two counters, int, 0 before and after the launch
 *   together       heads (of B*H) whose tiles run at the same time, so that their keys stay in the L2 cache
 *   groups         one per multiprocessor, at most one per tile, of 384 items: a producer warpgroup and two consumers
 *
 * Defines: those of attention_sm90.cl. Launched by `backward` of bf16x3.rs, after attention_bwd_stats.
 */
INLINE void produce_q(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *g_,
                             __global const uchar *k_, __global const uchar *v_, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (q_blocks + 1) / 2, all = batch * n->heads;
  uint s = 0, parity = 1, held_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->held_free, held_parity);
    held_parity ^= 1;
    if (t >= pairs * all) {
      announce_end(at->tile, at->held_full);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, pairs, n->together, all);
    const int pair = pairs - 1 - tile.y, b = tile.x / n->heads, kh = b * n->kv_heads + (tile.x - b * n->heads) / n->group;
    announce(at->tile, tile.x, pair);
    hold(at, q_, g_, tile.x, q_blocks, 2 * pair);
    const int keys = key_blocks(n, 64, pair * 128, 128);
    for (int i = 0; i < keys; ++i) {
      const uint to = at->ring + s * 2 * BLOCK, bar = at->ring_full + s * 8;
      mbar_wait(at->ring_free + s * 8, parity);
      mbar_expect(bar, 2 * BLOCK);
      copy_bytes(to, k_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      copy_bytes(to + BLOCK, v_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      NEXT_STAGE(s, parity, STAGES)
    }
    t = after;
  }
  leave(next);
}

/* Processes the tiles of consumer `me` (warpgroup 1 or 2), 64 rows of each. `scale` is the factor of scores to base 2. */
INLINE void consume_q(const Place *at, const Sizes *n, int warpgroup, __global const float *stats, __global float *dq, ulong dqb, ulong dqh,
                      ulong dqt, float scale, float dq_scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3, me = warpgroup - 1;
  uint s = 0, parity = 0, held_parity = 0;
  for (;;) {
    mbar_wait(at->held_full, held_parity);
    held_parity ^= 1;
    const int head = at->tile[0], pair = at->tile[1];
    if (head < 0) break;
    const int row0 = pair * 128 + me * 64, row = row0 + upper_row(item), all = key_blocks(n, 64, pair * 128, 128);
    const int inside = row0 < n->t_len, mine = inside ? key_blocks(n, 64, row0, 64) : 0;
    const ulong aq = ROWS_OF(at->held + me * BLOCK), ag = ROWS_OF(at->held + (2 + me) * BLOCK);
    __global const float *stat = stats + 128 * ((size_t)head * BLOCKS(n->t_len) + row0 / 64) + upper_row(item);
    const float lse0 = inside ? -stat[0] : 0.0f, lse8 = inside ? -stat[8] : 0.0f;
    const float delta0 = inside ? stat[64] : 0.0f, delta8 = inside ? stat[72] : 0.0f;
    const ulong across = draws_of_row(n), draw = ((ulong)head * (uint)n->t_len + row) * across;
    float dQ[32];
    zero(dQ, 64);
    for (int i = 0; i < mine; ++i) {
      float S[32], dP[32], part[32];
      uint P[48], kept[1];
      const uint k = at->ring + s * 2 * BLOCK;
      mbar_wait(at->ring_full + s * 8, parity);
      BF16X3_SS(S, aq, ROWS_OF(k));
      BF16X3_SS(dP, ag, ROWS_OF(k + BLOCK));
      kept_by_rows(kept, 64, draw + i * 16, across * 8, q, drop);
      WAIT_PRODUCTS(1);
      HOLD_F32(S);
      mask_keys(S, n, i, row0, row);
      power2_rows(S, 64, scale, lse0, lse8);
      WAIT_PRODUCTS(0);
      HOLD_F32(dP);
#pragma unroll
      for (int j = 0; j < 32; ++j) S[j] *= dropped(kept, j, dP[j] * drop->keep) - (j & 2 ? delta8 : delta0);
      cut_up(P, S);
      HOLD_U48(P);
      BF16X3_RS(part, P, COLUMNS_OF(k));
      WAIT_PRODUCTS(0);
      HOLD_F32(part);
      HOLD_U48(P);
      release_together(at->ring_free + s * 8);
      add(dQ, 64, part);
      NEXT_STAGE(s, parity, STAGES)
    }
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      skip_stage(at->ring_full + s * 8, at->ring_free + s * 8, parity, me);
      NEXT_STAGE(s, parity, STAGES)
    }
    bar_sync(ALONE + me, 128); /* all items have read the tile's number */
    release_together(at->held_free);
    if (!inside) continue;
    const int b = head / n->heads, h = head - b * n->heads;
    store_floats(dQ, dq + b * dqb + h * dqh + row * dqt, dqt, row < n->t_len, row + 8 < n->t_len, dq_scale, dq_scale, q);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_q(
    __global const uchar *q_, __global const uchar *g_, __global const uchar *k_, __global const uchar *v_,
    __global const float *stats, __global float *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt, __global int *next, uint batch,
    uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale DROP_ARGS) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  const int item = get_local_id(0);
  if (item == 0) rings(&at);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_q(&at, &n, batch, q_, g_, k_, v_, next);
  } else {
    TAKE_REGISTERS(240);
    consume_q(&at, &n, item >> 7, stats, dq + dq0, dqb, dqh, dqt, scale * LOG2_E, scale, &drop_);
  }
}
