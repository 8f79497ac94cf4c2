/* Shared parts of the 16-bit forward kernels for sm_90: sizes of blocks, layout of local memory, the producer, the softmax of a block of scores,
 * and the end of a tile. attention_wgmma_sm90.cl (D up to 128) and attention_wide_sm90.cl (129 to 256) use it and contain the consumers' main
 * loops; see attention_sm90.cl for blocks and tiles, attention_sm90_fragments.cl for the layout of registers.
 *
 * A tile is BQ = 64 * CW queries of one head; its keys and values come in blocks of BK rows, from the last visible block to the first.
 *
 *   local memory   q, Q_STAGES | k, STAGES | v, STAGES | barriers | tiles
 *
 *   barrier          completed by                                   waited for by
 *   q_full           the copy of a tile's queries                   consumers, at the start of a tile
 *   q_free           consumers, after their last scores             the producer, before another tile's queries
 *   k_full, v_full   the copies of a block                          consumers, before a product
 *   k_free, v_free   consumers, after it                            the producer, before the next copy
 *
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608).
 * Defines: those of attention_sm90.cl; CW, consumer warpgroups.
 */
#ifndef CW
#define CW 2
#endif
#define BQ (64 * CW)
/* BK is limited by the registers for scores next to 64 x D sums, and by two stages of keys in local memory. BK_STEPS: 16-deep steps of a product
 * over them. HOLD_SCORES, HOLD_WEIGHTS: instructions that use these registers do not move across it. */
#if D <= 128
#define BK 128
#define BK_STEPS 8
#define Q_STAGES 2
#define HOLD_SCORES HOLD_F64
#define HOLD_WEIGHTS HOLD_U32
#elif D <= 192
#define BK 96
#define BK_STEPS 6
#define Q_STAGES 1
#define HOLD_SCORES HOLD_F48
#define HOLD_WEIGHTS HOLD_U24
#else
#define BK 80
#define BK_STEPS 5
#define Q_STAGES 1
#define HOLD_SCORES HOLD_F40
#define HOLD_WEIGHTS HOLD_U20
#endif
#define STAGES (D <= 64 ? 4 : 2)
#define SCORES(s, q, k) PRODUCT_D(s, BK, q, BQ, k)
#define SUM_VALUES(o, p, v, keep) PRODUCT_ROWS(o, BK_STEPS, p, v, keep)
#define Q_BYTES (BQ * DP * 2)
#define K_BYTES (BK * DP * 2)
#define LOCAL_BYTES (Q_STAGES * Q_BYTES + 2 * STAGES * K_BYTES + BARRIER_BYTES)
/* Warpgroups start with the limit of .maxnreg, 168 registers per item (128 with four warpgroups). */
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

/* Layout of the LOCAL_BYTES bytes of local memory at `local_`. */
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
/* Initializes the rings. One item calls it, before the group's barrier. A stage is free after `consumers` arrivals. */
INLINE void forward_rings(const Place *at, int consumers) {
  ring_init(at->k_full, at->k_free, STAGES, consumers);
  ring_init(at->v_full, at->v_free, STAGES, consumers);
  ring_init(at->q_full, at->q_free, Q_STAGES, consumers);
  barriers_ready();
}

/* Returns the first key block that rows `first`.. see. */
INLINE int first_block(const Sizes *n, int first) {
#if WINDOW
  return max(first + n->s_len - n->t_len + 1 - WINDOW, 0) / BK;
#else
  return 0;
#endif
}

/* The producer: copies a tile's queries, then its keys and values block after block; tiles come longest first. */
INLINE void produce(const Place *at, const Sizes *n, int blocks, int all, ulong maps, __global int *next) {
  const ulong mq = use_map(maps), mk = use_map(maps + 128), mv = use_map(maps + 256);
  const int tiles = blocks * all;
  uint s = 0, parity = 1, qs = 0, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free + qs * 8, q_parity);
    if (t >= tiles) {
      announce_end(at->tile + 2 * qs, at->q_full + qs * 8);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, blocks, n->together, all);
    const int block = blocks - 1 - tile.y, b = tile.x / n->heads, h = tile.x - b * n->heads, kh = h / n->group;
    announce(at->tile + 2 * qs, tile.x, block);
    mbar_expect(at->q_full + qs * 8, Q_BYTES);
    copy_rows(at->q + qs * Q_BYTES, BQ, mq, block * BQ, h, b, at->q_full + qs * 8);
    NEXT_STAGE(qs, q_parity, Q_STAGES)
    const int last = first_block(n, block * BQ);
    for (int i = key_blocks(n, BK, block * BQ, BQ) - 1; i >= last; --i) {
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

/* The softmax of an item's two rows so far: the references of the exponents, and this item's partial sums. */
typedef struct {
  float high0, high8, sum0, sum8;
} Softmax;
/* A row's reference is raised to its maximum only when the maximum exceeds it by 2^SLACK. Until then powers are larger than 1, which is harmless
 * for f32 sums and bf16 powers, and O need not be scaled. any_item returns whether any of the warp's rows exceeds it. */
#define SLACK 8.0f
INLINE int any_item(int yes) {
  uint r;
  asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %1, 0;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\tselp.u32 %0, 1, 0, q;\n\t}"
               : "=r"(r) : "r"(yes));
  return (int)r;
}
/* With blocks of 80 and 96 keys or a window, a row may have seen no key so far: its reference is -infinity. Any finite reference makes its
 * powers 0, and the sums need no scaling. Up to D = 128 the diagonal starts at a block of 64 keys, and every row sees a key. */
#if D > 128
INLINE float reference(float high) { return high == -INFINITY ? 0.0f : high; }
INLINE float shrink(float from, float to, float scale) { return from == to ? 1.0f : power2((from - to) * scale); }
#else
INLINE float reference(float high) { return high; }
INLINE float shrink(float from, float to, float scale) { return power2((from - to) * scale); }
#endif
/* Converts scores of a further block to powers. Returns whether O must be multiplied by by0 and by8 before the block's weights are summed. */
INLINE int softmax_next(float *s, Softmax *x, float scale, float *by0, float *by8) {
  const float new0 = row_max(s, BK, x->high0), new8 = row_max(s + 2, BK, x->high8);
  const int grown = any_item(max_f(new0 - x->high0, new8 - x->high8) * scale > SLACK);
  *by0 = *by8 = 1.0f;
  if (grown) {
    *by0 = shrink(x->high0, new0, scale);
    *by8 = shrink(x->high8, new8, scale);
    x->high0 = new0;
    x->high8 = new8;
    x->sum0 *= *by0;
    x->sum8 *= *by8;
  }
  exponentials(s, BK, scale, reference(x->high0), reference(x->high8), &x->sum0, &x->sum8);
  return grown;
}
/* Converts scores of a tile's first block to powers. */
INLINE void softmax_first(float *s, Softmax *x, float scale) {
#if D > 128
  float by0, by8;
  x->high0 = x->high8 = -INFINITY;
  x->sum0 = x->sum8 = 0.0f;
  softmax_next(s, x, scale, &by0, &by8);
#else
  x->high0 = row_max(s, BK, s[0]);
  x->high8 = row_max(s + 2, BK, s[2]);
  x->sum0 = x->sum8 = 0.0f;
  exponentials(s, BK, scale, reference(x->high0), reference(x->high8), &x->sum0, &x->sum8);
#endif
}

/* Stores a tile's results: O over the rows' sums times `keep`, and lse. `row` is the item's upper row; the sums are complete (row_sum). */
INLINE void store_tile(const float *O, const Softmax *x, const Sizes *n, int head, int row, __global T *o, __global float *lse,
                       float scale, float keep) {
  const int q = get_local_id(0) & 3, b = head / n->heads, h = head - b * n->heads, ok0 = row < n->t_len, ok8 = row + 8 < n->t_len;
  const size_t stride = (size_t)n->heads * D;
  store_rows(O, o + ((size_t)b * n->t_len + row) * stride + (size_t)h * D, stride, ok0, ok8, keep * over1(x->sum0),
             keep * over1(x->sum8), q);
  __global float *to = lse + (size_t)head * n->t_len + row;
  store_if(to, q == 0 && ok0, (x->high0 * scale + log2(x->sum0)) * LN_2);
  store_if(to + 8, q == 0 && ok8, (x->high8 * scale + log2(x->sum8)) * LN_2);
}
