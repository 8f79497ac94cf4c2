/* Gradients of attention in f32 for sm_90, after attention_bf16x3_sm90.cl, whose images, helpers and sizes it uses (BACKWARD is defined).
 *
 *   delta = sum_d dO*o,  P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dq = scale * dS k,  dk = scale * dSᵀ q,  dv = Pᵀ dO
 * Two passes without atomics on results; the order of every sum is fixed by the shapes.
 * attention_bwd_stats  stats (B,H,T/64 rounded up,2,64) f32: of 64 rows lse to base 2, +infinity past T (P = 0 there), then delta;
 *                      groups of 256 items, one a block. g is dO, strided
 * attention_bwd_kv     a tile is 128 keys of a key head; two warpgroups of 64 keys hold dk and dv in registers and walk the query
 *                      blocks of all heads of the group. Sᵀ = k qᵀ and dPᵀ = v dOᵀ, so that Pᵀ and dSᵀ are A operands
 * attention_bwd_q      a tile is 128 queries of a head, walks the keys as the forward does
 *   q g k v  images; dq, dk, dv strided f32, every element written; the rest as in the forward
 *
 * Design: FlashAttention-2's gradients (Dao 2023, arXiv:2307.08691) in two passes, one that owns keys and one that owns queries, in place of
 * atomics; products by bf16x3 emulation.
 * Ceiling: a sixth of bf16's 989 TFLOP/s. Reached on an H200 in a GPT-2 step (B 4, T 1024, D 64, causal): dk and dv 71, dq 75, seven
 * products counted, as many as are made.
 */
#define STAGES 2
#define LOCAL_BYTES (4 * BLOCK + STAGES * (2 * BLOCK + 512) + BARRIER_BYTES)
#if DROPOUT
#define DROPPED(bits, i, x) (KEPT(bits, i) ? (x) : 0.0f)
#define KEEP keep
#else
#define DROPPED(bits, i, x) (x)
#define KEEP 1.0f
#endif

/* Two blocks of each of two operands that stay (`held`), and a ring of one block of each of two that pass (`ring`). */
typedef struct {
  uint held, ring, stats;
  uint held_full, held_free, ring_full, ring_free;
  __local int *tile;
} Place;
static inline Place place(__local uchar *local_) {
  Place at;
  at.held = (uint)(size_t)local_;
  at.ring = at.held + 4 * BLOCK;
  at.stats = at.ring + STAGES * 2 * BLOCK;
  at.ring_full = at.stats + STAGES * 512;
  at.ring_free = at.ring_full + STAGES * 8;
  at.held_full = at.ring_free + STAGES * 8;
  at.held_free = at.held_full + 8;
  at.tile = (__local int *)(local_ + LOCAL_BYTES - BARRIER_BYTES + SLOT_BYTES);
  return at;
}
/* The first item prepares the barriers; everybody may use them afterwards. */
static inline void begin(const Place *at, int item) {
  if (item == 0) {
    ring_init(at->ring_full, at->ring_free, STAGES, 2);
    ring_init(at->held_full, at->held_free, 1, 2);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}
/* Copies the two or one blocks from `block` on of two images of `blocks` blocks a head. */
static inline void hold(const Place *at, __global const uchar *x, __global const uchar *y, long head, int blocks, int block) {
  const uint bytes = min(blocks - block, 2) * BLOCK;
  const long from = (head * blocks + block) * BLOCK;
  mbar_expect(at->held_full, 2 * bytes);
  copy_block(at->held, x + from, bytes, at->held_full);
  copy_block(at->held + 2 * BLOCK, y + from, bytes, at->held_full);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_bwd_stats(
    __global const float *o, __global const float *lse, __global const float *g, ulong g0, ulong gb, ulong gh, ulong gt,
    __global float *stats, uint heads, uint t_len) {
  const int item = get_local_id(0), blocks = BLOCKS((int)t_len);
  const int head = (int)get_group_id(0) / blocks, row = ((int)get_group_id(0) - head * blocks) * 64 + item / 4;
  const int b = head / (int)heads, h = head - b * (int)heads;
  float sum = 0.0f;
  if (row < (int)t_len) {
    __global const float *x = o + (((size_t)b * t_len + row) * heads + h) * D, *y = g + g0 + b * gb + h * gh + row * gt;
    for (int i = (item & 3) * 2; i < D; i += 8) sum += x[i] * y[i] + x[i + 1] * y[i + 1];
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
/* First query block that sees keys of block i. */
static inline int first_queries(const Sizes *n, int i) {
#if CAUSAL
  return max(i * 64 - (n->s_len - n->t_len), 0) / 64;
#else
  return 0;
#endif
}

static inline void produce_kv(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *g_,
                              __global const uchar *k_, __global const uchar *v_, __global const float *stats, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (k_blocks + 1) / 2, all = batch * n->kv_heads;
  uint s = 0, parity = 1, held_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->held_free, held_parity);
    held_parity ^= 1;
    if (t >= pairs * all) {
      at->tile[0] = -1;
      mbar_arrive(at->held_full);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, pairs, n->together, all);
    const int b = tile.x / n->kv_heads, kh = tile.x - b * n->kv_heads;
    at->tile[0] = tile.x;
    at->tile[1] = tile.y;
    hold(at, k_, v_, tile.x, k_blocks, 2 * tile.y);
    for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
      for (int m = first_queries(n, 2 * tile.y); m < q_blocks; ++m) {
        const uint to = at->ring + s * 2 * BLOCK, bar = at->ring_full + s * 8;
        const long block = (long)(b * n->heads + h) * q_blocks + m;
        mbar_wait(at->ring_free + s * 8, parity);
        mbar_expect(bar, 2 * BLOCK + 512);
        copy_block(to, q_ + block * BLOCK, BLOCK, bar);
        copy_block(to + BLOCK, g_ + block * BLOCK, BLOCK, bar);
        copy_floats(at->stats + s * 512, stats + block * 128, 128, bar);
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
  for (int j = 0; j < 8; ++j) {
    if (j * 8 < from) s[j * 4] = -INFINITY;
    if (j * 8 + 1 < from) s[j * 4 + 1] = -INFINITY;
    if (j * 8 < from + 8) s[j * 4 + 2] = -INFINITY;
    if (j * 8 + 1 < from + 8) s[j * 4 + 3] = -INFINITY;
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_kv(
    __global const uchar *q_, __global const uchar *g_, __global const uchar *k_, __global const uchar *v_,
    __global const float *stats, __global float *dk, ulong dk0, ulong dkb, ulong dkh, ulong dkt, __global float *dv, ulong dv0,
    ulong dvb, ulong dvh, ulong dvt, __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len,
    uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  begin(&at, item);
  if (warpgroup == 0) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_kv(&at, &n, batch, q_, g_, k_, v_, stats, next);
    return;
  }

  TAKE_REGISTERS(240);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  const int q_blocks = BLOCKS(n.t_len);
  uint s = 0, parity = 0, held_parity = 0;
  for (;;) {
    mbar_wait(at.held_full, held_parity);
    held_parity ^= 1;
    const int head = at.tile[0], block = 2 * at.tile[1] + me;
    if (head < 0) break;
    const int b = head / n.kv_heads, kh = head - b * n.kv_heads, key0 = block * 64, key = key0 + warp * 16 + g;
    const int inside = key0 < n.s_len, from = inside ? first_queries(&n, block) : q_blocks;
    const ulong ak = ROWS_OF(at.held + me * BLOCK), av = ROWS_OF(at.held + (2 + me) * BLOCK);
    float dK[32], dV[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) dK[j] = dV[j] = 0.0f;
    for (int h = kh * n.group; h < (kh + 1) * n.group; ++h)
      for (int m = first_queries(&n, block - me); m < q_blocks; ++m) {
        mbar_wait(at.ring_full + s * 8, parity);
        if (m < from) { /* queries that see none of these keys */
          bar_sync(ALONE + me, 128);
          mbar_arrive_if(at.ring_free + s * 8, first);
          NEXT_STAGE(s, parity, STAGES)
          continue;
        }
        float S[32], dP[32], part[32];
        uint P[48];
        const uint block_q = at.ring + s * 2 * BLOCK, block_g = block_q + BLOCK, stat = at.stats + s * 512 + q * 8;
        BF16X3_SS(S, ak, ROWS_OF(block_q));
        BF16X3_SS(dP, av, ROWS_OF(block_g));
#if DROPOUT
        uint bits[1];
        const ulong across = (s_len + 3) / 4, row = ((ulong)b * heads + h) * t_len + m * 64 + 2 * q;
        kept_by_columns(bits, 64, row * across + key / 4, across, g, seed, offset, drop);
#endif
        WAIT_PRODUCTS(1);
        HOLD_F32(S);
#if CAUSAL
        if (m * 64 + n.s_len - n.t_len < key0 + 64) hide_queries(S, key - (n.s_len - n.t_len) - m * 64 - 2 * q);
#endif
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 lse = local_pair(stat + j * 32);
          S[j * 4] = power2(fma(S[j * 4], scale, -lse.x));
          S[j * 4 + 1] = power2(fma(S[j * 4 + 1], scale, -lse.y));
          S[j * 4 + 2] = power2(fma(S[j * 4 + 2], scale, -lse.x));
          S[j * 4 + 3] = power2(fma(S[j * 4 + 3], scale, -lse.y));
        }
        WAIT_PRODUCTS(0);
        HOLD_F32(dP);
        /* dP becomes dS / scale, S what dv's product takes. */
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 delta = local_pair(stat + 256 + j * 32);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = j * 4 + e;
            dP[i] = S[i] * (DROPPED(bits, i, dP[i] * KEEP) - (e & 1 ? delta.y : delta.x));
            S[i] = DROPPED(bits, i, S[i]);
          }
        }
        CUT_UP(P, S)
        HOLD_U48(P);
        BF16X3_RS(part, P, COLUMNS_OF(block_g));
        WAIT_PRODUCTS(0);
        HOLD_F32(part);
        HOLD_U48(P);
#pragma unroll
        for (int j = 0; j < 32; ++j) dV[j] += part[j];
        CUT_UP(P, dP)
        HOLD_U48(P);
        BF16X3_RS(part, P, COLUMNS_OF(block_q));
        WAIT_PRODUCTS(0);
        HOLD_F32(part);
        HOLD_U48(P);
        mbar_arrive_if(at.ring_free + s * 8, first);
#pragma unroll
        for (int j = 0; j < 32; ++j) dK[j] += part[j];
        NEXT_STAGE(s, parity, STAGES)
      }
    bar_sync(ALONE + me, 128); /* all have read the tile's number */
    mbar_arrive_if(at.held_free, first);
    if (!inside) continue;
    const int ok0 = key < n.s_len, ok8 = key + 8 < n.s_len;
    store_floats(dK, dk + dk0 + b * dkb + kh * dkh + key * dkt, dkt, ok0, ok8, scale_, scale_, q);
    store_floats(dV, dv + dv0 + b * dvb + kh * dvh + key * dvt, dvt, ok0, ok8, KEEP, KEEP, q);
  }
}

/* ---- dq ---- */
static inline void produce_q(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *g_,
                             __global const uchar *k_, __global const uchar *v_, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (q_blocks + 1) / 2, all = batch * n->heads;
  uint s = 0, parity = 1, held_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->held_free, held_parity);
    held_parity ^= 1;
    if (t >= pairs * all) {
      at->tile[0] = -1;
      mbar_arrive(at->held_full);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, pairs, n->together, all);
    const int pair = pairs - 1 - tile.y, b = tile.x / n->heads, kh = b * n->kv_heads + (tile.x - b * n->heads) / n->group;
    at->tile[0] = tile.x;
    at->tile[1] = pair;
    hold(at, q_, g_, tile.x, q_blocks, 2 * pair);
    const int keys = key_blocks(n, pair * 128, 128);
    for (int i = 0; i < keys; ++i) {
      const uint to = at->ring + s * 2 * BLOCK, bar = at->ring_full + s * 8;
      mbar_wait(at->ring_free + s * 8, parity);
      mbar_expect(bar, 2 * BLOCK);
      copy_block(to, k_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      copy_block(to + BLOCK, v_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      NEXT_STAGE(s, parity, STAGES)
    }
    t = after;
  }
  leave(next);
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_bwd_q(
    __global const uchar *q_, __global const uchar *g_, __global const uchar *k_, __global const uchar *v_,
    __global const float *stats, __global float *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt, __global int *next, uint batch,
    uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  begin(&at, item);
  if (warpgroup == 0) {
    GIVE_REGISTERS(24);
    if (item == 0) produce_q(&at, &n, batch, q_, g_, k_, v_, next);
    return;
  }

  TAKE_REGISTERS(240);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  uint s = 0, parity = 0, held_parity = 0;
  for (;;) {
    mbar_wait(at.held_full, held_parity);
    held_parity ^= 1;
    const int head = at.tile[0], pair = at.tile[1];
    if (head < 0) break;
    const int row0 = pair * 128 + me * 64, row = row0 + warp * 16 + g, all = key_blocks(&n, pair * 128, 128);
    const int inside = row0 < n.t_len, mine = inside ? key_blocks(&n, row0, 64) : 0;
    const ulong aq = ROWS_OF(at.held + me * BLOCK), ag = ROWS_OF(at.held + (2 + me) * BLOCK);
    __global const float *stat = stats + 128 * ((size_t)head * BLOCKS(n.t_len) + row0 / 64) + warp * 16 + g;
    const float lse0 = inside ? -stat[0] : 0.0f, lse8 = inside ? -stat[8] : 0.0f;
    const float delta0 = inside ? stat[64] : 0.0f, delta8 = inside ? stat[72] : 0.0f;
    float dQ[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) dQ[j] = 0.0f;
#if DROPOUT
    const ulong across = (s_len + 3) / 4, draw = ((ulong)head * t_len + row) * across;
#endif
    for (int i = 0; i < mine; ++i) {
      float S[32], dP[32], part[32];
      uint P[48];
      const uint k = at.ring + s * 2 * BLOCK;
      mbar_wait(at.ring_full + s * 8, parity);
      BF16X3_SS(S, aq, ROWS_OF(k));
      BF16X3_SS(dP, ag, ROWS_OF(k + BLOCK));
#if DROPOUT
      uint bits[1];
      kept_by_rows(bits, 64, draw + i * 16, across * 8, q, seed, offset, drop);
#endif
      WAIT_PRODUCTS(1);
      HOLD_F32(S);
      HIDE(S, i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        S[j * 4] = power2(fma(S[j * 4], scale, lse0));
        S[j * 4 + 1] = power2(fma(S[j * 4 + 1], scale, lse0));
        S[j * 4 + 2] = power2(fma(S[j * 4 + 2], scale, lse8));
        S[j * 4 + 3] = power2(fma(S[j * 4 + 3], scale, lse8));
      }
      WAIT_PRODUCTS(0);
      HOLD_F32(dP);
#pragma unroll
      for (int j = 0; j < 32; ++j) S[j] *= DROPPED(bits, j, dP[j] * KEEP) - (j & 2 ? delta8 : delta0);
      CUT_UP(P, S)
      HOLD_U48(P);
      BF16X3_RS(part, P, COLUMNS_OF(k));
      WAIT_PRODUCTS(0);
      HOLD_F32(part);
      HOLD_U48(P);
      mbar_arrive_if(at.ring_free + s * 8, first);
#pragma unroll
      for (int j = 0; j < 32; ++j) dQ[j] += part[j];
      NEXT_STAGE(s, parity, STAGES)
    }
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      mbar_wait(at.ring_full + s * 8, parity);
      bar_sync(ALONE + me, 128);
      mbar_arrive_if(at.ring_free + s * 8, first);
      NEXT_STAGE(s, parity, STAGES)
    }
    bar_sync(ALONE + me, 128); /* all have read the tile's number */
    mbar_arrive_if(at.held_free, first);
    if (!inside) continue;
    const int b = head / n.heads, h = head - b * n.heads;
    store_floats(dQ, dq + dq0 + b * dqb + h * dqh + row * dqt, dqt, row < n.t_len, row + 8 < n.t_len, scale_, scale_, q);
  }
}
