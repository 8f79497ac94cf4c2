/* Attention for sm_90: the memory layout and copies that all its kernels share. Bulk copies (TMA) load blocks of rows into rings of stages in
 * local memory (include/sm90.cl), where they are operands of warpgroup products (wgmma). Operations on products in registers are in
 * attention_sm90_fragments.cl.
 *
 * Kernels are persistent: there is one group per multiprocessor, and each takes tile after tile. The first warpgroup of a group is the producer,
 * of which one work-item copies; the others are consumers. The producer takes a tile's number from the counter next[0] and stores it in local
 * memory next to the data of that tile. A negative number ends the consumers. The last group to leave resets both counters to 0 for the next
 * launch.
 *
 *   global memory    q, k, v, dO            next: tiles taken, groups that left
 *        | bulk copies (one item of the producer warpgroup)
 *   local memory     [ held for a tile ] [ ring: stage 0 | stage 1 | ... ] [ barriers, BARRIER_BYTES: ... | tile numbers at SLOT_BYTES ]
 *        | wgmma, operands from local memory or registers
 *   registers        fragments of scores, weights and sums (consumer warpgroups, 64 rows each)
 *        | 16 bytes per item
 *   global memory    o and lse, or dq, dk, dv
 *
 * Blocks: a block of R rows is stored in local memory as DP / 64 halves of R rows of 64 columns, 128-byte swizzled, written by copies over
 * rank-4 tensor maps (D, rows, heads, batch). Rows past the end and columns past D are read as 0, so data of another sequence is never read.
 *
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) on the pipelines of CUTLASS (PipelineTmaAsync).
 * Defines: D head size (multiple of 8, up to 256), CAUSAL, WINDOW (maximum keys that a query sees, 0: all), DROPOUT, DTYPE (1 f16, 2 bf16).
 */
#ifndef D
#define D 64
#endif
#ifndef CAUSAL
#define CAUSAL 1
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
/* DP: D padded to whole halves; D_STEPS: 16-deep steps of a product over D; HOLD_D: HOLD of a 64 x DP product. */
#if D <= 64
#define DP 64
#define HOLD_D HOLD_F32
#elif D <= 128
#define DP 128
#define HOLD_D HOLD_F64
#elif D <= 192
#define DP 192
#define HOLD_D HOLD_F96
#else
#define DP 256
#define HOLD_D HOLD_F128
#endif
#if D <= 64
#define D_STEPS 4
#elif D <= 80
#define D_STEPS 5
#elif D <= 96
#define D_STEPS 6
#elif D <= 112
#define D_STEPS 7
#elif D <= 128
#define D_STEPS 8
#elif D <= 144
#define D_STEPS 9
#elif D <= 160
#define D_STEPS 10
#elif D <= 176
#define D_STEPS 11
#elif D <= 192
#define D_STEPS 12
#elif D <= 208
#define D_STEPS 13
#elif D <= 224
#define D_STEPS 14
#elif D <= 240
#define D_STEPS 15
#else
#define D_STEPS 16
#endif
#define HALVES (DP / 64)
/* Rows of a head's statistics, padded to whole blocks. */
#define PADDED(t) (((t) + 255) / 256 * 256)
#define BARRIER_BYTES 512
#define SLOT_BYTES 448 /* of these, the last 64 are for tile numbers */

#define NAME4_(a, b, c, d) a##b##c##d
#define NAME4(a, b, c, d) NAME4_(a, b, c, d)
/* Computes c = a bᵀ over D: a of ra rows and b of n rows in local memory. */
#define PRODUCT_D(c, n, a, ra, b) NAME4(SS_N, n, _K, D_STEPS)(c, BY_ROWS | (ulong)(a), BY_ROWS | (ulong)(b), (ra) * 8, (n) * 8)
/* Computes c (+)= p x: p packed, x of 16 * steps rows of D. */
#define PRODUCT_ROWS(c, steps, p, x, keep)                                                                             \
  NAME4(RS_N, DP, _K, steps)(c, p, BY_COLUMNS((steps) * 16) | (ulong)(x), keep)
/* Descriptors in units of 16 bytes: swizzle 128, 1024 bytes between groups of 8 rows; halves are `rows` * 128 bytes apart. */
#define BY_ROWS (((ulong)1 << 62) | ((ulong)(1024 >> 4) << 32) | ((ulong)1 << 16))
#define BY_COLUMNS(rows) (((ulong)1 << 62) | ((ulong)(1024 >> 4) << 32) | ((ulong)((rows) * 8) << 16))

/* Sizes of a problem: query heads and key heads, query heads per key head, queries, keys, heads that share the L2 cache. */
typedef struct {
  int heads, kv_heads, group, t_len, s_len, together;
} Sizes;
INLINE Sizes sizes(uint heads, uint kv_heads, uint t_len, uint s_len, uint together) {
  Sizes n;
  n.heads = heads;
  n.kv_heads = kv_heads;
  n.group = heads / kv_heads;
  n.t_len = t_len;
  n.s_len = s_len;
  n.together = together;
  return n;
}
/* Causal: query t sees keys up to t + S - T. Returns the number of blocks of bk keys, from key 0, that queries first.. up to `rows` more see;
 * and the first block of bq queries that sees keys first... */
INLINE int key_blocks(const Sizes *n, int bk, int first, int rows) {
#if CAUSAL
  return (min(min(first + rows, n->t_len) + n->s_len - n->t_len, n->s_len) + bk - 1) / bk;
#else
  return (n->s_len + bk - 1) / bk;
#endif
}
INLINE int first_queries(const Sizes *n, int bq, int first) {
#if CAUSAL
  return max(first - (n->s_len - n->t_len), 0) / bq;
#else
  return 0;
#endif
}

/* Signals that a consumer no longer needs a stage. One arrival per warp is for a producer that waits for all of them: no warp is late by a phase
 * when the stage is filled again. One per warpgroup is for consumers whose products keep its four warps together. */
INLINE void release(uint free) { mbar_arrive_if(free, (get_local_id(0) & 31) == 0); }
INLINE void release_together(uint free) { mbar_arrive_if(free, (get_local_id(0) & 127) == 0); }

/* Copies rows `row`.. of a head into local memory, all halves; the map's box gives the number of rows. */
INLINE void copy_rows(uint to, int rows, ulong map, int row, int head, int batch, uint bar) {
#pragma unroll
  for (int half_ = 0; half_ < HALVES; ++half_)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
                 "[%6];" ::"r"(to + half_ * rows * 128), "l"(map), "r"(half_ * 64), "r"(row), "r"(head), "r"(batch), "r"(bar)
                 : "memory");
}

/* Increments a counter and returns its previous value. */
INLINE int take(__global int *counter) {
  int r;
  asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(r) : "l"(counter) : "memory");
  return r;
}
/* Returns the number of a group's next tile. */
INLINE int take_tile(__global int *next) { return take(next) + (int)get_num_groups(0); }
INLINE void leave(__global int *next) {
  if (take(next + 1) == (int)get_num_groups(0) - 1) {
    next[0] = 0;
    next[1] = 0;
  }
}
/* Returns the head of tile t among all (batch, head), and its block. Within a set of `together` heads, all heads come before the next block.
 * Sets keep shared data in the L2 cache. */
INLINE int2 tile_of(int t, int blocks, int together, int all_heads) {
  const int set = t / (together * blocks), r = t - set * together * blocks, width = min(together, all_heads - set * together);
  return (int2)(set * together + r % width, r / width);
}
/* Announces a tile to the consumers, or the end of the tiles; consumers wait for `full`. */
INLINE void announce(__local int *tile, int head, int block) {
  tile[0] = head;
  tile[1] = block;
}
INLINE void announce_end(__local int *tile, uint full) {
  tile[0] = -1;
  mbar_arrive(full);
}
