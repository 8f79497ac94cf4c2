/* Gradients of keys and values for heads of up to 128: dv = Pᵀ dO and dk = scale * dSᵀ q, and with ORDERED the parts of dq. It is the second
 * part of attention_wgmma_sm90_bwd.cl, which has the producer, the barriers and the layout of local memory; here are the consumers and the kernel.
 *
 * attention_bwd_kv  A tile is 128 keys of a key head, 64 per consumer. The consumers keep dk and dv in registers and process the query blocks of
 *                   all heads of the group.
 *   maps, maps_at   bytes with the tensor maps of q, dO, k, v and the first of them
 *   q, g, k, v      the memory that the maps describe
 *   stats           result of attention_bwd_stats, f32
 *   dk, dv          T (B,KH,S,D), strided: first elements dk0, dv0, strides dkb, dkh, dkt and dvb, dvh, dvt in elements; every element is
 *                   written once
 *   dq_sums         with ORDERED: sums of dq, f32, see attention_wgmma_sm90_bwd.cl; `tickets` gives the order of the additions
 *   next            two counters, int, 0 before and after the launch
 *   together        key heads (of B*KH) whose tiles run at the same time, so that their queries stay in the L2 cache
 *   groups          one per multiprocessor, at most one per tile, of 384 items: a producer warpgroup and two consumers
 *
 * Defines: those of attention_sm90.cl, ORDERED. Launched by `backward` of wgmma.rs or, with ORDERED, by `run` of ordered.rs.
 */
/* Destinations of the gradients of keys and values: strides of batch, head and row. */
typedef struct {
  __global T *dk, *dv;
  ulong dk0, dv0, dkb, dkh, dkt, dvb, dvh, dvt;
} KvGrads;

/* Computes dS / scale in 16 bits from transposed scores s, P in f32, and dp; `deltas` is the position of the delta of the item's first query.
 * With 128 queries per block it also computes the weights p, 8 columns at a time, since registers do not suffice for both. */
INLINE void pack_slopes(uint *ds, uint *p, const float *s, const float *dp, uint deltas, const uint *kept, float keep) {
#pragma unroll
  for (int j = 0; j < KV_BQ / 8; ++j) {
    const float2 delta = local_pair(column_statistic(deltas, j));
#if KV_BQ == 128
    pack_kept_of(p, j, s, kept);
#endif
    ds[j * 2] = pack(slope(s, dp, j * 4, delta.x, kept, keep), slope(s, dp, j * 4 + 1, delta.y, kept, keep));
    ds[j * 2 + 1] = pack(slope(s, dp, j * 4 + 2, delta.x, kept, keep), slope(s, dp, j * 4 + 3, delta.y, kept, keep));
  }
}

/* Processes the tiles of consumer `me`, 64 keys of each. `scale` is the factor of scores to base 2. */
INLINE void consume_kv(const KvPlace *at, const Sizes *n, int me, const KvGrads *to, float scale, float dk_scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3, g = (item & 31) >> 2;
  const int queries = (n->t_len + KV_BQ - 1) / KV_BQ;
  uint s = 0, parity = 0, ks = 0, k_parity = 0;
#if ORDERED
  const int lane = item & 31, in_tile = me * 64 + (item >> 5 & 3) * 16 + (lane >> 3 & 1) * 8 + (lane & 7);
  uint ds = at->ds, part_parity = 1;
#endif
  for (;;) {
    mbar_wait(at->k_full + ks * 8, k_parity);
    const int head = at->tile[2 * ks], block = at->tile[2 * ks + 1];
    if (head < 0) break;
    const int b = head / n->kv_heads, kh = head - b * n->kv_heads, key0 = block * KV_BK + me * 64, key = key0 + upper_row(item);
    const uint ak = (at->k + ks * KV_BYTES + me * 8192) >> 4, av = (at->v + ks * KV_BYTES + me * 8192) >> 4;
    float dK[DP / 2], dV[DP / 2];
    uint P[KV_BQ / 4], dS[KV_BQ / 4];
    int keep = 0;
    EACH_QUERIES(m, first_queries(n, KV_BQ, block * KV_BK), queries)
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        float S[KV_BQ / 2], dP[KV_BQ / 2];
        uint kept[KV_BQ / 64];
        const uint aq = (at->q + s * KVQ_BYTES) >> 4, ag = (at->g + s * KVQ_BYTES) >> 4, stat = at->stats + s * KV_BQ * 8 + q * 8;
        mbar_wait(at->q_full + s * 8, parity);
        SCORES_KV(S, ak, aq);
        mbar_wait(at->g_full + s * 8, parity);
        SCORES_KV(dP, av, ag);
        const ulong across = draws_of_row(n), row = ((ulong)b * (uint)n->heads + h) * (uint)n->t_len + m * KV_BQ + 2 * q;
        kept_by_columns(kept, KV_BQ, row * across + key / 4, across, g, drop);
        WAIT_PRODUCTS(1);
        HOLD_KV(S);
#if CAUSAL
        const int from = key - (n->s_len - n->t_len) - m * KV_BQ - 2 * q;
        if (m * KV_BQ + n->s_len - n->t_len < key0 + 64) hide_before(S, KV_BQ, 0, from, from + 8);
#elif ORDERED
        /* Keys past the end: their weights may be infinite, and would be multiplied by the zeros of k in dq's product. */
        if (key0 + 64 > n->s_len) hide_rows(S, KV_BQ, key >= n->s_len, key + 8 >= n->s_len);
#endif
        power2_columns(S, KV_BQ, scale, stat);
#if KV_BQ == 64
        /* dv's product runs while dS is computed. */
        pack_kept(P, KV_BQ, S, kept);
        WAIT_PRODUCTS(0);
        HOLD_KV(dP);
        HOLD_KP(P);
        SUM_KV(dV, P, ag, keep);
        pack_slopes(dS, P, S, dP, stat + 256, kept, drop->keep);
#else
        WAIT_PRODUCTS(0);
        HOLD_KV(dP);
        pack_slopes(dS, P, S, dP, stat + 256, kept, drop->keep);
        HOLD_KP(P);
        SUM_KV(dV, P, ag, keep);
#endif
#if ORDERED
        store_transposed(ds, dS, in_tile, lane);
        local_written();
        bar_sync(BOTH, 256);
        float dQ[32];
        PRODUCT_Q_PART(dQ, ds >> 4, (at->k + ks * KV_BYTES + me * (KV_BK * 128)) >> 4);
        HOLD_KP(dS);
        SUM_KV(dK, dS, aq, keep);
        WAIT_PRODUCTS(1);
        HOLD_F32(dQ);
        HOLD_KP(P);
        HOLD_D(dV);
        mbar_wait(at->part_free + me * 8, part_parity);
        part_parity ^= 1;
        keep_part(at->part + me * PART_BYTES, dQ);
        local_written();
        mbar_arrive(at->part_full + me * 8);
        ds = ds == at->ds ? at->ds + DS_BYTES : at->ds;
        WAIT_PRODUCTS(0);
#else
        HOLD_KP(dS);
        SUM_KV(dK, dS, aq, keep);
        WAIT_PRODUCTS(0);
        HOLD_KP(P);
        HOLD_D(dV);
#endif
        keep = 1;
        HOLD_D(dK);
        HOLD_KP(dS);
        release_together(at->q_free + s * 8);
        NEXT_STAGE(s, parity, STAGES)
      }
    release_together(at->k_free + ks * 8);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    const int ok0 = key < n->s_len, ok8 = key + 8 < n->s_len;
    store_rows(dK, to->dk + to->dk0 + b * to->dkb + kh * to->dkh + key * to->dkt, to->dkt, ok0, ok8, dk_scale, dk_scale, q);
    store_rows(dV, to->dv + to->dv0 + b * to->dvb + kh * to->dvh + key * to->dvt, to->dvt, ok0, ok8, drop->keep, drop->keep, q);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_kv(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *g_, __global const T *k_,
    __global const T *v_, __global const float *stats, __global T *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt,
    __global T *dv, ulong dv0, ulong dvb, ulong dvh, ulong dvt,
#if ORDERED
    __global float *dq_sums, __global int *tickets,
#endif
    __global int *next, uint batch, uint together, uint heads,
    uint kv_heads, uint t_len, uint s_len, float scale DROP_ARGS) {
  __local uchar local_[KV_LOCAL] __attribute__((aligned(1024)));
  const KvPlace at = kv_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  KvGrads to;
  to.dk = dk, to.dv = dv, to.dk0 = dk0, to.dv0 = dv0, to.dkb = dkb, to.dkh = dkh, to.dkt = dkt, to.dvb = dvb, to.dvh = dvh, to.dvt = dvt;
  const int item = get_local_id(0);
  if (item == 0) kv_rings(&at);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_kv(&at, &n, batch, (ulong)maps + maps_at, stats, next);
#if ORDERED
    if (item == 32 || item == 64) add_parts(&at, &n, item / 32 - 1, dq_sums, tickets);
#endif
  } else {
    TAKE_REGISTERS(240);
    consume_kv(&at, &n, (item >> 7) - 1, &to, scale * LOG2_E, scale, &drop_);
  }
}
