/* Gradients of keys and values in f32: dv = Pᵀ dO and dk = scale * dSᵀ q, with P and dS of attention_bf16x3_sm90_bwd.cl, whose second part
 * this is. That file has the barriers and the layout of local memory.
 *
 * attention_bwd_kv  A tile is 128 keys of a key head, 64 per consumer. The consumers keep dk and dv in registers and process, for each query
 *                   head of the group, the query blocks that see these keys, in ascending order.
 *   q, g, k, v      images of bf16 parts of q, dO, k, v (attention_planes): (B, heads, blocks of 64 rows, 3, 8, 64, 8), k and v with KH heads
 *   stats           result of attention_bwd_stats, f32
 *   dk, dv          f32 (B,KH,S,D), strided: first elements dk0, dv0, strides dkb, dkh, dkt and dvb, dvh, dvt in elements; every element is
 *                   written once
 *   next            two counters, int, 0 before and after the launch
 *   together        key heads (of B*KH) whose tiles run at the same time, so that their queries stay in the L2 cache
 *   groups          one per multiprocessor, at most one per tile, of 384 items: a producer warpgroup and two consumers
 *
 * Defines: those of attention_sm90.cl. Launched by `backward` of bf16x3.rs, after attention_bwd_stats.
 */
INLINE void produce_kv(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *g_,
                              __global const uchar *k_, __global const uchar *v_, __global const float *stats, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (k_blocks + 1) / 2, all = batch * n->kv_heads;
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
    const int b = tile.x / n->kv_heads, kh = tile.x - b * n->kv_heads;
    announce(at->tile, tile.x, tile.y);
    hold(at, k_, v_, tile.x, k_blocks, 2 * tile.y);
    for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
      for (int m = first_queries(n, 64, tile.y * 128); m < q_blocks; ++m) {
        const uint to = at->ring + s * 2 * BLOCK, bar = at->ring_full + s * 8;
        const long block = (long)(b * n->heads + h) * q_blocks + m;
        mbar_wait(at->ring_free + s * 8, parity);
        mbar_expect(bar, 2 * BLOCK + 512);
        copy_bytes(to, q_ + block * BLOCK, BLOCK, bar);
        copy_bytes(to + BLOCK, g_ + block * BLOCK, BLOCK, bar);
        copy_bytes(at->stats + s * 512, stats + block * 128, 512, bar);
        NEXT_STAGE(s, parity, STAGES)
      }
    }
    t = after;
  }
  leave(next);
}

/* Destinations of the gradients of keys and values: first elements, strides of batch, head and row. */
typedef struct {
  __global float *dk, *dv;
  ulong dk0, dv0, dkb, dkh, dkt, dvb, dvh, dvt;
} KvGrads;

/* Processes the tiles of consumer `me` (warpgroup 1 or 2), 64 keys of each. `scale` is the factor of scores to base 2. */
INLINE void consume_kv(const Place *at, const Sizes *n, int warpgroup, const KvGrads *to, float scale, float dk_scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3, g = (item & 31) >> 2, me = warpgroup - 1, q_blocks = BLOCKS(n->t_len);
  uint s = 0, parity = 0, held_parity = 0;
  for (;;) {
    mbar_wait(at->held_full, held_parity);
    held_parity ^= 1;
    const int head = at->tile[0], block = 2 * at->tile[1] + me;
    if (head < 0) break;
    const int b = head / n->kv_heads, kh = head - b * n->kv_heads, key0 = block * 64, key = key0 + upper_row(item);
    const int inside = key0 < n->s_len, from = inside ? first_queries(n, 64, key0) : q_blocks;
    const ulong ak = ROWS_OF(at->held + me * BLOCK), av = ROWS_OF(at->held + (2 + me) * BLOCK);
    float dK[32], dV[32];
    zero(dK, 64);
    zero(dV, 64);
    for (int h = kh * n->group; h < (kh + 1) * n->group; ++h)
      for (int m = first_queries(n, 64, key0 - me * 64); m < q_blocks; ++m) {
        if (m < from) { /* queries that see none of these keys */
          skip_stage(at->ring_full + s * 8, at->ring_free + s * 8, parity, me);
          NEXT_STAGE(s, parity, STAGES)
          continue;
        }
        float S[32], dP[32], part[32];
        uint P[48], kept[1];
        const uint block_q = at->ring + s * 2 * BLOCK, block_g = block_q + BLOCK, stat = at->stats + s * 512 + q * 8;
        mbar_wait(at->ring_full + s * 8, parity);
        BF16X3_SS(S, ak, ROWS_OF(block_q));
        BF16X3_SS(dP, av, ROWS_OF(block_g));
        const ulong across = draws_of_row(n), row = ((ulong)b * (uint)n->heads + h) * (uint)n->t_len + m * 64 + 2 * q;
        kept_by_columns(kept, 64, row * across + key / 4, across, g, drop);
        WAIT_PRODUCTS(1);
        HOLD_F32(S);
#if CAUSAL
        const int first = key - (n->s_len - n->t_len) - m * 64 - 2 * q;
        if (m * 64 + n->s_len - n->t_len < key0 + 64) hide_before(S, 64, 0, first, first + 8);
#endif
        power2_columns(S, 64, scale, stat);
        WAIT_PRODUCTS(0);
        HOLD_F32(dP);
        /* Computes dS / scale in dP, and in S the weights for dv's product. */
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 delta = local_pair(column_statistic(stat + 256, j));
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = j * 4 + e;
            dP[i] = S[i] * (dropped(kept, i, dP[i] * drop->keep) - (e & 1 ? delta.y : delta.x));
            S[i] = dropped(kept, i, S[i]);
          }
        }
        cut_up(P, S);
        HOLD_U48(P);
        BF16X3_RS(part, P, COLUMNS_OF(block_g));
        WAIT_PRODUCTS(0);
        HOLD_F32(part);
        HOLD_U48(P);
        add(dV, 64, part);
        cut_up(P, dP);
        HOLD_U48(P);
        BF16X3_RS(part, P, COLUMNS_OF(block_q));
        WAIT_PRODUCTS(0);
        HOLD_F32(part);
        HOLD_U48(P);
        release_together(at->ring_free + s * 8);
        add(dK, 64, part);
        NEXT_STAGE(s, parity, STAGES)
      }
    bar_sync(ALONE + me, 128); /* all items have read the tile's number */
    release_together(at->held_free);
    if (!inside) continue;
    const int ok0 = key < n->s_len, ok8 = key + 8 < n->s_len;
    store_floats(dK, to->dk + to->dk0 + b * to->dkb + kh * to->dkh + key * to->dkt, to->dkt, ok0, ok8, dk_scale, dk_scale, q);
    store_floats(dV, to->dv + to->dv0 + b * to->dvb + kh * to->dvh + key * to->dvt, to->dvt, ok0, ok8, drop->keep, drop->keep, q);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_kv(
    __global const uchar *q_, __global const uchar *g_, __global const uchar *k_, __global const uchar *v_,
    __global const float *stats, __global float *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt, __global float *dv, ulong dv0,
    ulong dvb, ulong dvh, ulong dvt, __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale DROP_ARGS) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  KvGrads to;
  to.dk = dk, to.dv = dv, to.dk0 = dk0, to.dv0 = dv0, to.dkb = dkb, to.dkh = dkh, to.dkt = dkt, to.dvb = dvb, to.dvh = dvh, to.dvt = dvt;
  const int item = get_local_id(0);
  if (item == 0) rings(&at);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_kv(&at, &n, batch, q_, g_, k_, v_, stats, next);
  } else {
    TAKE_REGISTERS(240);
    consume_kv(&at, &n, item >> 7, &to, scale * LOG2_E, scale, &drop_);
  }
}
