/* Computes one token of each of TEXTS texts through all layers of a decoder, in one launch: for each layer norm, queries, keys and values,
 * attention over the cache, output map, norm, feed-forward; then norm and head.
 *
 * decode_step  x (TEXTS, DIM) T, the tokens' embeddings, or with EMBEDDED the whole embedding table (VOCAB, DIM), indexed by token_at (TEXTS) uint;
 *              places (rows, DIM) T, with EMBEDDED 2; position (TEXTS) uint, the earlier tokens of each text, or of all (1) with position_step 0;
 *              norms (LAYERS NORMS + 1, DIM) T: for each layer the norms before its two parts (PRE), then those after them (POST); then the last
 *                norm; with LAYER_NORM two rows each, factors and shift
 *              biases (LAYERS, ALL_BIASES) T, of the maps in BIASES, in their order
 *              head_norms (LAYERS, 2 HEAD, or QUERIES + KEYS with QK_NORM 2) T
 *              cosines and sines (sets, angle_rows, HALF) f32, table (see below) ulong, words (TEXTS, WORDS) and state (1) uint, zeros before the
 *              first launch; with PAGE pages (TEXTS, page_step) uint
 *              -> logits (TEXTS, VOCAB) T; keys and values of a token in row `position` of each cache (TEXTS, room, 2 KV_HEADS, HEAD) T
 *
 * A text whose position is beyond the caches is computed as if at position 0, but stores no keys and values, and its logits are NaN. The
 * exchange is therefore the same for all texts.
 *
 * The table holds, in 64-bit words: for each layer the address of its cache, its window (number of visible keys; all: 2^31 - 1), and the factor
 * of its scores as f32 | its set of angles plus one << 32 (0: none); then for each map, in the order of the stages below, its PARTS parts with
 * two words each: the address of the part's rows, and its rows | bytes of a row << 24 | format << 56. A part with 0 rows is unused.
 *
 * Every work-group owns the same share of the rows of each matrix in all launches, and loads its rows in the order of their use:
 *
 *   device memory                      local memory of a group
 *   rows of stage 0, 1, 2 ...  --->  [ slot | slot | slot | ... ]  --->  16 warps: a row each, or two   --->  exchange in device memory
 *                            1 lane    ring of RING_SLOTS, mbarriers                                             (words of all groups)
 *                            copies     full: the bytes have arrived; empty: all warps are done
 *
 *   stage of a layer   rows        input                             result of the group's rows
 *   0  queries, keys, values       norm of the residual stream       exchange; attention of a head and a share of the context follows
 *   1  output map                  heads' results, shares combined    residual stream of the group's rows (local), exchange
 *   2  gate and value              norm of the residual stream       activation(gate) * value, exchange
 *   3  down                        results of stage 2                residual stream, exchange
 *   and after all layers 4, head   norm of the residual stream       logits
 *
 * With PARALLEL, stage 2 has the same input as stage 0. With POST, the results of stages 1 and 3 go into the exchange before their norm.
 * Every group then adds the norm of all rows to its own copy of the residual stream.
 *
 * Groups do not use a barrier over all groups. Each number is exchanged as one word: the value, and the epoch, which identifies the layer and
 * the launch. A reader polls until the epoch is right. A word has 32 bits, half of them an f16, or in f32 models 64 bits, half of them an f32.
 * No word is overwritten too early. Before a group writes a word of the next layer, it has read a word of every group. Each of those was written
 * after its group had read the old word, because each group owns a row of every stage. The residual stream itself stays in f32.
 *
 * All groups must run at the same time: one on each multiprocessor.
 *
 * Defines, sizes: TEXTS; DIM and HIDDEN (multiples of 4, of 8 with dense rows of 16 bits), HEADS, KV_HEADS, HEAD (a multiple of 8 up to 256),
 * VOCAB, LAYERS, HALF (rotated pairs of a head; 0: no layer rotates), GROUPS (at most DIM, HIDDEN and QKV), SPLITS (maximum shares of a
 * context), SPLIT_BYTES (minimum bytes of keys and values per share).
 * Weights: FORMATS(OF), QUANTISED, DENSE (planes_dot.cl).
 * EMBEDDED 1: the input of the first layer is a row of x times embedding_scale. 2: a row of `places` is added.
 * Kind of model: ACT (activation.cl; 4: tanh), GATED (the activation of a row times another row), BIASES (set of bits:
 * 1 stage 0, 2 stage 1, 4 stage 2, 8 stage 3), LAYER_NORM (0: root mean square), UNIT_OFFSET (the factor of a norm is 1 + weight), PRE and
 * POST (norms before and after the parts of a layer), PARALLEL (attention and feed-forward have the same input), QK_NORM (norms of queries and keys
 * before they are rotated: 1 of each head, 2 of all heads together), CAPS (set of bits: 1 scores, 2 logits become cap tanh(x / cap)), VARIED
 * (windows, factors and sets of angles are those of the table; 0: no window, `scale`, the first set), SCALED (set of bits: 1 `residual` is the factor
 * of additions to the residual stream, 2 `logits_scale` of the logits).
 * RING 1: weights go through the ring, of RING_SLOTS slots of SLOT bytes; at most IN_FLIGHT bytes are requested but not yet received (sm_90). 0:
 * rows are read in place.
 *
 * Design: a persistent kernel with a copy ring like CUTLASS's (cp.async.bulk, mbarrier); data words with flags like NCCL's LL protocol; a split
 * context as in flash decoding (Dao et al. 2023).
 */
#define WARPS 16
#define ITEMS (WARPS * 32)
#define QUERIES (HEADS * HEAD)
#define KEYS (KV_HEADS * HEAD)
#define QKV (QUERIES + 2 * KEYS)
#define MOST_ROWS (VOCAB > 2 * HIDDEN ? (VOCAB > QKV ? VOCAB : QKV) : (2 * HIDDEN > QKV ? 2 * HIDDEN : QKV))
#define WIDEST (HIDDEN > DIM ? (HIDDEN > QUERIES ? HIDDEN : QUERIES) : (DIM > QUERIES ? DIM : QUERIES))
#define STAGES 4
#define PARTS 3
#define HEAD_STAGE 4

/* Norms of a layer, and elements of one. */
#define NORMS (2 * (PRE + POST))
#define NORM_SIZE (DIM * (1 + LAYER_NORM))
/* NORMED: a part's input is normalized before the product. Otherwise the norm is a factor of the sums, which is computed at the same time. */
#define NORMED (LAYER_NORM || POST || PARALLEL)
/* Elements of a layer's biases. */
#define UP_ROWS (HIDDEN * (1 + GATED))
#define OUT_BIAS ((BIASES & 1) * QKV)
#define UP_BIAS (OUT_BIAS + (BIASES >> 1 & 1) * DIM)
#define DOWN_BIAS (UP_BIAS + (BIASES >> 2 & 1) * UP_ROWS)
#define ALL_BIASES (DOWN_BIAS + (BIASES >> 3 & 1) * DIM)

/* Offsets in the exchange. */
#define X_IN 0
#define X_MID (X_IN + DIM)
#define W_QKV (X_MID + DIM)
#define W_HIDDEN (W_QKV + QKV)
#define W_HEADS (W_HIDDEN + HIDDEN)
#define W_WEIGHT (W_HEADS + SPLITS * QUERIES)
/* Words of a text. */
#define WORDS ((W_WEIGHT + 2 * SPLITS * HEADS + 3) / 4 * 4)

/* Local memory of a text: the input of a stage as bytes or as floats, sums of the group's rows, numbers of each warp, the group's share of the
 * residual stream. */
#define CODES (QUANTISED ? (WIDEST + 31) / 32 * 8 : 1)
#define SCALES (QUANTISED ? (WIDEST + 31) / 32 : 1)
#define FLOATS (DENSE ? WIDEST / 4 : 1)
#define SUMS (MOST_ROWS / GROUPS + 4)
#define WARP_SUMS ((NORMED ? 4 : QK_NORM == 2 ? 2 : 1) * WARPS)
#define STREAM (DIM / GROUPS + 2)

/* Words of the exchange. */
#define EXACT (DTYPE == 0)
#if EXACT
typedef ulong Word;
typedef ulong4 Words;
#else
typedef uint Word;
typedef uint4 Words;
#endif

#if RING
#define ROWS_IN __local
#define WARP_OF_32
#define MEET() asm volatile("bar.sync 1, %0;" ::"n"(ITEMS) : "memory")
static inline uint f16_bits_of(float v) {
  uint r;
  asm("{\n\t.reg .b16 h;\n\tcvt.rn.f16.f32 h, %1;\n\tmov.b32 %0, {h, 0};\n\t}" : "=r"(r) : "f"(v));
  return r;
}
#if EXACT
static inline Words read4(volatile __global const Word *p) {
  Words r;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%4];\n\tld.relaxed.gpu.global.v2.u64 {%2, %3}, [%4+16];"
               : "=l"(r.x), "=l"(r.y), "=l"(r.z), "=l"(r.w) : "l"(p) : "memory");
  return r;
}
static inline Word read1(volatile __global const Word *p) {
  Word r;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(r) : "l"(p) : "memory");
  return r;
}
static inline void write1(volatile __global Word *p, Word v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
#else
static inline Words read4(volatile __global const Word *p) {
  Words r;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p) : "memory");
  return r;
}
static inline Word read1(volatile __global const Word *p) {
  Word r;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
static inline void write1(volatile __global Word *p, Word v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
#endif
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
#if EXACT
/* The epoch is read first and written last, because a device may lack 64-bit accesses. */
static inline Word read1(volatile __global const Word *p) {
  volatile __global const uint *parts = (volatile __global const uint *)p;
  const uint epoch = parts[1];
  return (ulong)parts[0] | (ulong)epoch << 32;
}
static inline void write1(volatile __global Word *p, Word v) {
  volatile __global uint *parts = (volatile __global uint *)p;
  parts[0] = (uint)v;
  parts[1] = (uint)(v >> 32);
}
#else
static inline Word read1(volatile __global const Word *p) { return *p; }
static inline void write1(volatile __global Word *p, Word v) { *p = v; }
#endif
static inline Words read4(volatile __global const Word *p) { return (Words)(read1(p), read1(p + 1), read1(p + 2), read1(p + 3)); }
static inline float swap_f(float v, int lanes) { return sub_group_shuffle_xor(v, lanes); }
#endif
