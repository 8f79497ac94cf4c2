/* Gradients of attention for heads of 129 to 256 on sm_90, with the tiles and the overlap of FlashAttention-3 (Shah et al. 2024):
 *   P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dv = Pᵀ dO,  dk = scale * dSᵀ q,  dq = scale * dS k.
 *
 * dq is not summed over key blocks in memory: dS, of type T, is kept for the heads of a launch (2 bytes a score, against 4 D bytes that
 * sums of dq would move for 64 keys), and a second kernel multiplies it by k. Five products, no atomics on results; the order of every sum
 * is fixed by the shapes.
 *
 * attention_bwd_kv   A tile is 64 keys of a key head; it walks blocks of 64 queries of all heads of the group. Consumer 0 holds dv,
 *                    consumer 1 dk, 64 x D sums each. Scores are transposed (keys by queries), so that Pᵀ and dSᵀ in registers are
 *                    the A operands of dv and dk.
 *
 *   local memory     k | v | q 0 | q 1 | dO 0 | dO 1 | P 0 | P 1 | stats | barriers | tile
 *   producer         k, v (tile) -> q(0), dO(0) -> q(1), dO(1) -> ...
 *   consumer 0       Sᵀ(i) = k qᵀ  -> P(i) -> local memory, registers -> dv += Pᵀ dO   | Sᵀ(i+1) ...
 *   consumer 1       dPᵀ(i) = v dOᵀ -> P(i) from there -> dS(i) -> memory -> dk += dSᵀ q | dPᵀ(i+1) ...
 *   While one computes powers or differences, the products of the other run.
 *
 *   barrier          id     items   arrives               waits
 *   kv_full          -      copies  the producer's copy   consumers, at the start of a tile
 *   kv_free          -      8 warps consumers             the producer, before the next tile
 *   q_full, g_full   -      copies  q and lse, dO, delta  consumers, before a product
 *   q_free, g_free   -      8 warps consumers, after both the producer, before the next copy
 *   WEIGHTS_FULL + s 2, 3   256     consumer 0, P stored  consumer 1
 *   WEIGHTS_FREE + s 4, 5   256     consumer 1, P read    consumer 0
 *
 * attention_bwd_q    A tile is 128 queries of a head, 64 a consumer; a product over its key blocks with D columns, A (dS) by columns.
 *
 *   local memory     stages of: dS of 64 queries x 64 keys for each consumer, k of 64 keys | barriers | tile
 *   full, free       as above, 4 stages
 *
 *   ds               (key heads of the launch, group, query blocks, key blocks) of 64 keys x 64 queries, type T, as local memory has
 *                    them: 128 bytes a key, 16-byte chunk c of key r at c ^ (r & 7)
 *   groups           as many as multiprocessors, of 384 items
 *   maps             at maps_at: q, dO, k, v, rank 4, boxes of 64 rows
 *   stats            of attention_bwd_stats
 *   dq, dk, dv       strided, type T, every element written
 *   next             two counters, 0 before and after
 *   first, count     key heads (B,KH) of this launch
 *   together         heads that share the L2 cache: key heads in attention_bwd_kv
 * Causal: query t sees keys up to t + S - T, S >= T; with a window of these the last WINDOW. P and dS are rounded to T before their products, everything else is f32.
 *
 * Defines: those of attention_sm90.cl; D 129 to 256, no DROPOUT.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet, 620 to 740 where the power limit holds products.
 * Reached on an H200 with 256 x 4096 x 16 x 4 (D, T, H, B), bf16, five products counted: 550 to 620 TFLOP/s causal, 600 full.
 */
#define BLOCK 64
#define BLOCK_BYTES (BLOCK * DP * 2)
#define STAGES 2
#define SCORE_BYTES (BLOCK * BLOCK * 2)
#define WEIGHT_BYTES (BLOCK * BLOCK * 4)
#define STAT_BYTES (BLOCK * 4)
#define KV_LOCAL (2 * BLOCK_BYTES + 2 * STAGES * BLOCK_BYTES + 2 * WEIGHT_BYTES + 2 * STAGES * STAT_BYTES + BARRIER_BYTES)
#define Q_STAGES 4
#define Q_STAGE_BYTES (2 * SCORE_BYTES + BLOCK_BYTES)
#define Q_LOCAL (Q_STAGES * Q_STAGE_BYTES + BARRIER_BYTES)
#define WEIGHTS_FULL 2
#define WEIGHTS_FREE 4
#define TRANSPOSED_SCORES(s, a, b) PRODUCT_D(s, 64, a, BLOCK, b)
#define SUM_ROWS(c, p, x, keep) PRODUCT_ROWS(c, 4, p, x, keep)
#if DP == 192
#define SUM_QUERIES(c, a, b, keep) BY_BY_N192_K4(c, BY_COLUMNS(BLOCK) | (ulong)(a), BY_COLUMNS(BLOCK) | (ulong)(b), keep)
#else
#define SUM_QUERIES(c, a, b, keep) BY_BY_N256_K4(c, BY_COLUMNS(BLOCK) | (ulong)(a), BY_COLUMNS(BLOCK) | (ulong)(b), keep)
#endif

INLINE int blocks_of(int rows) { return (rows + BLOCK - 1) / BLOCK; }
/* Query blocks that see keys of block i, and key blocks that query block m sees: the first, and the one after the last. */
INLINE int first_queries(const Sizes *n, int i) {
#if CAUSAL
  return max(i * BLOCK - (n->s_len - n->t_len), 0) / BLOCK;
#else
  return 0;
#endif
}
INLINE int end_queries(const Sizes *n, int i) {
#if WINDOW
  return blocks_of(max(min((i + 1) * BLOCK - 1 + WINDOW - (n->s_len - n->t_len), n->t_len), 0));
#else
  return blocks_of(n->t_len);
#endif
}
INLINE int first_keys(const Sizes *n, int m) {
#if WINDOW
  return max(m * BLOCK + n->s_len - n->t_len + 1 - WINDOW, 0) / BLOCK;
#else
  return 0;
#endif
}
INLINE int end_keys(const Sizes *n, int m) {
#if CAUSAL
  return blocks_of(min(min((m + 1) * BLOCK, n->t_len) + n->s_len - n->t_len, n->s_len));
#else
  return blocks_of(n->s_len);
#endif
}
/* dS of query block m of head h and key block i; heads are counted from the launch's first. */
INLINE size_t scores_at(const Sizes *n, int h, int m, int i) {
  return (((size_t)h * blocks_of(n->t_len) + m) * blocks_of(n->s_len) + i) * (BLOCK * BLOCK);
}
INLINE void copy_bytes(uint to, ulong from, int bytes, uint bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(bar) : "memory");
}

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
      at->tile[0] = -1;
      mbar_arrive(at->kv_full);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, blocks, n->together, count);
    const int head = first + tile.x, b = head / n->kv_heads, kh = head - b * n->kv_heads;
    at->tile[0] = tile.x;
    at->tile[1] = tile.y;
    mbar_expect(at->kv_full, 2 * BLOCK_BYTES);
    copy_rows(at->k, BLOCK, mk, tile.y * BLOCK, kh, b, at->kv_full);
    copy_rows(at->v, BLOCK, mv, tile.y * BLOCK, kh, b, at->kv_full);
    for (int m = first_queries(n, tile.y); m < end_queries(n, tile.y); ++m)
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        __global const float *stat = stats + 2 * ((size_t)(b * n->heads + h) * padded + m * BLOCK);
        mbar_wait(at->q_free + s * 8, parity);
        mbar_expect(at->q_full + s * 8, BLOCK_BYTES + STAT_BYTES);
        copy_rows(at->q + s * BLOCK_BYTES, BLOCK, mq, m * BLOCK, h, b, at->q_full + s * 8);
        copy_floats(at->lse + s * STAT_BYTES, stat, BLOCK, at->q_full + s * 8);
        mbar_wait(at->g_free + s * 8, parity);
        mbar_expect(at->g_full + s * 8, BLOCK_BYTES + STAT_BYTES);
        copy_rows(at->g + s * BLOCK_BYTES, BLOCK, mg, m * BLOCK, h, b, at->g_full + s * 8);
        copy_floats(at->delta + s * STAT_BYTES, stat + BLOCK, BLOCK, at->g_full + s * 8);
        NEXT_STAGE(s, parity, STAGES)
      }
    t = after;
  }
  leave(next);
}

/* Transposed scores of queries before from0 (upper key) and from8 (8 below) become -infinity; both relative to the item's first. */
INLINE void hide_queries(float *s, int from0, int from8) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j) {
    if (j * 8 < from0) s[j * 4] = -INFINITY;
    if (j * 8 + 1 < from0) s[j * 4 + 1] = -INFINITY;
    if (j * 8 < from8) s[j * 4 + 2] = -INFINITY;
    if (j * 8 + 1 < from8) s[j * 4 + 3] = -INFINITY;
  }
}
#if WINDOW
/* The same for queries from to0 and to8 on. */
INLINE void hide_queries_from(float *s, int to0, int to8) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j) {
    if (j * 8 >= to0) s[j * 4] = -INFINITY;
    if (j * 8 + 1 >= to0) s[j * 4 + 1] = -INFINITY;
    if (j * 8 >= to8) s[j * 4 + 2] = -INFINITY;
    if (j * 8 + 1 >= to8) s[j * 4 + 3] = -INFINITY;
  }
}
#endif
/* Hides pairs that do not see each other: keys past the end, and causality. key0 is the block's first key, `key` the item's upper. */
INLINE void mask_pairs(float *s, const Sizes *n, int m, int key0, int key, int q) {
  int need = key0 + BLOCK > n->s_len, from0 = 0, from8 = 0;
#if CAUSAL
  const int past = n->s_len - n->t_len;
  need = need || m * BLOCK + past < key0 + BLOCK - 1;
  from0 = key - past - m * BLOCK - 2 * q;
  from8 = from0 + 8;
#if WINDOW
  if ((m + 1) * BLOCK - 1 + past >= key0 + WINDOW) hide_queries_from(s, from0 + WINDOW, from8 + WINDOW);
#endif
#endif
  if (need) hide_queries(s, key < n->s_len ? from0 : BLOCK, key + 8 < n->s_len ? from8 : BLOCK);
}
/* P from transposed scores; `lse` is the place of the item's first pair of queries. */
INLINE void powers(float *s, uint lse, float scale) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j) {
    const float2 of = local_pair(lse + j * 32);
    s[j * 4] = power2(fma(s[j * 4], scale, -of.x));
    s[j * 4 + 1] = power2(fma(s[j * 4 + 1], scale, -of.y));
    s[j * 4 + 2] = power2(fma(s[j * 4 + 2], scale, -of.x));
    s[j * 4 + 3] = power2(fma(s[j * 4 + 3], scale, -of.y));
  }
}
/* Fragments pass from consumer 0 to consumer 1, item by item: four elements of every item side by side. */
INLINE void give_weights(uint to, const float *p) {
#pragma unroll
  for (int j = 0; j < BLOCK / 8; ++j)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 2048), "f"(p[j * 4]), "f"(p[j * 4 + 1]), "f"(p[j * 4 + 2]),
                 "f"(p[j * 4 + 3]) : "memory");
}
/* dS / scale from dP, with P from `weights`. */
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
INLINE void pack_scores(uint *p, const float *s) {
#pragma unroll
  for (int i = 0; i < BLOCK / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}
/* A packed fragment of keys x queries to `to`, swizzled; `key` is the item's upper row in the block. */
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

/* The tiles of consumer `me`: its scores are those of q (0) or dO (1), its sums those with the other. */
INLINE void consume_kv(const KvPlace *at, const Sizes *n, int first, int me, __global T *ds, __global T *grad, ulong by_b,
                       ulong by_h, ulong by_t, float scale, float out_scale) {
  const int item = get_local_id(0), q = item & 3, g = (item & 31) >> 2, in_block = (item >> 5 & 3) * 16 + g;
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
    int keep = 0, h = 0, m = first_queries(n, block);
#if WINDOW
    /* Keys before every query's window have no block of queries. */
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
        powers(X, stat + s * STAT_BYTES, scale);
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
      pack_scores(P, X);
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
