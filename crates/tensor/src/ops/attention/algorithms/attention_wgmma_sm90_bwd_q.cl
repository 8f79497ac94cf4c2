/* Gradient of the queries for heads of up to 128: dq = scale * dS k, with dS = P * (dO vᵀ - delta). It is the last part of
 * attention_wgmma_sm90_bwd.cl without ORDERED. That file has the barriers and the layout of local memory.
 *
 * attention_bwd_q  A tile is 64 QW queries of a head, 64 per consumer. The consumers keep dq in registers and process the visible key blocks.
 *   maps, maps_at  bytes with the tensor maps of q, dO, k, v and the first of them
 *   q, g, k, v     the memory that the maps describe
 *   stats          result of attention_bwd_stats, f32
 *   dq             T (B,H,T,D), strided: first element dq0, strides dqb, dqh, dqt in elements; every element is written once
 *   next           two counters, int, 0 before and after the launch
 *   together       heads (of B*H) whose tiles run at the same time, so that their keys stay in the L2 cache
 *   groups         one per multiprocessor, at most one per tile, of 128 (QW + 1) items: a producer warpgroup and QW consumers
 *
 * Defines: those of attention_sm90.cl. Launched by `backward` of wgmma.rs, after attention_bwd_kv.
 */
typedef struct {
  uint q, g, k, v;
  uint q_full, q_free, k_full, k_free; /* q with dO, k with v */
  __local int *tile;
} QPlace;

/* Layout of `local_`, Q_LOCAL bytes of it. */
INLINE QPlace q_place(__local uchar *local_) {
  QPlace at;
  at.q = (uint)(size_t)local_;
  at.g = at.q + Q_STAGES * Q_BYTES;
  at.k = at.g + Q_STAGES * Q_BYTES;
  at.v = at.k + QK_STAGES * QK_BYTES;
  at.q_full = at.v + QK_STAGES * QK_BYTES;
  at.q_free = at.q_full + Q_STAGES * 8;
  at.k_full = at.q_free + Q_STAGES * 8;
  at.k_free = at.k_full + QK_STAGES * 8;
  at.tile = (__local int *)(local_ + Q_LOCAL - BARRIER_BYTES + SLOT_BYTES);
  return at;
}

INLINE void produce_q(const QPlace *at, const Sizes *n, int batch, ulong maps, __global int *next) {
  const ulong mq = use_map(maps), mg = use_map(maps + 128), mk = use_map(maps + 256), mv = use_map(maps + 384);
  const int blocks = (n->t_len + Q_BQ - 1) / Q_BQ, all = batch * n->heads, tiles = blocks * all;
  uint s = 0, parity = 1, qs = 0, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free + qs * 8, q_parity);
    if (t >= tiles) {
      announce_end(at->tile + 2 * qs, at->q_full + qs * 8);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int block = blocks - 1 - tile.y, b = tile.x / n->heads, h = tile.x - b * n->heads, kh = h / n->group;
    announce(at->tile + 2 * qs, tile.x, block);
    mbar_expect(at->q_full + qs * 8, 2 * Q_BYTES);
    copy_rows(at->q + qs * Q_BYTES, Q_BQ, mq, block * Q_BQ, h, b, at->q_full + qs * 8);
    copy_rows(at->g + qs * Q_BYTES, Q_BQ, mg, block * Q_BQ, h, b, at->q_full + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    const int keys = key_blocks(n, Q_BK, block * Q_BQ, Q_BQ);
    for (int i = 0; i < keys; ++i) {
      mbar_wait(at->k_free + s * 8, parity);
      mbar_expect(at->k_full + s * 8, 2 * QK_BYTES);
      copy_rows(at->k + s * QK_BYTES, Q_BK, mk, i * Q_BK, kh, b, at->k_full + s * 8);
      copy_rows(at->v + s * QK_BYTES, Q_BK, mv, i * Q_BK, kh, b, at->k_full + s * 8);
      NEXT_STAGE(s, parity, QK_STAGES)
    }
    t = after;
  }
  leave(next);
}

/* Masks the keys of block i that rows `row` (the item's upper row) and 8 below do not see. row0 is the consumer's first row. */
INLINE void mask_keys(float *s, const Sizes *n, int i, int row0, int row) {
  const int column = i * Q_BK + first_column(get_local_id(0));
#if CAUSAL
  if (i * Q_BK + Q_BK > row0 + n->s_len - n->t_len) {
    const int last = row + n->s_len - n->t_len;
    hide_after(s, Q_BK, column, last, last + 8);
  }
#else
  if (i * Q_BK + Q_BK > n->s_len) hide_after(s, Q_BK, column, n->s_len - 1, n->s_len - 1);
#endif
}

/* Processes the tiles of consumer `me`, 64 rows of each. `scale` is the factor of scores to base 2. */
INLINE void consume_q(const QPlace *at, const Sizes *n, int me, __global const float *stats, __global T *dq, ulong dqb, ulong dqh,
                      ulong dqt, float scale, float dq_scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3, padded = PADDED(n->t_len);
  uint s = 0, parity = 0, qs = 0, q_parity = 0;
  for (;;) {
    mbar_wait(at->q_full + qs * 8, q_parity);
    const int head = at->tile[2 * qs], block = at->tile[2 * qs + 1];
    if (head < 0) break;
    const int row0 = block * Q_BQ + me * 64, row = row0 + upper_row(item), all = key_blocks(n, Q_BK, block * Q_BQ, Q_BQ);
    const int inside = row0 < n->t_len, mine = inside ? key_blocks(n, Q_BK, row0, 64) : 0;
    const uint aq = (at->q + qs * Q_BYTES + me * 8192) >> 4, ag = (at->g + qs * Q_BYTES + me * 8192) >> 4;
    __global const float *stat = stats + 2 * ((size_t)head * padded + row0) + upper_row(item);
    const float lse0 = inside ? -stat[0] : 0.0f, lse8 = inside ? -stat[8] : 0.0f;
    const float delta0 = inside ? stat[64] : 0.0f, delta8 = inside ? stat[72] : 0.0f;
    const ulong across = draws_of_row(n), draw = ((ulong)head * (uint)n->t_len + row) * across;
    float dQ[DP / 2];
    uint dS[Q_BK / 4], used = 0;
    int keep = 0;
    for (int i = 0; i < mine; ++i) {
      float S[Q_BK / 2], dP[Q_BK / 2];
      uint kept[Q_BK / 64];
      mbar_wait(at->k_full + s * 8, parity);
      SCORES_Q(S, aq, (at->k + s * QK_BYTES) >> 4);
      SCORES_Q(dP, ag, (at->v + s * QK_BYTES) >> 4);
      kept_by_rows(kept, Q_BK, draw + i * (Q_BK / 4), across * 8, q, drop);
      WAIT_PRODUCTS(1); /* also dQ of the block before, which was committed first */
      HOLD_F32(S);
      HOLD_U16(dS);
      if (keep) release_together(used);
      mask_keys(S, n, i, row0, row);
      power2_rows(S, Q_BK, scale, lse0, lse8);
      WAIT_PRODUCTS(0);
      HOLD_F32(dP);
#pragma unroll
      for (int j = 0; j < Q_BK / 8; ++j) {
        dS[j * 2] = pack(slope(S, dP, j * 4, delta0, kept, drop->keep), slope(S, dP, j * 4 + 1, delta0, kept, drop->keep));
        dS[j * 2 + 1] = pack(slope(S, dP, j * 4 + 2, delta8, kept, drop->keep), slope(S, dP, j * 4 + 3, delta8, kept, drop->keep));
      }
      HOLD_U16(dS);
      SUM_Q(dQ, dS, (at->k + s * QK_BYTES) >> 4, keep);
      keep = 1;
      used = at->k_free + s * 8;
      NEXT_STAGE(s, parity, QK_STAGES)
    }
    WAIT_PRODUCTS(0);
    HOLD_D(dQ);
    HOLD_U16(dS);
    if (keep) release_together(used);
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      mbar_wait(at->k_full + s * 8, parity);
      bar_sync(ALONE + me, 128);
      release_together(at->k_free + s * 8);
      NEXT_STAGE(s, parity, QK_STAGES)
    }
    release_together(at->q_free + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    if (!inside) continue;
    const int b = head / n->heads, h = head - b * n->heads;
    store_rows(dQ, dq + b * dqb + h * dqh + row * dqt, dqt, row < n->t_len, row + 8 < n->t_len, dq_scale, dq_scale, q);
  }
}

__kernel __attribute__((reqd_work_group_size(128 * (QW + 1), 1, 1))) void attention_bwd_q(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *g_, __global const T *k_,
    __global const T *v_, __global const float *stats, __global T *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt,
    __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale DROP_ARGS) {
  __local uchar local_[Q_LOCAL] __attribute__((aligned(1024)));
  const QPlace at = q_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  const int item = get_local_id(0);
  if (item == 0) {
    ring_init(at.q_full, at.q_free, Q_STAGES, QW);
    ring_init(at.k_full, at.k_free, QK_STAGES, QW);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(Q_COPY_REGISTERS);
    if (item == 0) produce_q(&at, &n, batch, (ulong)maps + maps_at, next);
  } else {
    TAKE_REGISTERS(Q_MATH_REGISTERS);
    consume_q(&at, &n, (item >> 7) - 1, stats, dq + dq0, dqb, dqh, dqt, scale * LOG2_E, scale, &drop_);
  }
}
