/* One token of one text through all layers of a Llama-like decoder, in one launch: for each layer norm, queries, keys and values, attention over
 * the cache, output map, norm, gated feed-forward; then norm and head.
 *
 * decode_step  x (DIM) T, the token's embedding, position (1) uint, the tokens before it, norms (2 LAYERS + 1, DIM) T, biases (LAYERS, QKV) T, head_norms (LAYERS, 2, HEAD) T,
 *              angles
 *              cosines and sines (rows, HALF) f32, table (see below) ulong, words (WORDS) uint and state (1) uint, zeros before the first launch
 *              -> logits (VOCAB) T; keys and values of the token in row `position` of each cache (room, 2 KV_HEADS, HEAD) T
 *
 * The table holds, in 64-bit words: for each layer the address of its cache; then for each map in the order of the stages below its parts,
 * PARTS of each, two words: the address of the part's rows, and its rows | bytes of a row << 24 | format << 56. A part of no rows is none.
 *
 * Every work-group owns the same share of the rows of each matrix in all launches and keeps it in the order in which it is needed:
 *
 *   device memory                      local memory of a group
 *   rows of stage 0, 1, 2 ...  --->  [ slot | slot | slot | ... ]  --->  16 warps: a row each, or two   --->  exchange in device memory
 *                            1 lane    ring of RING_SLOTS, mbarriers                                             (words of all groups)
 *                            asks       full: bytes have come; empty: all warps are done
 *
 *   stage of a layer   rows        input                             result of the group's rows
 *   0  queries, keys, values       norm of the residual stream       exchange; attention of a head and a share of the context follows
 *   1  output map                  heads' results, shares joined     residual stream of the group's rows (local), exchange
 *   2  gate and value              norm of the residual stream       activation(gate) * value, exchange
 *   3  down                        those                             residual stream, exchange
 *   and behind all layers 4, head  norm of the residual stream       logits
 *
 * Groups do not wait for one another as a whole. A number is exchanged as one 32-bit word: 16 bits of it an f16, 16 bits the epoch, which
 * layer of which launch it is of; who needs it reads until the epoch is right. No word is overwritten too early: a group writes a word of
 * the next layer only when it has read a word of every group that was written after that group had read the old one, because each group owns
 * a row of every stage. The residual stream itself stays in f32.
 *
 * All groups have to run at the same time: as many as there are multiprocessors, each of which holds one.
 *
 * Defines: DIM, HEADS, KV_HEADS, HEAD, HIDDEN, VOCAB, LAYERS, HALF (pairs that are rotated), GROUPS; ACT (activation.cl); FORMATS (planes_dot.cl);
 * BIAS, QK_NORM (norms of query and key heads before they are rotated), UNIT_OFFSET (the factor of a norm is 1 + weight), SPLITS (shares of a context at most, HEADS * SPLITS words fit the
 * exchange), SPLIT_BYTES (keys and values of a share at least). RING 1: weights through the ring, of RING_SLOTS slots of SLOT bytes of which at
 * most IN_FLIGHT are asked for and have not come (sm_90). 0: rows are read where they lie.
 *
 * Design: a persistent kernel with a copy ring as CUTLASS's (cp.async.bulk, mbarrier); data words with flags as NCCL's LL protocol; split
 * context as flash decoding (Dao et al. 2023).
 */
#define WARPS 16
#define ITEMS (WARPS * 32)
#define QUERIES (HEADS * HEAD)
#define KEYS (KV_HEADS * HEAD)
#define QKV (QUERIES + 2 * KEYS)
#define WIDEST (HIDDEN > DIM ? (HIDDEN > QUERIES ? HIDDEN : QUERIES) : (DIM > QUERIES ? DIM : QUERIES))
#define STAGES 4
#define PARTS 3
#define HEAD_STAGE 4

/* Where the exchange keeps what. */
#define X_IN 0
#define X_MID (X_IN + DIM)
#define W_QKV (X_MID + DIM)
#define W_HIDDEN (W_QKV + QKV)
#define W_HEADS (W_HIDDEN + HIDDEN)
#define W_WEIGHT (W_HEADS + SPLITS * QUERIES)

#if RING
#define ROWS_IN __local
#define WARP_OF_32
#define MEET() asm volatile("bar.sync 1, %0;" ::"n"(ITEMS) : "memory")
static inline uint f16_bits_of(float v) {
  uint r;
  asm("{\n\t.reg .b16 h;\n\tcvt.rn.f16.f32 h, %1;\n\tmov.b32 %0, {h, 0};\n\t}" : "=r"(r) : "f"(v));
  return r;
}
static inline uint4 read4(volatile __global const uint *p) {
  uint4 r;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p) : "memory");
  return r;
}
static inline uint read1(volatile __global const uint *p) {
  uint r;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
static inline void write1(volatile __global uint *p, uint v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
static inline float swap_f(float v, int lanes) { return as_float(swap_u(as_uint(v), lanes)); }
#else
#define ROWS_IN __global
#define WARP_OF_32 __attribute__((intel_reqd_sub_group_size(32)))
#define MEET() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
static inline uint f16_bits_of(float v) {
  ushort h;
  vstore_half_rte(v, 0, (half *)&h);
  return h;
}
static inline uint4 read4(volatile __global const uint *p) { return (uint4)(p[0], p[1], p[2], p[3]); }
static inline uint read1(volatile __global const uint *p) { return *p; }
static inline void write1(volatile __global uint *p, uint v) { *p = v; }
static inline float swap_f(float v, int lanes) { return sub_group_shuffle_xor(v, lanes); }
#endif
