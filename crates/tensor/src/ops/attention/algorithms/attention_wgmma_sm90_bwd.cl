/* Gradients of attention for heads of up to 128 on sm_90; q, k, v, o, lse as in attention_wgmma_sm90.cl.
 *
 * Two passes without atomics on results; the shapes determine the order of every sum.
 *   delta = sum_d dO*o,  P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dq = scale * dS k,  dk = scale * dSᵀ q,  dv = Pᵀ dO
 * attention_bwd_stats  in attention_sm90_bwd.cl
 * attention_bwd_kv     in _kv.cl. A tile is KV_BK = 128 keys of a key head. Two consumers of 64 keys hold dk and dv in registers and process
 *                      the query blocks of all heads of the group; Sᵀ = k qᵀ and dPᵀ = v dOᵀ, so that Pᵀ and dSᵀ are A operands
 *
 *   local memory       k, v, KV_STAGES | q, dO, STAGES | dSᵀ 0, 1 | dq parts 0, 1 (both ORDERED) | statistics | barriers | tiles
 *   producer           k, v (tile) -> q(0), statistics(0), dO(0) -> q(1), statistics(1), dO(1) -> ...
 *   consumer  products   Sᵀ(i), dPᵀ(i) |              | dv += Pᵀ dO |              | dk += dSᵀ q | Sᵀ(i+1), dPᵀ(i+1) ...
 *             other                      P from Sᵀ(i)   (D > 64)      dS from dPᵀ
 *
 * attention_bwd_q      in _q.cl. A tile is QW * 64 query rows of a head, 64 per consumer, which process the keys like the forward
 *
 *   local memory       q, dO, Q_STAGES | k, v, QK_STAGES | barriers | tiles
 *   producer           q, dO (tile) -> k(0), v(0) -> k(1), v(1) -> ...
 *   consumer  products   S(i), dP(i) |               | dq += dS(i) k, S(i+1), dP(i+1) ...
 *             other                    dS from S, dP
 *
 *   barrier              id        items   arrives                                      waits
 *   k_full (kv pass)     -         bytes   the producer's copies of k and v             consumers and ORDERED's copiers, at a tile's start
 *   k_free (kv pass)     -         2 or 4  consumers, and ORDERED's copiers             the producer, before another tile
 *   q_full, g_full       -         bytes   copies of q with statistics, of dO           consumers, before a product
 *   q_free               -         2       consumers, after the products of both        the producer, before the next copies
 *   part_full + c        -         128     the items of consumer c, their dq stored     its copier (ORDERED)
 *   part_free + c        -         1       its copier, once the part is read            consumer c, before the next part
 *   q_full, q_free (q pass), k_full, k_free likewise, with QW consumers
 *   BOTH                 2         256     both consumers, dSᵀ stored                   both (ORDERED)
 *   ALONE + c            8 to 10   128     the items of consumer c, when no product keeps its warps together
 *
 *   groups             one per multiprocessor, of 384 and of 128 * (QW + 1) items
 *   maps               at maps_at: q, dO, k, v, rank 4; boxes of KV_BQ, KV_BQ, 128, 128 and of 64 QW, 64 QW, Q_BK, Q_BK rows
 *   dq, dk, dv         strided, type T, every element written
 *   next, together     as in the forward; attention_bwd_kv counts key heads
 * P and dS are rounded to T before their products, all other values are f32.
 *
 * ORDERED 1 (D > 64): the kv pass also computes dq, with five products instead of seven; _ordered.cl has the additional code. dSᵀ goes through
 * local memory, and each consumer computes 64 columns of dq's part for 64 queries. One item per consumer, its copier in the producer warpgroup,
 * adds the part to memory in turn, with a bulk copy that sums: key block 0 stores, block n adds after block n - 1. Blocks start in that order
 * with the last queries, so each waits for a block that runs ahead of it. The order of sums is that of the keys.
 *   dq_sums            f32 (B,H,PADDED(T)/64, 2 halves of 64 columns, fragments of 64 queries): 8 float4 of 128 items each
 *   tickets            (B,H,PADDED(T)/64,2) int: key blocks added so far; set to 0 by attention_bwd_stats
 * attention_bwd_round  dq = scale * dq_sums; B*H*PADDED(T)/64 groups of 128 items
 *
 * Defines: those of attention_sm90.cl, ORDERED.
 * Design: FlashAttention-3's gradients (Shah et al. 2024, arXiv:2407.08608); ORDERED corresponds to its deterministic mode, with dq summed in
 * the order of the key blocks by tickets.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet; see attention_wgmma_sm90.cl.
 * Measured on an H200 with 64 x 1024 x 12 x 16 (D, T, H, B) and 128 x 4096 x 32 x 4, causal, bf16: 0.29 and 0.41 of 989 TFLOP/s, with five
 * products counted; seven are computed, because each pass computes S and dP. ORDERED, the latter shape: 0.49, not causal 0.54.
 */
#define STAGES 2
#define KV_BK 128
#if DP == 64
#define KV_BQ 128
#define KV_STEPS 8
#define KV_STAGES 2
#define Q_BK 64
#define Q_STEPS 4
#define Q_STAGES 2
#define QW 3
#define QK_STAGES 6
#define HOLD_KV HOLD_F64
#define HOLD_KP HOLD_U32
#define SCORES_KV(s, k, q) PRODUCT_D(s, 128, k, KV_BK, q)
#define Q_COPY_REGISTERS 32
#define Q_MATH_REGISTERS 160
#else
#define KV_BQ 64
#define KV_STEPS 4
#define KV_STAGES 1
#define Q_BK 64
#define Q_STEPS 4
#define Q_STAGES 1
#define QW 2
#define QK_STAGES 4
#define HOLD_KV HOLD_F32
#define HOLD_KP HOLD_U16
#define SCORES_KV(s, k, q) PRODUCT_D(s, 64, k, KV_BK, q)
#define Q_COPY_REGISTERS 24
#define Q_MATH_REGISTERS 240
#endif
#define Q_BQ (64 * QW)
#define SUM_KV(c, p, x, keep) PRODUCT_ROWS(c, KV_STEPS, p, x, keep)
#define SCORES_Q(s, q, k) PRODUCT_D(s, 64, q, Q_BQ, k)
#define SUM_Q(c, p, x, keep) PRODUCT_ROWS(c, Q_STEPS, p, x, keep)
#define KV_BYTES (KV_BK * DP * 2)
#define KVQ_BYTES (KV_BQ * DP * 2)
/* dSᵀ of two query blocks, and the parts of dq of both warpgroups. */
#define DS_BYTES (KV_BK * KV_BQ * 2)
#define PART_BYTES (64 * 64 * 4)
#define DQ_BYTES (ORDERED ? 2 * DS_BYTES + 2 * PART_BYTES : 0)
#define KV_LOCAL (2 * KV_STAGES * KV_BYTES + 2 * STAGES * KVQ_BYTES + DQ_BYTES + STAGES * KV_BQ * 8 + BARRIER_BYTES)
#define Q_BYTES (Q_BQ * DP * 2)
#define QK_BYTES (Q_BK * DP * 2)
#define Q_LOCAL (2 * Q_STAGES * Q_BYTES + 2 * QK_STAGES * QK_BYTES + BARRIER_BYTES)
#define ALONE 8
#define BOTH 2

/* Returns dS / scale of element i of a fragment, with P in s. */
INLINE float slope(const float *s, const float *dp, int i, float delta, const uint *kept, float keep) {
  return s[i] * (dropped(kept, i, dp[i] * keep) - delta);
}

typedef struct {
  uint k, v, q, g, stats;
  uint k_full, k_free, q_full, g_full, q_free; /* k with v, q with the statistics; q_free for dO too */
  uint ds, part, part_full, part_free;         /* ORDERED */
  __local int *tile;
} KvPlace;

/* Layout of `local_`, KV_LOCAL bytes of it. */
INLINE KvPlace kv_place(__local uchar *local_) {
  KvPlace at;
  at.k = (uint)(size_t)local_;
  at.v = at.k + KV_STAGES * KV_BYTES;
  at.q = at.v + KV_STAGES * KV_BYTES;
  at.g = at.q + STAGES * KVQ_BYTES;
  at.ds = at.g + STAGES * KVQ_BYTES;
  at.part = at.ds + 2 * DS_BYTES;
  at.stats = at.g + STAGES * KVQ_BYTES + DQ_BYTES;
  at.k_full = at.stats + STAGES * KV_BQ * 8;
  at.k_free = at.k_full + KV_STAGES * 8;
  at.q_full = at.k_free + KV_STAGES * 8;
  at.g_full = at.q_full + STAGES * 8;
  at.q_free = at.g_full + STAGES * 8;
  at.part_full = at.q_free + STAGES * 8;
  at.part_free = at.part_full + 2 * 8;
  at.tile = (__local int *)(local_ + KV_LOCAL - BARRIER_BYTES + SLOT_BYTES);
  return at;
}
/* Initializes the rings. One item calls it, before the group's barrier. */
INLINE void kv_rings(const KvPlace *at) {
  ring_init(at->k_full, at->k_free, KV_STAGES, ORDERED ? 4 : 2);
  ring_init(at->q_full, at->q_free, STAGES, 2);
  for (int s = 0; s < STAGES; ++s) mbar_init(at->g_full + s * 8, 1);
#if ORDERED
  for (int s = 0; s < 2; ++s) mbar_init(at->part_full + s * 8, 128), mbar_init(at->part_free + s * 8, 1);
#endif
  barriers_ready();
}

/* Query blocks in the order in which every tile processes them. */
#if ORDERED
#define EACH_QUERIES(m, from, queries) for (int m = (queries) - 1; m >= (from); --m)
#else
#define EACH_QUERIES(m, from, queries) for (int m = (from); m < (queries); ++m)
#endif

INLINE void produce_kv(const KvPlace *at, const Sizes *n, int batch, ulong maps, __global const float *stats,
                              __global int *next) {
  const ulong mq = use_map(maps), mg = use_map(maps + 128), mk = use_map(maps + 256), mv = use_map(maps + 384);
  const int blocks = (n->s_len + KV_BK - 1) / KV_BK, all = batch * n->kv_heads, tiles = blocks * all;
  const int queries = (n->t_len + KV_BQ - 1) / KV_BQ, padded = PADDED(n->t_len);
  uint s = 0, parity = 1, ks = 0, k_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->k_free + ks * 8, k_parity);
    if (t >= tiles) {
      announce_end(at->tile + 2 * ks, at->k_full + ks * 8);
      break;
    }
#if !ORDERED
    const int after = take_tile(next);
#endif
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int b = tile.x / n->kv_heads, kh = tile.x - b * n->kv_heads;
    announce(at->tile + 2 * ks, tile.x, tile.y);
    mbar_expect(at->k_full + ks * 8, 2 * KV_BYTES);
    copy_rows(at->k + ks * KV_BYTES, KV_BK, mk, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    copy_rows(at->v + ks * KV_BYTES, KV_BK, mv, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    EACH_QUERIES(m, first_queries(n, KV_BQ, tile.y * KV_BK), queries) {
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        mbar_wait(at->q_free + s * 8, parity);
        mbar_expect(at->q_full + s * 8, KVQ_BYTES + KV_BQ * 8);
        copy_rows(at->q + s * KVQ_BYTES, KV_BQ, mq, m * KV_BQ, h, b, at->q_full + s * 8);
        copy_bytes(at->stats + s * KV_BQ * 8, stats + 2 * ((size_t)(b * n->heads + h) * padded + m * KV_BQ), KV_BQ * 8,
                   at->q_full + s * 8);
        mbar_expect(at->g_full + s * 8, KVQ_BYTES);
        copy_rows(at->g + s * KVQ_BYTES, KV_BQ, mg, m * KV_BQ, h, b, at->g_full + s * 8);
        NEXT_STAGE(s, parity, STAGES)
      }
    }
#if ORDERED
    /* Take the next tile only now: a block waits for blocks that were taken before it, so those must start first. */
    const int after = take_tile(next);
#endif
    t = after;
  }
  leave(next);
}
