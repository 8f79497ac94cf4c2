/* Gradients of attention for sm_90; see attention_sm90.cl for blocks and pipelines, attention_wgmma_sm90.cl for q, k, v, o, lse.
 *
 * Two passes without atomics on results; the order of every sum is fixed by the shapes.
 *   delta = sum_d dO*o,  P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dq = scale * dS k,  dk = scale * dSᵀ q,  dv = Pᵀ dO
 * attention_bwd_stats  in attention_sm90_bwd.cl
 * attention_bwd_kv     a tile is BK = 128 keys of a key head. Two warpgroups of 64 keys hold dk and dv in registers and walk the
 *                      query blocks of all heads of the group; Sᵀ = k qᵀ and dPᵀ = v dOᵀ, so that Pᵀ and dSᵀ are A operands
 * attention_bwd_q      a tile is QW * 64 query rows of a head, walks the keys as the forward does
 *   groups             as many as multiprocessors of 384 and of 128 * (QW + 1) items
 *   maps               at maps_at: q, dO, k, v, rank 4; boxes of KV_BQ, KV_BQ, 128, 128 and of 64 QW, 64 QW, Q_BK, Q_BK rows
 *   dq, dk, dv         strided, type T, every element written
 *   next, together     as in the forward; for attention_bwd_kv key heads are counted
 * P and dS are rounded to T before their products, everything else is f32.
 *
 * ORDERED 1 (D > 64): dq comes from the same pass, five products instead of seven. dSᵀ goes through local memory, each warpgroup makes 64
 * columns of dq's part for 64 queries, and one item a warpgroup adds it to memory with a bulk copy that sums, when it is its turn:
 * key block 0 stores, block n adds after block n - 1 has. Blocks are taken in that order and begin with the last queries, so each
 * waits for one that runs ahead of it; the order of sums is that of the keys.
 *   dq_sums            f32 (B,H,PADDED(T)/64, 2 halves of 64 columns, fragments of 64 queries): 8 float4 of 128 items each
 *   tickets              (B,H,PADDED(T)/64,2) int: key blocks that have been added; set to 0 by attention_bwd_stats
 * attention_bwd_round  dq = scale * dq_sums; B*H*PADDED(T)/64 groups of 128 items
 *
 * Defines: those of attention_sm90.cl, ORDERED.
 * Design: FlashAttention-3's gradients (Shah et al. 2024, arXiv:2407.08608); ORDERED as its deterministic mode, dq summed in the order of
 * the key blocks by tickets.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet; see attention_wgmma_sm90.cl.
 * Measured on an H200 with 64 x 1024 x 12 x 16 (D, T, H, B) and 128 x 4096 x 32 x 4, causal, bf16: 0.29 and 0.41 of 989
 * TFLOP/s, five products counted; seven are made, because each pass makes S and dP. ORDERED, the latter shape: 0.49, not causal 0.54.
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
#define PRODUCT_KV(s, k, q) PRODUCT_D(s, 128, k, KV_BK, q)
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
#define PRODUCT_KV(s, k, q) PRODUCT_D(s, 64, k, KV_BK, q)
#define Q_COPY_REGISTERS 24
#define Q_MATH_REGISTERS 240
#endif
#define Q_BQ (64 * QW)
#define PRODUCT_Q(s, q, k) PRODUCT_D(s, 64, q, Q_BQ, k)
#define KV_BYTES (KV_BK * DP * 2)
#define KVQ_BYTES (KV_BQ * DP * 2)
/* dSᵀ of two query blocks, and what is to be added to dq by both warpgroups. */
#define DS_BYTES (KV_BK * KV_BQ * 2)
#define PART_BYTES (64 * 64 * 4)
#define DQ_BYTES (ORDERED ? 2 * DS_BYTES + 2 * PART_BYTES : 0)
#define KV_LOCAL (2 * KV_STAGES * KV_BYTES + 2 * STAGES * KVQ_BYTES + DQ_BYTES + STAGES * KV_BQ * 8 + BARRIER_BYTES)
#define Q_BYTES (Q_BQ * DP * 2)
#define QK_BYTES (Q_BK * DP * 2)
#define Q_LOCAL (2 * Q_STAGES * Q_BYTES + 2 * QK_STAGES * QK_BYTES + BARRIER_BYTES)
#define ALONE 8
#define BOTH 2

#if DROPOUT
#define DROPPED(bits, i, x) (KEPT(bits, i) ? (x) : 0.0f)
#define KEEP keep
#else
#define DROPPED(bits, i, x) (x)
#define KEEP 1.0f
#endif
/* dS / scale of element i. */
#define SLOPE(s, dp, i, delta) ((s)[i] * (DROPPED(bits, i, (dp)[i] * KEEP) - (delta)))

/* ---- dk and dv ---- */
typedef struct {
  uint k, v, q, g, stats;
  uint k_full, k_free, q_full, g_full, q_free; /* k with v, q with the statistics; q_free for dO too */
  uint ds, part, part_full, part_free;         /* ORDERED */
  __local int *tile;
} KvPlace;

/* First query block that sees keys of block i. */
static inline int first_queries(const Sizes *n, int i) {
#if CAUSAL
  return max(i * KV_BK - (n->s_len - n->t_len), 0) / KV_BQ;
#else
  return 0;
#endif
}

#if ORDERED
#define EACH_QUERIES(m, from, queries) for (int m = (queries) - 1; m >= (from); --m)
#else
#define EACH_QUERIES(m, from, queries) for (int m = (from); m < (queries); ++m)
#endif

static inline void produce_kv(const KvPlace *at, const Sizes *n, int batch, ulong maps, __global const float *stats,
                              __global int *next) {
  const ulong mq = use_map(maps), mg = use_map(maps + 128), mk = use_map(maps + 256), mv = use_map(maps + 384);
  const int blocks = (n->s_len + KV_BK - 1) / KV_BK, all = batch * n->kv_heads, tiles = blocks * all;
  const int queries = (n->t_len + KV_BQ - 1) / KV_BQ, padded = PADDED(n->t_len);
  uint s = 0, parity = 1, ks = 0, k_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->k_free + ks * 8, k_parity);
    if (t >= tiles) {
      at->tile[2 * ks] = -1;
      mbar_arrive(at->k_full + ks * 8);
      break;
    }
#if !ORDERED
    const int after = take(next) + (int)get_num_groups(0);
#endif
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int b = tile.x / n->kv_heads, kh = tile.x - b * n->kv_heads;
    at->tile[2 * ks] = tile.x;
    at->tile[2 * ks + 1] = tile.y;
    mbar_expect(at->k_full + ks * 8, 2 * KV_BYTES);
    copy_rows(at->k + ks * KV_BYTES, KV_BK, mk, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    copy_rows(at->v + ks * KV_BYTES, KV_BK, mv, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    EACH_QUERIES(m, first_queries(n, tile.y), queries) {
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        mbar_wait(at->q_free + s * 8, parity);
        mbar_expect(at->q_full + s * 8, KVQ_BYTES + KV_BQ * 8);
        copy_rows(at->q + s * KVQ_BYTES, KV_BQ, mq, m * KV_BQ, h, b, at->q_full + s * 8);
        copy_floats(at->stats + s * KV_BQ * 8, stats + 2 * ((size_t)(b * n->heads + h) * padded + m * KV_BQ), 2 * KV_BQ,
                    at->q_full + s * 8);
        mbar_expect(at->g_full + s * 8, KVQ_BYTES);
        copy_rows(at->g + s * KVQ_BYTES, KV_BQ, mg, m * KV_BQ, h, b, at->g_full + s * 8);
        NEXT_STAGE(s, parity, STAGES)
      }
    }
#if ORDERED
    /* No earlier: a block waits for blocks that were taken before it, so those must begin first. */
    const int after = take(next) + (int)get_num_groups(0);
#endif
    t = after;
  }
  leave(next);
}
