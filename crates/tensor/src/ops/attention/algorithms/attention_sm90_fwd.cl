/* What the forward kernels of sm_90 share: sizes of blocks, the producer that copies them, and the softmax of a block of scores.
 * Used by attention_wgmma_sm90.cl (D up to 128) and attention_wide_sm90.cl (129 to 256); see attention_sm90.cl for blocks, rings and
 * fragments.
 *
 * A tile is BQ = 64 * CW queries of one head; its keys and values come in blocks of BK rows, from the last that is seen to the first.
 *
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608).
 * Defines: those of attention_sm90.cl; CW, consumer warpgroups.
 */
#ifndef CW
#define CW 2
#endif
#define BQ (64 * CW)
/* As many keys as registers hold scores for beside 64 x D sums, and two stages of them as local memory holds. */
#if D <= 64
#define BK 128
#define STAGES 4
#define Q_STAGES 2
#elif D <= 128
#define BK 128
#define STAGES 2
#define Q_STAGES 2
#elif D <= 192
#define BK 96
#define STAGES 2
#define Q_STAGES 1
#else
#define BK 80
#define STAGES 2
#define Q_STAGES 1
#endif
#define Q_BYTES (BQ * DP * 2)
#define K_BYTES (BK * DP * 2)
#define LOCAL_BYTES (Q_STAGES * Q_BYTES + 2 * STAGES * K_BYTES + BARRIER_BYTES)
/* Warpgroups start with what .maxnreg allows, 168 registers an item (128 in four warpgroups). */
#if CW == 3
#define COPY_REGISTERS 32
#define MATH_REGISTERS 160
#else
#define COPY_REGISTERS 24
#define MATH_REGISTERS 240
#endif

typedef struct {
  uint q, k, v;                                              /* first stages in local memory */
  uint q_full, q_free, k_full, k_free, v_full, v_free;       /* first barriers */
  __local int *tile;                                         /* head and block of each stage of q */
} Place;
typedef struct {
  int heads, group, t_len, s_len, blocks, all_heads, together;
} Sizes;

/* The places in `local_`, LOCAL_BYTES of it. */
INLINE Place forward_place(__local uchar *local_) {
  Place at;
  at.q = (uint)(size_t)local_;
  at.k = at.q + Q_STAGES * Q_BYTES;
  at.v = at.k + STAGES * K_BYTES;
  at.k_full = at.v + STAGES * K_BYTES;
  at.k_free = at.k_full + STAGES * 8;
  at.v_full = at.k_free + STAGES * 8;
  at.v_free = at.v_full + STAGES * 8;
  at.q_full = at.v_free + STAGES * 8;
  at.q_free = at.q_full + Q_STAGES * 8;
  at.tile = (__local int *)(local_ + LOCAL_BYTES - BARRIER_BYTES + SLOT_BYTES);
  return at;
}
INLINE Sizes forward_sizes(uint batch, uint together, uint heads, uint kv_heads, uint t_len, uint s_len) {
  Sizes n;
  n.heads = heads;
  n.group = heads / kv_heads;
  n.t_len = t_len;
  n.s_len = s_len;
  n.blocks = (t_len + BQ - 1) / BQ;
  n.all_heads = batch * heads;
  n.together = together;
  return n;
}
/* By one item, before the group's barrier: a stage is free after `consumers` arrivals. */
INLINE void forward_rings(const Place *at, int consumers) {
  ring_init(at->k_full, at->k_free, STAGES, consumers);
  ring_init(at->v_full, at->v_free, STAGES, consumers);
  ring_init(at->q_full, at->q_free, Q_STAGES, consumers);
  barriers_ready();
}

/* Key blocks that rows first.. up to `rows` more see. */
INLINE int key_blocks(const Sizes *n, int first, int rows) {
#if CAUSAL
  return (min(min(first + rows, n->t_len) + n->s_len - n->t_len, n->s_len) + BK - 1) / BK;
#else
  return (n->s_len + BK - 1) / BK;
#endif
}

/* First key block that rows `first`.. see. */
INLINE int first_block(const Sizes *n, int first) {
#if WINDOW
  return max(first + n->s_len - n->t_len + 1 - WINDOW, 0) / BK;
#else
  return 0;
#endif
}

INLINE void produce(const Place *at, const Sizes *n, ulong maps, __global int *next) {
  const ulong mq = use_map(maps), mk = use_map(maps + 128), mv = use_map(maps + 256);
  const int tiles = n->blocks * n->all_heads;
  uint s = 0, parity = 1, qs = 0, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free + qs * 8, q_parity);
    if (t >= tiles) {
      at->tile[2 * qs] = -1;
      mbar_arrive(at->q_full + qs * 8);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, n->blocks, n->together, n->all_heads);
    const int block = n->blocks - 1 - tile.y, b = tile.x / n->heads, h = tile.x - b * n->heads, kh = h / n->group;
    at->tile[2 * qs] = tile.x;
    at->tile[2 * qs + 1] = block;
    mbar_expect(at->q_full + qs * 8, Q_BYTES);
    copy_rows(at->q + qs * Q_BYTES, BQ, mq, block * BQ, h, b, at->q_full + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    const int last = first_block(n, block * BQ);
    for (int i = key_blocks(n, block * BQ, BQ) - 1; i >= last; --i) {
      mbar_wait(at->k_free + s * 8, parity);
      mbar_expect(at->k_full + s * 8, K_BYTES);
      copy_rows(at->k + s * K_BYTES, BK, mk, i * BK, kh, b, at->k_full + s * 8);
      mbar_wait(at->v_free + s * 8, parity);
      mbar_expect(at->v_full + s * 8, K_BYTES);
      copy_rows(at->v + s * K_BYTES, BK, mv, i * BK, kh, b, at->v_full + s * 8);
      NEXT_STAGE(s, parity, STAGES)
    }
    t = after;
  }
  leave(next);
}

/* Scores of keys past the last that the upper or lower row sees become -infinity; `key` is the item's first. */
INLINE void hide(float *s, int key, int last0, int last8) {
#pragma unroll
  for (int j = 0; j < BK / 8; ++j) {
    if (key + j * 8 > last0) s[j * 4] = -INFINITY;
    if (key + j * 8 + 1 > last0) s[j * 4 + 1] = -INFINITY;
    if (key + j * 8 > last8) s[j * 4 + 2] = -INFINITY;
    if (key + j * 8 + 1 > last8) s[j * 4 + 3] = -INFINITY;
  }
}
/* The larger of high and a row's scores, over the four items of the row. */
INLINE float row_max(const float *s, float high) {
#pragma unroll
  for (int j = 0; j < BK / 8; ++j) high = max_f(high, max_f(s[j * 4], s[j * 4 + 1]));
  high = max_f(high, swap_f(high, 1));
  return max_f(high, swap_f(high, 2));
}
/* A row's reference follows its maximum once that is 2^SLACK above: until then its powers are larger than 1, which f32 sums and
 * bf16 powers do not mind, and O need not be scaled. Whether any of the warp's rows has got so far. */
#define SLACK 8.0f
INLINE int any_item(int yes) {
  uint r;
  asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %1, 0;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\tselp.u32 %0, 1, 0, q;\n\t}"
               : "=r"(r) : "r"(yes));
  return (int)r;
}
/* Scores to 2^(scale * (score - high)), their sums added to this item's share of the rows' sums. */
INLINE void exponentials(float *s, float scale, float high0, float high8, float *sum0, float *sum8) {
  const float a0 = -high0 * scale, a8 = -high8 * scale;
#pragma unroll
  for (int j = 0; j < BK / 8; ++j) {
    s[j * 4] = power2(fma(s[j * 4], scale, a0));
    s[j * 4 + 1] = power2(fma(s[j * 4 + 1], scale, a0));
    *sum0 += s[j * 4] + s[j * 4 + 1];
    s[j * 4 + 2] = power2(fma(s[j * 4 + 2], scale, a8));
    s[j * 4 + 3] = power2(fma(s[j * 4 + 3], scale, a8));
    *sum8 += s[j * 4 + 2] + s[j * 4 + 3];
  }
}
