/* The last part of attention_wgmma_sm90_bwd.cl, whose contract, sizes and helpers it uses: the gradient of the queries. */
/* ---- dq ---- */
typedef struct {
  uint q, g, k, v;
  uint q_full, q_free, k_full, k_free; /* q with dO, k with v */
  __local int *tile;
} QPlace;

/* Key blocks that rows first.. up to `rows` more see. */
static inline int key_blocks(const Sizes *n, int first, int rows) {
#if CAUSAL
  return (min(min(first + rows, n->t_len) + n->s_len - n->t_len, n->s_len) + Q_BK - 1) / Q_BK;
#else
  return (n->s_len + Q_BK - 1) / Q_BK;
#endif
}

static inline void produce_q(const QPlace *at, const Sizes *n, int batch, ulong maps, __global int *next) {
  const ulong mq = use_map(maps), mg = use_map(maps + 128), mk = use_map(maps + 256), mv = use_map(maps + 384);
  const int blocks = (n->t_len + Q_BQ - 1) / Q_BQ, all = batch * n->heads, tiles = blocks * all;
  uint s = 0, parity = 1, qs = 0, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free + qs * 8, q_parity);
    if (t >= tiles) {
      at->tile[2 * qs] = -1;
      mbar_arrive(at->q_full + qs * 8);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int block = blocks - 1 - tile.y, b = tile.x / n->heads, h = tile.x - b * n->heads, kh = h / n->group;
    at->tile[2 * qs] = tile.x;
    at->tile[2 * qs + 1] = block;
    mbar_expect(at->q_full + qs * 8, 2 * Q_BYTES);
    copy_rows(at->q + qs * Q_BYTES, Q_BQ, mq, block * Q_BQ, h, b, at->q_full + qs * 8);
    copy_rows(at->g + qs * Q_BYTES, Q_BQ, mg, block * Q_BQ, h, b, at->q_full + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    const int keys = key_blocks(n, block * Q_BQ, Q_BQ);
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

/* Scores of keys past the last that the upper or lower row sees become -infinity; `key` is the item's first. */
static inline void hide_keys(float *s, int key, int last0, int last8) {
#pragma unroll
  for (int j = 0; j < Q_BK / 8; ++j) {
    if (key + j * 8 > last0) s[j * 4] = -INFINITY;
    if (key + j * 8 + 1 > last0) s[j * 4 + 1] = -INFINITY;
    if (key + j * 8 > last8) s[j * 4 + 2] = -INFINITY;
    if (key + j * 8 + 1 > last8) s[j * 4 + 3] = -INFINITY;
  }
}

__kernel __attribute__((reqd_work_group_size(128 * (QW + 1), 1, 1))) void attention_bwd_q(
    __global const uchar *maps, ulong maps_at, __global const T *q_, __global const T *g_, __global const T *k_,
    __global const T *v_, __global const float *stats, __global T *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt,
    __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[Q_LOCAL] __attribute__((aligned(1024)));
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
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  if (item == 0) {
    ring_init(at.q_full, at.q_free, Q_STAGES, QW);
    ring_init(at.k_full, at.k_free, QK_STAGES, QW);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warpgroup == 0) {
    GIVE_REGISTERS(Q_COPY_REGISTERS);
    if (item == 0) produce_q(&at, &n, batch, (ulong)maps + maps_at, next);
    return;
  }

  TAKE_REGISTERS(Q_MATH_REGISTERS);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  const int padded = PADDED(n.t_len);
  uint s = 0, parity = 0, qs = 0, q_parity = 0;
  for (;;) {
    mbar_wait(at.q_full + qs * 8, q_parity);
    const int head = at.tile[2 * qs], block = at.tile[2 * qs + 1];
    if (head < 0) break;
    const int row0 = block * Q_BQ + me * 64, row = row0 + warp * 16 + g, all = key_blocks(&n, block * Q_BQ, Q_BQ);
    const int inside = row0 < n.t_len, mine = inside ? key_blocks(&n, row0, 64) : 0;
    const uint aq = (at.q + qs * Q_BYTES + me * 8192) >> 4, ag = (at.g + qs * Q_BYTES + me * 8192) >> 4;
    __global const float *stat = stats + 2 * ((size_t)head * padded + row0) + warp * 16 + g;
    const float lse0 = inside ? -stat[0] : 0.0f, lse8 = inside ? -stat[8] : 0.0f;
    const float delta0 = inside ? stat[64] : 0.0f, delta8 = inside ? stat[72] : 0.0f;
    float dQ[DP / 2];
    uint dS[Q_BK / 4], used = 0;
    int sum = 0;
#if DROPOUT
    const ulong across = (s_len + 3) / 4, draw = ((ulong)head * t_len + row) * across;
#endif
    for (int i = 0; i < mine; ++i) {
      float S[Q_BK / 2], dP[Q_BK / 2];
      mbar_wait(at.k_full + s * 8, parity);
      PRODUCT_Q(S, aq, (at.k + s * QK_BYTES) >> 4);
      PRODUCT_Q(dP, ag, (at.v + s * QK_BYTES) >> 4);
#if DROPOUT
      uint bits[Q_BK / 64];
      kept_by_rows(bits, Q_BK, draw + i * (Q_BK / 4), across * 8, q, seed, offset, drop);
#endif
      WAIT_PRODUCTS(1); /* dQ of the block before too: it was committed first */
      HOLD_F32(S);
      HOLD_U16(dS);
      if (sum) mbar_arrive_if(used, first);
#if CAUSAL
      if (i * Q_BK + Q_BK > row0 + n.s_len - n.t_len) {
        const int last = row + n.s_len - n.t_len;
        hide_keys(S, i * Q_BK + 2 * q, last, last + 8);
      }
#else
      if (i * Q_BK + Q_BK > n.s_len) hide_keys(S, i * Q_BK + 2 * q, n.s_len - 1, n.s_len - 1);
#endif
#pragma unroll
      for (int j = 0; j < Q_BK / 8; ++j) {
        S[j * 4] = power2(fma(S[j * 4], scale, lse0));
        S[j * 4 + 1] = power2(fma(S[j * 4 + 1], scale, lse0));
        S[j * 4 + 2] = power2(fma(S[j * 4 + 2], scale, lse8));
        S[j * 4 + 3] = power2(fma(S[j * 4 + 3], scale, lse8));
      }
      WAIT_PRODUCTS(0);
      HOLD_F32(dP);
#pragma unroll
      for (int j = 0; j < Q_BK / 8; ++j) {
        dS[j * 2] = pack(SLOPE(S, dP, j * 4, delta0), SLOPE(S, dP, j * 4 + 1, delta0));
        dS[j * 2 + 1] = pack(SLOPE(S, dP, j * 4 + 2, delta8), SLOPE(S, dP, j * 4 + 3, delta8));
      }
      HOLD_U16(dS);
      PRODUCT_ROWS(dQ, Q_STEPS, dS, (at.k + s * QK_BYTES) >> 4, sum);
      sum = 1;
      used = at.k_free + s * 8;
      NEXT_STAGE(s, parity, QK_STAGES)
    }
    WAIT_PRODUCTS(0);
    HOLD_D(dQ);
    HOLD_U16(dS);
    if (sum) mbar_arrive_if(used, first);
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      mbar_wait(at.k_full + s * 8, parity);
      bar_sync(ALONE + me, 128);
      mbar_arrive_if(at.k_free + s * 8, first);
      NEXT_STAGE(s, parity, QK_STAGES)
    }
    mbar_arrive_if(at.q_free + qs * 8, first);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    if (!inside) continue;
    const int b = head / n.heads, h = head - b * n.heads;
    store_rows(dQ, dq + dq0 + b * dqb + h * dqh + row * dqt, dqt, row < n.t_len, row + 8 < n.t_len, scale_, scale_, q);
  }
}
