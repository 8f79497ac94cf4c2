/* Gradients of keys and values for heads of 129 to 256: dv = Pᵀ dO and dk = scale * dSᵀ q. It also stores dS. It is the second part of
 * attention_wide_sm90_bwd.cl, which has the stages in local memory, the barriers and the layout of ds.
 *
 * attention_bwd_kv  A tile is 64 keys of a key head. Consumer 0 computes P and dv, consumer 1 dS and dk, for the query blocks that see these keys,
 *                   in ascending order, and for each block all heads of the group.
 *   maps, maps_at   bytes with the tensor maps of q, dO, k, v and the first of them
 *   q, g, k, v      the memory that the maps describe
 *   stats           result of attention_bwd_stats, f32
 *   dk, dv          T (B,KH,S,D), strided: first elements dk0, dv0, strides dkb, dkh, dkt and dvb, dvh, dvt in elements; the rows of this
 *                   launch's key heads are written once
 *   ds              dS for the key heads of this launch, T, written for the visible blocks
 *   next            two counters, int, 0 before and after the launch
 *   first, count    key heads (of B*KH) of this launch
 *   groups          one per multiprocessor, at most one per tile, of 384 items: a producer warpgroup and two consumers
 *
 * Defines: those of attention_sm90.cl. Launched by `backward` of wide.rs, after attention_bwd_stats.
 */
typedef struct {
  uint k, v, q, g, weights, lse, delta;                          /* first stages in local memory */
  uint kv_full, kv_free, q_full, q_free, g_full, g_free;         /* first barriers */
  __local int *tile;                                             /* key head and block */
} KvPlace;
INLINE KvPlace kv_place(__local uchar *local_) {
  KvPlace at;
  at.k = (uint)(size_t)local_;
  at.v = at.k + BLOCK_BYTES;
  at.q = at.v + BLOCK_BYTES;
  at.g = at.q + STAGES * BLOCK_BYTES;
  at.weights = at.g + STAGES * BLOCK_BYTES;
  at.lse = at.weights + 2 * WEIGHT_BYTES;
  at.delta = at.lse + STAGES * STAT_BYTES;
  at.kv_full = at.delta + STAGES * STAT_BYTES;
  at.kv_free = at.kv_full + 8;
  at.q_full = at.kv_free + 8;
  at.q_free = at.q_full + STAGES * 8;
  at.g_full = at.q_free + STAGES * 8;
  at.g_free = at.g_full + STAGES * 8;
  at.tile = (__local int *)(local_ + KV_LOCAL - BARRIER_BYTES + SLOT_BYTES);
  return at;
}

INLINE void produce_kv(const KvPlace *at, const Sizes *n, int first, int count, ulong maps, __global const float *stats,
                       __global int *next) {
  const ulong mq = use_map(maps), mg = use_map(maps + 128), mk = use_map(maps + 256), mv = use_map(maps + 384);
  const int blocks = blocks_of(n->s_len), tiles = blocks * count, padded = PADDED(n->t_len);
  uint s = 0, parity = 1, tile_parity = 1;
  for (int t = get_group_id(0);; tile_parity ^= 1) {
    mbar_wait(at->kv_free, tile_parity);
    if (t >= tiles) {
      announce_end(at->tile, at->kv_full);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, blocks, n->together, count);
    const int head = first + tile.x, b = head / n->kv_heads, kh = head - b * n->kv_heads;
    announce(at->tile, tile.x, tile.y);
    mbar_expect(at->kv_full, 2 * BLOCK_BYTES);
    copy_rows(at->k, BLOCK, mk, tile.y * BLOCK, kh, b, at->kv_full);
    copy_rows(at->v, BLOCK, mv, tile.y * BLOCK, kh, b, at->kv_full);
    for (int m = first_queries_of(n, tile.y); m < end_queries(n, tile.y); ++m)
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        __global const float *stat = stats + 2 * ((size_t)(b * n->heads + h) * padded + m * BLOCK);
        mbar_wait(at->q_free + s * 8, parity);
        mbar_expect(at->q_full + s * 8, BLOCK_BYTES + STAT_BYTES);
        copy_rows(at->q + s * BLOCK_BYTES, BLOCK, mq, m * BLOCK, h, b, at->q_full + s * 8);
        copy_bytes(at->lse + s * STAT_BYTES, stat, STAT_BYTES, at->q_full + s * 8);
        mbar_wait(at->g_free + s * 8, parity);
        mbar_expect(at->g_full + s * 8, BLOCK_BYTES + STAT_BYTES);
        copy_rows(at->g + s * BLOCK_BYTES, BLOCK, mg, m * BLOCK, h, b, at->g_full + s * 8);
        copy_bytes(at->delta + s * STAT_BYTES, stat + BLOCK, STAT_BYTES, at->g_full + s * 8);
        NEXT_STAGE(s, parity, STAGES)
      }
    t = after;
  }
  leave(next);
}

/* Masks pairs: keys past the end, and keys that the query does not see. key0 is the block's first key, `key` the item's upper row. */
INLINE void mask_pairs(float *s, const Sizes *n, int m, int key0, int key, int q) {
  int need = key0 + BLOCK > n->s_len, from0 = 0, from8 = 0;
#if CAUSAL
  const int past = n->s_len - n->t_len;
  need = need || m * BLOCK + past < key0 + BLOCK - 1;
  from0 = key - past - m * BLOCK - 2 * q;
  from8 = from0 + 8;
#if WINDOW
  if ((m + 1) * BLOCK - 1 + past >= key0 + WINDOW) hide_after(s, BLOCK, 0, from0 + WINDOW - 1, from8 + WINDOW - 1);
#endif
#endif
  if (need) hide_before(s, BLOCK, 0, key < n->s_len ? from0 : BLOCK, key + 8 < n->s_len ? from8 : BLOCK);
}
/* Passes fragments from consumer 0 to consumer 1, item by item; four elements of every item are adjacent. */
INLINE void give_weights(uint to, const float *p) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 2048), "f"(p[j * 4]), "f"(p[j * 4 + 1]), "f"(p[j * 4 + 2]),
                 "f"(p[j * 4 + 3]) : "memory");
}
/* Computes dS / scale from dP, with P from `weights`. */
INLINE void slopes(float *dp, uint weights, uint delta) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j) {
    const float2 of = local_pair(delta + j * 32);
    float p0, p1, p2, p3;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(p0), "=f"(p1), "=f"(p2), "=f"(p3) : "r"(weights + j * 2048));
    dp[j * 4] = p0 * (dp[j * 4] - of.x);
    dp[j * 4 + 1] = p1 * (dp[j * 4 + 1] - of.y);
    dp[j * 4 + 2] = p2 * (dp[j * 4 + 2] - of.x);
    dp[j * 4 + 3] = p3 * (dp[j * 4 + 3] - of.y);
  }
}
/* Stores a packed fragment of keys x queries to `to`, swizzled; `key` is the item's upper row in the block. */
INLINE void store_scores(const uint *p, __global T *to, int key, int q) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; j += 4)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      uint w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = p[(j + i) * 2 + low];
      const uint4 x = whole_chunk(w, q);
      store4_if(to + (key + low * 8) * BLOCK + (((j + q) ^ (key & 7)) * 8), 1, x.x, x.y, x.z, x.w);
    }
}

/* Processes the tiles of consumer `me`: its scores are computed from q (0) or dO (1), its sums from the other one. */
INLINE void consume_kv(const KvPlace *at, const Sizes *n, int first, int me, __global T *ds, __global T *grad, ulong by_b,
                       ulong by_h, ulong by_t, float scale, float out_scale) {
  const int item = get_local_id(0), q = item & 3, in_block = upper_row(item);
  const uint a = (me ? at->v : at->k) >> 4, x_at = me ? at->g : at->q, y_at = me ? at->q : at->g;
  const uint x_full = me ? at->g_full : at->q_full, y_full = me ? at->q_full : at->g_full;
  const uint x_free = me ? at->g_free : at->q_free, y_free = me ? at->q_free : at->g_free;
  const uint stat = (me ? at->delta : at->lse) + q * 8, weights = at->weights + (item & 127) * 16;
  uint s = 0, parity = 0, tile_parity = 0, w = 0;
  for (;; tile_parity ^= 1) {
    mbar_wait(at->kv_full, tile_parity);
    const int head = at->tile[0], block = at->tile[1];
    if (head < 0) break;
    const int b = (first + head) / n->kv_heads, kh = first + head - b * n->kv_heads, key = block * BLOCK + in_block;
    float X[BLOCK / 2], sums[DP / 2];
    uint P[BLOCK / 4], used = 0;
    int keep = 0, h = 0, m = first_queries_of(n, block);
#if WINDOW
    /* Keys before every query's window do not have query blocks, so their sums start at zero. */
#pragma unroll
    for (int i = 0; i < DP / 2; ++i) sums[i] = 0.0f;
#endif
#pragma unroll 1
    for (int left = (end_queries(n, block) - m) * n->group; left > 0; --left) {
      mbar_wait(x_full + s * 8, parity);
      TRANSPOSED_SCORES(X, a, (x_at + s * BLOCK_BYTES) >> 4);
      WAIT_PRODUCTS(0);
      HOLD_F32(X);
      HOLD_D(sums);
      HOLD_U16(P);
      if (keep) release(used);
      if (me == 0) {
        mask_pairs(X, n, m, block * BLOCK, key, q);
        power2_columns(X, BLOCK, scale, stat + s * STAT_BYTES);
        bar_sync(WEIGHTS_FREE + w, 256);
        give_weights(weights + w * WEIGHT_BYTES, X);
        bar_arrive(WEIGHTS_FULL + w, 256);
      } else {
        bar_sync(WEIGHTS_FULL + w, 256);
        slopes(X, weights + w * WEIGHT_BYTES, stat + s * STAT_BYTES);
        bar_arrive(WEIGHTS_FREE + w, 256);
      }
      w ^= 1;
      release(x_free + s * 8);
      pack_weights(P, BLOCK, X);
      if (me) store_scores(P, ds + scores_at(n, head * n->group + h, m, block), in_block, q);
      mbar_wait(y_full + s * 8, parity);
      HOLD_U16(P);
      SUM_ROWS(sums, P, (y_at + s * BLOCK_BYTES) >> 4, WINDOW || keep);
      keep = 1;
      used = y_free + s * 8;
      NEXT_STAGE(s, parity, STAGES)
      if (++h == n->group) h = 0, ++m;
    }
    WAIT_PRODUCTS(0);
    HOLD_D(sums);
    HOLD_U16(P);
    if (keep) release(used);
    release(at->kv_free);
    store_rows(sums, grad + b * by_b + kh * by_h + key * by_t, by_t, key < n->s_len, key + 8 < n->s_len, out_scale, out_scale, q);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_kv(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *g_, __global const T *k_,
    __global const T *v_, __global const float *stats, __global T *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt,
    __global T *dv, ulong dv0, ulong dvb, ulong dvh, ulong dvt, __global T *ds, __global int *next, uint first, uint count,
    uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale) {
  __local uchar local_[KV_LOCAL] __attribute__((aligned(1024)));
  const KvPlace at = kv_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), me = (item >> 7) - 1;
  if (item == 0) {
    ring_init(at.kv_full, at.kv_free, 1, 8);
    ring_init(at.q_full, at.q_free, STAGES, 8);
    ring_init(at.g_full, at.g_free, STAGES, 8);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me < 0) {
    GIVE_REGISTERS(40);
    if (item == 0) produce_kv(&at, &n, first, count, (ulong)maps + maps_at, stats, next);
  } else {
    TAKE_REGISTERS(232);
    if (me == 1) {
      bar_arrive(WEIGHTS_FREE, 256);
      bar_arrive(WEIGHTS_FREE + 1, 256);
    }
    consume_kv(&at, &n, first, me, ds, me ? dk + dk0 : dv + dv0, me ? dkb : dvb, me ? dkh : dvh, me ? dkt : dvt, scale * LOG2_E,
               me ? scale : 1.0f);
    if (me == 0) {
      bar_sync(WEIGHTS_FREE, 256);
      bar_sync(WEIGHTS_FREE + 1, 256);
    }
  }
}
