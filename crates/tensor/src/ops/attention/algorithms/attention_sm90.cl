/* What attention_wgmma_sm90.cl, attention_wide_sm90.cl and the texts of their gradients share: blocks moved by sm_90's bulk copies (TMA) and
 * multiplied by warpgroups (wgmma). Barriers and pairs are in sm90.cl.
 *
 * Blocks: a block of R rows lies in local memory as DP / 64 halves of R rows of 64 columns, 128-byte swizzled, written by
 * copies over rank-4 tensor maps (D, rows, heads, batch). Rows past the end and columns past D arrive as 0, so nothing of
 * another sequence is ever read, whatever it holds.
 * Pipelines: a ring of blocks has two barriers for each stage, full and free. Copies complete `full`; every consuming
 * warpgroup arrives at `free`. The producer waits for `free` with the opposite parity, so that its first round passes.
 * Tiles: handed out by the counter next[0]; the last group to leave sets both counters back to 0 for the next launch.
 * Fragments: item l of warp w in a warpgroup holds, of a 64 x N product, rows 16w + l/4 and 8 below, columns 8j + 2(l%4) and
 * the next: c[4j], c[4j+1] of the upper row, c[4j+2], c[4j+3] of the lower. Packed in pairs, it is the A operand of a product.
 *
 * Design: the pipelines of CUTLASS (PipelineTmaAsync) and FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608).
 * Defines: D head size (multiple of 8, up to 256), CAUSAL, WINDOW (keys that a query sees at most, 0 for all), DROPOUT, DTYPE (1 f16, 2 bf16).
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
/* A call would put the registers of products in flight into memory. */
#define INLINE static inline __attribute__((always_inline))
#define HALVES (DP / 64)
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
/* Rows of the statistics of a head: of whole blocks. */
#define PADDED(t) (((t) + 255) / 256 * 256)
#define BARRIER_BYTES 512
#define SLOT_BYTES 448 /* of these, the last 64 for tiles */

#define NAME4_(a, b, c, d) a##b##c##d
#define NAME4(a, b, c, d) NAME4_(a, b, c, d)
/* c = a bᵀ over D: a of ra rows and b of n rows in local memory. */
#define PRODUCT_D(c, n, a, ra, b) NAME4(SS_N, n, _K, D_STEPS)(c, BY_ROWS | (ulong)(a), BY_ROWS | (ulong)(b), (ra) * 8, (n) * 8)
/* c (+)= p x: p packed, x of 16 * steps rows of D. */
#define PRODUCT_ROWS(c, steps, p, x, keep)                                                                             \
  NAME4(RS_N, DP, _K, steps)(c, p, BY_COLUMNS((steps) * 16) | (ulong)(x), keep)
/* Descriptors, in units of 16 bytes: swizzle 128, 1024 bytes between groups of 8 rows; halves `rows` * 128 bytes apart. */
#define BY_ROWS (((ulong)1 << 62) | ((ulong)(1024 >> 4) << 32) | ((ulong)1 << 16))
#define BY_COLUMNS(rows) (((ulong)1 << 62) | ((ulong)(1024 >> 4) << 32) | ((ulong)((rows) * 8) << 16))

#define WAIT_PRODUCTS(n) asm volatile("//@wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define GIVE_REGISTERS(n) asm volatile("//@setmaxnreg.dec.sync.aligned.u32 " TEXT(n) ";")
#define TAKE_REGISTERS(n) asm volatile("//@setmaxnreg.inc.sync.aligned.u32 " TEXT(n) ";")

INLINE void mbar_arrive_if(uint bar, int yes) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(bar),
               "r"(yes) : "memory");
}
/* A consumer warp's arrival, where `free` waits for every warp: none is late by a phase when the stage is filled again. */
INLINE void release(uint free) { mbar_arrive_if(free, (get_local_id(0) & 31) == 0); }
/* A stage of rings with `full` and `free` barriers: full arrives once with its bytes, free once a consumer. */
INLINE void ring_init(uint full, uint free, int stages, int consumers) {
  for (int s = 0; s < stages; ++s) {
    mbar_init(full + s * 8, 1);
    mbar_init(free + s * 8, consumers);
  }
}
#define NEXT_STAGE(s, parity, stages)                                                                                  \
  if (++s == (stages)) {                                                                                               \
    s = 0;                                                                                                             \
    parity ^= 1;                                                                                                       \
  }
/* Rows `row`.. of a head into local memory, all halves; the map's box says how many rows. */
INLINE void copy_rows(uint to, int rows, ulong map, int row, int head, int batch, uint bar) {
#pragma unroll
  for (int half_ = 0; half_ < HALVES; ++half_)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
                 "[%6];" ::"r"(to + half_ * rows * 128), "l"(map), "r"(half_ * 64), "r"(row), "r"(head), "r"(batch), "r"(bar)
                 : "memory");
}
INLINE void copy_floats(uint to, __global const float *from, int count, uint bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(count * 4), "r"(bar) : "memory");
}
INLINE int take(__global int *counter) {
  int r;
  asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(r) : "l"(counter) : "memory");
  return r;
}
INLINE void leave(__global int *next) {
  if (take(next + 1) == (int)get_num_groups(0) - 1) {
    next[0] = 0;
    next[1] = 0;
  }
}
/* Tile t: its head among all (batch, head), and its block, all heads of a set before the next block. Sets of `together` heads
 * keep what they share in the L2 cache. */
INLINE int2 tile_of(int t, int blocks, int together, int all_heads) {
  const int set = t / (together * blocks), r = t - set * together * blocks, width = min(together, all_heads - set * together);
  return (int2)(set * together + r % width, r / width);
}

INLINE float swap_f(float v, int lanes) { return as_float(swap_u(as_uint(v), lanes)); }
INLINE float max_f(float a, float b) {
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
INLINE float power2(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
INLINE float over1(float a) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
INLINE float2 local_pair(uint at) {
  float2 r;
  float x, y;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at));
  r.x = x;
  r.y = y;
  return r;
}
/* Stores as one predicated instruction: a branch around them would cut the unrolled code. */
INLINE void store4_if(__global T *to, int yes, uint a, uint b, uint c, uint d) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.v4.b32 [%0], {%2, %3, %4, %5};\n\t}" ::"l"(to),
               "r"(yes), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
INLINE void store_if(__global float *to, int yes, float a) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.f32 [%0], %2;\n\t}" ::"l"(to), "r"(yes), "f"(a)
               : "memory");
}
/* w[i]: this item's pair of chunk i of four chunks of 8 columns, over which the four items of a row lie side by side. Back comes the
 * whole chunk `q`, its 16 bytes in order. */
INLINE uint4 whole_chunk(const uint *w, int q) {
  const uint a = swap_u(q & 1 ? w[0] : w[1], 1), b = swap_u(q & 1 ? w[2] : w[3], 1);
  const uint x0 = q & 1 ? a : w[0], x1 = q & 1 ? w[1] : a, x2 = q & 1 ? b : w[2], x3 = q & 1 ? w[3] : b;
  const uint e = swap_u(q & 2 ? x0 : x2, 2), f = swap_u(q & 2 ? x1 : x3, 2);
  uint4 r;
  r.x = q & 2 ? e : x0;
  r.y = q & 2 ? f : x1;
  r.z = q & 2 ? x2 : e;
  r.w = q & 2 ? x3 : f;
  return r;
}
/* A 64 x DP product to memory: row `to` times by0 where ok0, the row 8 below times by8 where ok8. The four items of a row
 * exchange pairs so that each stores 16 bytes. */
INLINE void store_rows(const float *c, __global T *to, ulong stride, int ok0, int ok8, float by0, float by8, int q) {
#pragma unroll
  for (int j = 0; j < DP / 8; j += 4)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const float by = low ? by8 : by0;
      uint w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack(c[(j + i) * 4 + low * 2] * by, c[(j + i) * 4 + low * 2 + 1] * by);
      const uint4 x = whole_chunk(w, q);
      store4_if(to + low * 8 * stride + (j + q) * 8, (low ? ok8 : ok0) && (j + q) * 8 < D, x.x, x.y, x.z, x.w);
    }
}

#if DROPOUT
#define DROP_ARGS COUNTER_ARG, ulong seed, ulong site, uint drop, float keep
#define DROP_START const ulong offset = STREAM_START(site);
/* Four bits that say which of the four words of draw n are kept. */
INLINE uint kept_words(ulong n, ulong seed, ulong offset, uint drop) {
  uint c[4];
  philox_counter(c, offset, n);
  philox(c, (uint2)((uint)seed, (uint)(seed >> 32)));
  return (c[0] >= drop ? 1u : 0u) | (c[1] >= drop ? 2u : 0u) | (c[2] >= drop ? 4u : 0u) | (c[3] >= drop ? 8u : 0u);
}
/* Bit i % 32 of bits[i / 32] says whether element c[i] of a fragment of 64 queries x n keys is kept; n0 is the draw of the
 * item's upper row and the block's first key, `below` the draws to the row 8 below. Even items draw for the upper row, odd
 * ones for the lower, four keys each, and swap. */
INLINE void kept_by_rows(uint *bits, int n, ulong n0, ulong below, int q, ulong seed, ulong offset, uint drop) {
  n0 += (q & 1 ? below : 0) + (q >> 1);
#pragma unroll
  for (int w = 0; w < n / 64; ++w) {
    uint own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own |= kept_words(n0 + (w * 8 + j) * 2, seed, offset, drop) << 4 * j;
    const uint other = swap_u(own, 1), up = q & 1 ? other : own, low = q & 1 ? own : other;
    bits[w] = (up >> 2 * (q & 1) & 0x33333333u) | (low >> 2 * (q & 1) & 0x33333333u) << 2;
  }
}
/* The same for a fragment of 64 keys x n queries; n0 is the draw of the block's first query + 2 * (item % 4) and of the item's
 * upper key / 4, `next` the draws from query to query. Of four items on four keys, item r draws for query r & 1 and the upper
 * or lower four keys. */
INLINE void kept_by_columns(uint *bits, int n, ulong n0, ulong next, int g, ulong seed, ulong offset, uint drop) {
  const int r = g & 3;
  n0 += (r & 1) * next + (r >> 1) * 2;
#pragma unroll
  for (int w = 0; w < n / 64; ++w) {
    uint own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own |= kept_words(n0 + (w * 8 + j) * 8 * next, seed, offset, drop) << 4 * j;
    const uint a = swap_u(own, 4), b = swap_u(own, 8), c = swap_u(own, 12);
    const uint u0 = r == 0 ? own : r == 1 ? a : r == 2 ? b : c, u1 = r == 1 ? own : r == 0 ? a : r == 3 ? b : c;
    const uint u2 = r == 2 ? own : r == 3 ? a : r == 0 ? b : c, u3 = r == 3 ? own : r == 2 ? a : r == 1 ? b : c;
    const uint every4 = 0x11111111u;
    bits[w] = (u0 >> r & every4) | (u1 >> r & every4) << 1 | (u2 >> r & every4) << 2 | (u3 >> r & every4) << 3;
  }
}
#define KEPT(bits, i) ((bits)[(i) / 32] >> ((i) & 31) & 1)
#else
#define DROP_ARGS
#define DROP_START
#endif
