/* Gradients of attention for sm_90; see attention_sm90.cl for blocks and pipelines, attention_wgmma_sm90.cl for q, k, v, o, lse.
 *
 * Two passes without atomics on results; the order of every sum is fixed by the shapes.
 *   delta = sum_d dO*o,  P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dq = scale * dS k,  dk = scale * dSᵀ q,  dv = Pᵀ dO
 * attention_bwd_stats  stats (B,H,PADDED(T)/64,2,64) f32: of 64 rows lse to base 2, +infinity past T (P = 0 there), then delta
 * attention_bwd_kv     a tile is BK = 128 keys of a key head. Two warpgroups of 64 keys hold dk and dv in registers and walk the
 *                      query blocks of all heads of the group; Sᵀ = k qᵀ and dPᵀ = v dOᵀ, so that Pᵀ and dSᵀ are A operands
 * attention_bwd_q      a tile is QW * 64 query rows of a head, walks the keys as the forward does
 *   groups             B*H*PADDED(T)/64 of 256 items; as many as multiprocessors of 384 and of 128 * (QW + 1) items
 *   maps               at maps_at: q, dO, k, v, rank 4; boxes of KV_BQ, KV_BQ, 128, 128 and of 64 QW, 64 QW, Q_BK, Q_BK rows
 *   g                  dO, strided like q (in attention_bwd_stats); dq, dk, dv strided, type T, every element written
 *   next, together     as in the forward; for attention_bwd_kv key heads are counted
 * P and dS are rounded to T before their products, everything else is f32.
 *
 * Defines: those of attention_sm90.cl.
 * Measured on an H200 with 64 x 1024 x 12 x 16 (D, T, H, B) and 128 x 4096 x 32 x 4, causal, bf16: 0.29 and 0.41 of 989
 * TFLOP/s, five products counted; seven are made, because each pass makes S and dP.
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
#define KV_LOCAL (2 * KV_STAGES * KV_BYTES + 2 * STAGES * KVQ_BYTES + STAGES * KV_BQ * 8 + BARRIER_BYTES)
#define Q_BYTES (Q_BQ * DP * 2)
#define QK_BYTES (Q_BK * DP * 2)
#define Q_LOCAL (2 * Q_STAGES * Q_BYTES + 2 * QK_STAGES * QK_BYTES + BARRIER_BYTES)
#define ALONE 8

#if DROPOUT
#define DROPPED(bits, i, x) (KEPT(bits, i) ? (x) : 0.0f)
#define KEEP keep
#else
#define DROPPED(bits, i, x) (x)
#define KEEP 1.0f
#endif
/* dS / scale of element i. */
#define SLOPE(s, dp, i, delta) ((s)[i] * (DROPPED(bits, i, (dp)[i] * KEEP) - (delta)))

typedef struct {
  int heads, kv_heads, group, t_len, s_len, together;
} Sizes;
static inline Sizes sizes(uint heads, uint kv_heads, uint t_len, uint s_len, uint together) {
  Sizes n;
  n.heads = heads;
  n.kv_heads = kv_heads;
  n.group = heads / kv_heads;
  n.t_len = t_len;
  n.s_len = s_len;
  n.together = together;
  return n;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_bwd_stats(
    __global const T *o, __global const float *lse, __global const T *g, ulong g0, ulong gb, ulong gh, ulong gt,
    __global float *stats, uint heads, uint t_len) {
  const int item = get_local_id(0), padded = PADDED((int)t_len), blocks = padded / 64;
  const int head = (int)get_group_id(0) / blocks, row = ((int)get_group_id(0) - head * blocks) * 64 + item / 4;
  const int b = head / (int)heads, h = head - b * (int)heads;
  float sum = 0.0f;
  if (row < (int)t_len) {
    __global const uint4 *x = (__global const uint4 *)(o + (((size_t)b * t_len + row) * heads + h) * D);
    __global const uint4 *y = (__global const uint4 *)(g + g0 + b * gb + h * gh + row * gt);
    for (int i = item & 3; i < D / 8; i += 4) {
      const uint4 u = x[i], w = y[i];
      const float2 u0 = unpack(u.x), u1 = unpack(u.y), u2 = unpack(u.z), u3 = unpack(u.w);
      const float2 w0 = unpack(w.x), w1 = unpack(w.y), w2 = unpack(w.z), w3 = unpack(w.w);
      sum += u0.x * w0.x + u0.y * w0.y + u1.x * w1.x + u1.y * w1.y + u2.x * w2.x + u2.y * w2.y + u3.x * w3.x + u3.y * w3.y;
    }
  }
  sum += swap_f(sum, 1);
  sum += swap_f(sum, 2);
  if ((item & 3) == 0) {
    const size_t to = (size_t)get_group_id(0) * 128 + item / 4;
    stats[to] = row < (int)t_len ? lse[(size_t)head * t_len + row] * LOG2_E : INFINITY;
    stats[to + 64] = sum;
  }
}

/* ---- dk and dv ---- */
typedef struct {
  uint k, v, q, g, stats;
  uint k_full, k_free, q_full, g_full, q_free; /* k with v, q with the statistics; q_free for dO too */
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
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int b = tile.x / n->kv_heads, kh = tile.x - b * n->kv_heads;
    at->tile[2 * ks] = tile.x;
    at->tile[2 * ks + 1] = tile.y;
    mbar_expect(at->k_full + ks * 8, 2 * KV_BYTES);
    copy_rows(at->k + ks * KV_BYTES, KV_BK, mk, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    copy_rows(at->v + ks * KV_BYTES, KV_BK, mv, tile.y * KV_BK, kh, b, at->k_full + ks * 8);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
      for (int m = first_queries(n, tile.y); m < queries; ++m) {
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
    t = after;
  }
  leave(next);
}

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
    __global T *dv, ulong dv0, ulong dvb, ulong dvh, ulong dvt, __global int *next, uint batch, uint together, uint heads,
    uint kv_heads, uint t_len, uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[KV_LOCAL] __attribute__((aligned(1024)));
  KvPlace at;
  at.k = (uint)(size_t)local_;
  at.v = at.k + KV_STAGES * KV_BYTES;
  at.q = at.v + KV_STAGES * KV_BYTES;
  at.g = at.q + STAGES * KVQ_BYTES;
  at.stats = at.g + STAGES * KVQ_BYTES;
  at.k_full = at.stats + STAGES * KV_BQ * 8;
  at.k_free = at.k_full + KV_STAGES * 8;
  at.q_full = at.k_free + KV_STAGES * 8;
  at.g_full = at.q_full + STAGES * 8;
  at.q_free = at.g_full + STAGES * 8;
  at.tile = (__local int *)(local_ + KV_LOCAL - BARRIER_BYTES + SLOT_BYTES);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  if (item == 0) {
    ring_init(at.k_full, at.k_free, KV_STAGES, 2);
    ring_init(at.q_full, at.q_free, STAGES, 2);
    for (int s = 0; s < STAGES; ++s) mbar_init(at.g_full + s * 8, 1);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warpgroup == 0) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_kv(&at, &n, batch, (ulong)maps + maps_at, stats, next);
    return;
  }

  TAKE_REGISTERS(240);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  const int queries = (n.t_len + KV_BQ - 1) / KV_BQ;
  uint s = 0, parity = 0, ks = 0, k_parity = 0;
  for (;;) {
    mbar_wait(at.k_full + ks * 8, k_parity);
    const int head = at.tile[2 * ks], block = at.tile[2 * ks + 1];
    if (head < 0) break;
    const int b = head / n.kv_heads, kh = head - b * n.kv_heads, key0 = block * KV_BK + me * 64, key = key0 + warp * 16 + g;
    const uint ak = (at.k + ks * KV_BYTES + me * 8192) >> 4, av = (at.v + ks * KV_BYTES + me * 8192) >> 4;
    float dK[DP / 2], dV[DP / 2];
    uint P[KV_BQ / 4], dS[KV_BQ / 4];
    int sum = 0;
    for (int h = kh * n.group; h < (kh + 1) * n.group; ++h)
      for (int m = first_queries(&n, block); m < queries; ++m) {
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
        HOLD_KP(dS);
        PRODUCT_ROWS(dK, KV_STEPS, dS, aq, sum);
        sum = 1;
        WAIT_PRODUCTS(0);
        HOLD_KP(P);
        HOLD_D(dV);
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
