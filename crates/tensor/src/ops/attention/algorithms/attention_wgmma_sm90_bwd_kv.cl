/* The second part of attention_wgmma_sm90_bwd.cl, whose contract, sizes and helpers it uses: dk and dv, with ORDERED dq. */
/* Queries before `from` do not see the item's upper key: `from` is relative to its first query, its lower key is 8 later. */
static inline void hide_queries(float *s, int from) {
#pragma unroll
  for (int j = 0; j < KV_BQ / 8; ++j) {
    if (j * 8 < from) s[j * 4] = -INFINITY;
    if (j * 8 + 1 < from) s[j * 4 + 1] = -INFINITY;
    if (j * 8 < from + 8) s[j * 4 + 2] = -INFINITY;
    if (j * 8 + 1 < from + 8) s[j * 4 + 3] = -INFINITY;
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
    uint kv_heads, uint t_len, uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[KV_LOCAL] __attribute__((aligned(1024)));
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
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  if (item == 0) {
    ring_init(at.k_full, at.k_free, KV_STAGES, ORDERED ? 4 : 2);
    ring_init(at.q_full, at.q_free, STAGES, 2);
    for (int s = 0; s < STAGES; ++s) mbar_init(at.g_full + s * 8, 1);
#if ORDERED
    for (int s = 0; s < 2; ++s) mbar_init(at.part_full + s * 8, 128), mbar_init(at.part_free + s * 8, 1);
#endif
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warpgroup == 0) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_kv(&at, &n, batch, (ulong)maps + maps_at, stats, next);
#if ORDERED
    if (item == 32 || item == 64) add_parts(&at, &n, item / 32 - 1, dq_sums, tickets);
#endif
    return;
  }

  TAKE_REGISTERS(240);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  const int queries = (n.t_len + KV_BQ - 1) / KV_BQ;
  uint s = 0, parity = 0, ks = 0, k_parity = 0;
#if ORDERED
  /* The item's row of dSᵀ for stmatrix, and its chunk of 16 bytes of two. */
  const int lane = item & 31, in_tile = me * 64 + warp * 16 + (lane >> 3 & 1) * 8 + (lane & 7);
  uint ds = at.ds, part_parity = 1;
#endif
  for (;;) {
    mbar_wait(at.k_full + ks * 8, k_parity);
    const int head = at.tile[2 * ks], block = at.tile[2 * ks + 1];
    if (head < 0) break;
    const int b = head / n.kv_heads, kh = head - b * n.kv_heads, key0 = block * KV_BK + me * 64, key = key0 + warp * 16 + g;
    const uint ak = (at.k + ks * KV_BYTES + me * 8192) >> 4, av = (at.v + ks * KV_BYTES + me * 8192) >> 4;
    float dK[DP / 2], dV[DP / 2];
    uint P[KV_BQ / 4], dS[KV_BQ / 4];
    int sum = 0;
    EACH_QUERIES(m, first_queries(&n, block), queries)
      for (int h = kh * n.group; h < (kh + 1) * n.group; ++h) {
        float S[KV_BQ / 2], dP[KV_BQ / 2];
        const uint aq = (at.q + s * KVQ_BYTES) >> 4, ag = (at.g + s * KVQ_BYTES) >> 4, stat = at.stats + s * KV_BQ * 8 + q * 8;
        mbar_wait(at.q_full + s * 8, parity);
        PRODUCT_KV(S, ak, aq);
        mbar_wait(at.g_full + s * 8, parity);
        PRODUCT_KV(dP, av, ag);
#if DROPOUT
        uint bits[KV_BQ / 64];
        const ulong across = (s_len + 3) / 4, row = ((ulong)b * heads + h) * t_len + m * KV_BQ + 2 * q;
        kept_by_columns(bits, KV_BQ, row * across + key / 4, across, g, seed, offset, drop);
#endif
        WAIT_PRODUCTS(1);
        HOLD_KV(S);
#if CAUSAL
        if (m * KV_BQ + n.s_len - n.t_len < key0 + 64) hide_queries(S, key - (n.s_len - n.t_len) - m * KV_BQ - 2 * q);
#endif
#pragma unroll
        for (int j = 0; j < KV_BQ / 8; ++j) {
          const float2 lse = local_pair(stat + (j / 8) * 512 + (j & 7) * 32);
          S[j * 4] = power2(fma(S[j * 4], scale, -lse.x));
          S[j * 4 + 1] = power2(fma(S[j * 4 + 1], scale, -lse.y));
          S[j * 4 + 2] = power2(fma(S[j * 4 + 2], scale, -lse.x));
          S[j * 4 + 3] = power2(fma(S[j * 4 + 3], scale, -lse.y));
        }
#define PACK_P(j)                                                                                                      \
  P[(j) * 2] = pack(DROPPED(bits, (j) * 4, S[(j) * 4]), DROPPED(bits, (j) * 4 + 1, S[(j) * 4 + 1]));                   \
  P[(j) * 2 + 1] = pack(DROPPED(bits, (j) * 4 + 2, S[(j) * 4 + 2]), DROPPED(bits, (j) * 4 + 3, S[(j) * 4 + 3]));
#if DP == 128
        /* dv's product runs while dS is computed; with 128 queries a block there are no registers for that. */
#pragma unroll
        for (int j = 0; j < KV_BQ / 8; ++j) { PACK_P(j) }
        WAIT_PRODUCTS(0);
        HOLD_KV(dP);
        HOLD_KP(P);
        PRODUCT_ROWS(dV, KV_STEPS, P, ag, sum);
#else
        WAIT_PRODUCTS(0);
        HOLD_KV(dP);
#endif
#pragma unroll
        for (int j = 0; j < KV_BQ / 8; ++j) {
          const float2 delta = local_pair(stat + (j / 8) * 512 + 256 + (j & 7) * 32);
#if DP == 64
          PACK_P(j)
#endif
          dS[j * 2] = pack(SLOPE(S, dP, j * 4, delta.x), SLOPE(S, dP, j * 4 + 1, delta.y));
          dS[j * 2 + 1] = pack(SLOPE(S, dP, j * 4 + 2, delta.x), SLOPE(S, dP, j * 4 + 3, delta.y));
        }
#if DP == 64
        HOLD_KP(P);
        PRODUCT_ROWS(dV, KV_STEPS, P, ag, sum);
#endif
#if ORDERED
#pragma unroll
        for (int j = 0; j < KV_BQ / 8; j += 2)
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                           ds + in_tile * 128 + ((j + (lane >> 4) ^ (lane & 7)) << 4)),
                       "r"(dS[j * 2]), "r"(dS[j * 2 + 1]), "r"(dS[j * 2 + 2]), "r"(dS[j * 2 + 3]) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        bar_sync(BOTH, 256);
        float dQ[32];
        PRODUCT_Q_PART(dQ, ds >> 4, (at.k + ks * KV_BYTES + me * (KV_BK * 128)) >> 4);
        HOLD_KP(dS);
        PRODUCT_ROWS(dK, KV_STEPS, dS, aq, sum);
        sum = 1;
        WAIT_PRODUCTS(1);
        HOLD_F32(dQ);
        HOLD_KP(P);
        HOLD_D(dV);
        mbar_wait(at.part_free + me * 8, part_parity);
        part_parity ^= 1;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at.part + me * PART_BYTES + (item & 127) * 16 + i * 2048),
                       "f"(dQ[i * 4]), "f"(dQ[i * 4 + 1]), "f"(dQ[i * 4 + 2]), "f"(dQ[i * 4 + 3]) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        mbar_arrive(at.part_full + me * 8);
        ds = ds == at.ds ? at.ds + DS_BYTES : at.ds;
        WAIT_PRODUCTS(0);
#else
        HOLD_KP(dS);
        PRODUCT_ROWS(dK, KV_STEPS, dS, aq, sum);
        sum = 1;
        WAIT_PRODUCTS(0);
        HOLD_KP(P);
        HOLD_D(dV);
#endif
        HOLD_D(dK);
        HOLD_KP(dS);
        mbar_arrive_if(at.q_free + s * 8, first);
        NEXT_STAGE(s, parity, STAGES)
      }
    mbar_arrive_if(at.k_free + ks * 8, first);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    const int ok0 = key < n.s_len, ok8 = key + 8 < n.s_len;
    store_rows(dK, dk + dk0 + b * dkb + kh * dkh + key * dkt, dkt, ok0, ok8, scale_, scale_, q);
    store_rows(dV, dv + dv0 + b * dvb + kh * dvh + key * dvt, dvt, ok0, ok8, KEEP, KEEP, q);
  }
}
