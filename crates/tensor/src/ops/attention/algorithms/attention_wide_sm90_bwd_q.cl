/* Gradient of the queries for heads of 129 to 256: dq = scale * dS k, a product with the stored dS. It is the third part of
 * attention_wide_sm90_bwd.cl, which has the stages in local memory, the barriers and the layout of ds.
 *
 * attention_bwd_q  A tile is 128 queries of a head, 64 per consumer. The consumers keep dq in registers and process the visible key blocks in
 *                  ascending order. Tiles start with the last queries, which see the most keys.
 *   maps, maps_at  bytes with the tensor maps of q, dO, k, v and the first of them; only the map of k is used
 *   k              the memory that the map of k describes
 *   ds             dS of attention_bwd_kv for the same key heads, T
 *   dq             T (B,H,T,D), strided: first element dq0, strides dqb, dqh, dqt in elements; the rows of this launch's heads are written once
 *   next           two counters, int, 0 before and after the launch
 *   first, count   key heads (of B*KH) of this launch
 *   groups         one per multiprocessor, at most one per tile, of 384 items: a producer warpgroup and two consumers
 *
 * Defines: those of attention_sm90.cl. Launched by `backward` of wide.rs, after attention_bwd_kv.
 */
typedef struct {
  uint stages, full, free, tile_full, tile_free;
  __local int *tile; /* head and block, of two tiles */
} QPlace;

INLINE void produce_q(const QPlace *at, const Sizes *n, int first, int count, ulong maps, __global const T *ds,
                      __global int *next) {
  const ulong mk = use_map(maps + 256);
  const int queries = blocks_of(n->t_len), blocks = (queries + 1) / 2, all = count * n->group, tiles = blocks * all;
  uint s = 0, parity = 1, ts = 0, tile_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->tile_free + ts * 8, tile_parity);
    if (t >= tiles) {
      announce_end(at->tile + 2 * ts, at->tile_full + ts * 8);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int block = blocks - 1 - tile.y, kv_head = first + tile.x / n->group, b = kv_head / n->kv_heads, kh = kv_head - b * n->kv_heads;
    announce(at->tile + 2 * ts, tile.x, block);
    mbar_arrive(at->tile_full + ts * 8);
    NEXT_STAGE(ts, tile_parity, 2)
    /* The second 64 queries have a later first key and a later last key. */
    const int m = 2 * block, two = m + 1 < queries, from1 = first_keys(n, m + 1), end0 = end_keys(n, m);
    const int end = two ? end_keys(n, m + 1) : end0;
    for (int i = first_keys(n, m); i < end; ++i) {
      const int use0 = i < end0, use1 = two && i >= from1;
      const uint to = at->stages + s * Q_STAGE_BYTES, bar = at->full + s * 8;
      mbar_wait(at->free + s * 8, parity);
      mbar_expect(bar, BLOCK_BYTES + (use0 + use1) * SCORE_BYTES);
      if (use0) copy_bytes(to, ds + scores_at(n, tile.x, m, i), SCORE_BYTES, bar);
      if (use1) copy_bytes(to + SCORE_BYTES, ds + scores_at(n, tile.x, m + 1, i), SCORE_BYTES, bar);
      copy_rows(to + 2 * SCORE_BYTES, BLOCK, mk, i * BLOCK, kh, b, bar);
      NEXT_STAGE(s, parity, Q_STAGES)
    }
    t = after;
  }
  leave(next);
}

/* Skips key blocks that the warpgroup's queries do not see. */
INLINE void skip_stages(const QPlace *at, int blocks, uint *s, uint *parity) {
  for (; blocks > 0; --blocks) {
    mbar_wait(at->full + *s * 8, *parity);
    release(at->free + *s * 8);
    NEXT_STAGE(*s, *parity, Q_STAGES)
  }
}

INLINE void consume_q(const QPlace *at, const Sizes *n, int first, int me, __global T *dq, ulong by_b, ulong by_h, ulong by_t,
                      float scale) {
  const int item = get_local_id(0), q = item & 3, in_block = upper_row(item);
  const int queries = blocks_of(n->t_len);
  uint s = 0, parity = 0, ts = 0, tile_parity = 0;
  for (;;) {
    mbar_wait(at->tile_full + ts * 8, tile_parity);
    const int head = at->tile[2 * ts], m0 = 2 * at->tile[2 * ts + 1], m = m0 + me;
    if (head < 0) break;
    release(at->tile_free + ts * 8);
    NEXT_STAGE(ts, tile_parity, 2)
    const int inside = m < queries, first_block = first_keys(n, m0), blocks_end = end_keys(n, min(m0 + 1, queries - 1));
    const int from = inside ? first_keys(n, m) : blocks_end, end = inside ? end_keys(n, m) : blocks_end;
    skip_stages(at, from - first_block, &s, &parity);
    float sums[DP / 2];
    uint used = 0;
    int keep = 0;
#pragma unroll 1
    for (int i = from; i < end; ++i) {
      const uint stage = at->stages + s * Q_STAGE_BYTES;
      mbar_wait(at->full + s * 8, parity);
      SUM_QUERIES(sums, (stage + me * SCORE_BYTES) >> 4, (stage + 2 * SCORE_BYTES) >> 4, keep);
      WAIT_PRODUCTS(1);
      if (keep) release(used);
      keep = 1;
      used = at->free + s * 8;
      NEXT_STAGE(s, parity, Q_STAGES)
    }
    WAIT_PRODUCTS(0);
    HOLD_D(sums);
    if (keep) release(used);
    skip_stages(at, blocks_end - end, &s, &parity);
    if (!inside) continue;
    const int kv_head = first + head / n->group, b = kv_head / n->kv_heads;
    const int h = (kv_head - b * n->kv_heads) * n->group + head % n->group, row = m * BLOCK + in_block;
    store_rows(sums, dq + b * by_b + h * by_h + row * by_t, by_t, row < n->t_len, row + 8 < n->t_len, scale, scale, q);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_q(
    __global const uchar *maps, ulong maps_at, __global const T *k_, __global const T *ds, __global T *dq, ulong dq0, ulong dqb,
    ulong dqh, ulong dqt, __global int *next, uint first, uint count, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale) {
  __local uchar local_[Q_LOCAL] __attribute__((aligned(1024)));
  QPlace at;
  at.stages = (uint)(size_t)local_;
  at.full = at.stages + Q_STAGES * Q_STAGE_BYTES;
  at.free = at.full + Q_STAGES * 8;
  at.tile_full = at.free + Q_STAGES * 8;
  at.tile_free = at.tile_full + 2 * 8;
  at.tile = (__local int *)(local_ + Q_LOCAL - BARRIER_BYTES + SLOT_BYTES);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0);
  if (item == 0) {
    ring_init(at.full, at.free, Q_STAGES, 8);
    ring_init(at.tile_full, at.tile_free, 2, 8);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(40);
    if (item == 0) produce_q(&at, &n, first, count, (ulong)maps + maps_at, ds, next);
  } else {
    TAKE_REGISTERS(232);
    consume_q(&at, &n, first, (item >> 7) - 1, dq + dq0, dqb, dqh, dqt, scale);
  }
}
