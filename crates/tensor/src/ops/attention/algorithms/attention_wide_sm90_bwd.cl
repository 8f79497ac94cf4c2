/* Gradients of attention for heads of 129 to 256 on sm_90, with the tiles and the overlap of FlashAttention-3 (Shah et al. 2024):
 *   P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dv = Pᵀ dO,  dk = scale * dSᵀ q,  dq = scale * dS k.
 *
 * dq is not summed over key blocks in memory. Instead dS, of type T, is stored for the heads of a launch (2 bytes per score; sums of dq would
 * move 4 D bytes for 64 keys), and a second kernel multiplies it by k. There are five products and no atomics on results; the shapes determine
 * the order of every sum.
 *
 * attention_bwd_kv   A tile is 64 keys of a key head; it processes blocks of 64 queries of all heads of the group. Consumer 0 holds dv,
 *                    consumer 1 dk, 64 x D sums each. Scores are transposed (keys by queries), so that Pᵀ and dSᵀ in registers are
 *                    the A operands of dv and dk.
 *
 *   local memory     k | v | q 0 | q 1 | dO 0 | dO 1 | P 0 | P 1 | stats | barriers | tile
 *   producer         k, v (tile) -> q(0), dO(0) -> q(1), dO(1) -> ...
 *   consumer 0       Sᵀ(i) = k qᵀ  -> P(i) -> local memory, registers -> dv += Pᵀ dO   | Sᵀ(i+1) ...
 *   consumer 1       dPᵀ(i) = v dOᵀ -> P(i) from there -> dS(i) -> memory -> dk += dSᵀ q | dPᵀ(i+1) ...
 *   While one consumer computes powers or differences, the products of the other run.
 *
 *   barrier          id     items   arrives               waits
 *   kv_full          -      copies  the producer's copy   consumers, at the start of a tile
 *   kv_free          -      8 warps consumers             the producer, before the next tile
 *   q_full, g_full   -      copies  q and lse, dO, delta  consumers, before a product
 *   q_free, g_free   -      8 warps consumers, after both the producer, before the next copy
 *   WEIGHTS_FULL + s 2, 3   256     consumer 0, P stored  consumer 1
 *   WEIGHTS_FREE + s 4, 5   256     consumer 1, P read    consumer 0
 *
 * attention_bwd_q    A tile is 128 queries of a head, 64 per consumer; a product over its key blocks with D columns, A (dS) by columns.
 *
 *   local memory     stages of: dS of 64 queries x 64 keys for each consumer, k of 64 keys | barriers | tile
 *   full, free       as above, 4 stages
 *
 *   ds               (key heads of the launch, group, query blocks, key blocks) of 64 keys x 64 queries, type T, in the layout of local
 *                    memory: 128 bytes per key, 16-byte chunk c of key r at c ^ (r & 7)
 *   groups           one per multiprocessor, of 384 items
 *   maps             at maps_at: q, dO, k, v, rank 4, boxes of 64 rows
 *   stats            result of attention_bwd_stats
 *   dq, dk, dv       strided, type T, every element written
 *   next             two counters, 0 before and after
 *   first, count     key heads (B,KH) of this launch
 *   together         heads that share the L2 cache: key heads in attention_bwd_kv
 * Causal: query t sees keys up to t + S - T, S >= T; a window limits these to the last WINDOW. P and dS are rounded to T before their products,
 * all other values are f32.
 *
 * Defines: those of attention_sm90.cl; D 129 to 256, no DROPOUT.
 * Ceiling: wgmma, 989 TFLOP/s by the data sheet, 620 to 740 under the power limit. Reached on an H200 with 256 x 4096 x 16 x 4 (D, T, H, B),
 * bf16, with five products counted: 550 to 620 TFLOP/s causal, 600 full.
 */
#define BLOCK 64
#define BLOCK_BYTES (BLOCK * DP * 2)
#define STAGES 2
#define SCORE_BYTES (BLOCK * BLOCK * 2)
#define WEIGHT_BYTES (BLOCK * BLOCK * 4)
#define STAT_BYTES (BLOCK * 4)
#define KV_LOCAL (2 * BLOCK_BYTES + 2 * STAGES * BLOCK_BYTES + 2 * WEIGHT_BYTES + 2 * STAGES * STAT_BYTES + BARRIER_BYTES)
#define Q_STAGES 4
#define Q_STAGE_BYTES (2 * SCORE_BYTES + BLOCK_BYTES)
#define Q_LOCAL (Q_STAGES * Q_STAGE_BYTES + BARRIER_BYTES)
#define WEIGHTS_FULL 2
#define WEIGHTS_FREE 4
#define TRANSPOSED_SCORES(s, a, b) PRODUCT_D(s, 64, a, BLOCK, b)
#define SUM_ROWS(c, p, x, keep) PRODUCT_ROWS(c, 4, p, x, keep)
#if DP == 192
#define SUM_QUERIES(c, a, b, keep) BY_BY_N192_K4(c, BY_COLUMNS(BLOCK) | (ulong)(a), BY_COLUMNS(BLOCK) | (ulong)(b), keep)
#else
#define SUM_QUERIES(c, a, b, keep) BY_BY_N256_K4(c, BY_COLUMNS(BLOCK) | (ulong)(a), BY_COLUMNS(BLOCK) | (ulong)(b), keep)
#endif

INLINE int blocks_of(int rows) { return (rows + BLOCK - 1) / BLOCK; }
/* First query block that sees keys of block i, and the one after the last; likewise the key blocks that query block m sees. */
INLINE int first_queries_of(const Sizes *n, int i) { return first_queries(n, BLOCK, i * BLOCK); }
INLINE int end_queries(const Sizes *n, int i) {
#if WINDOW
  return blocks_of(max(min((i + 1) * BLOCK - 1 + WINDOW - (n->s_len - n->t_len), n->t_len), 0));
#else
  return blocks_of(n->t_len);
#endif
}
INLINE int first_keys(const Sizes *n, int m) {
#if WINDOW
  return max(m * BLOCK + n->s_len - n->t_len + 1 - WINDOW, 0) / BLOCK;
#else
  return 0;
#endif
}
INLINE int end_keys(const Sizes *n, int m) { return key_blocks(n, BLOCK, m * BLOCK, BLOCK); }
/* Returns the offset of dS for query block m of head h and key block i; heads are counted from the launch's first. */
INLINE size_t scores_at(const Sizes *n, int h, int m, int i) {
  return (((size_t)h * blocks_of(n->t_len) + m) * blocks_of(n->s_len) + i) * (BLOCK * BLOCK);
}
