/* Matrix product in f32 on the tensor cores of NVIDIA's sm_90, with f32's own accuracy: C = alpha A B + (bias | 0) + (C | 0).
 *
 * An f32 has 24 significant bits, a bf16 eight: x = x1 + x2 + x3 exactly, cut off one after the other. The tensor cores multiply
 * bf16 exactly and add in f32, so of the nine products of parts the six largest make up a b to within 2^-22 at worst, 2^-25 on
 * average (x2 y3, x3 y2 and x3 y3 are left out). Sums on tensor cores are cut off where f32 units round. So each BK steps of
 * the sum start from zero there, smallest products first, and are added to the result's registers by f32 units: the error is below
 * that of a product by f32 units alone, and six products of bf16 take less than half of one product's time there.
 * Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
 * ARITH 2019; Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
 * performance", IJHPCA 2022 (sums outside).
 * A NaN stays one. An infinity may become a NaN, as a part of the other factor that is zero meets it. Parts below 1e-38, those of
 * numbers below 1e-33, count as zeros.
 *
 * bf16x3_planes cuts both operands up and lays them out as the products read them: blocks of SIDE rows and BK steps, three planes each, and in
 * a plane eight steps of all rows after the other, 16 bytes a row: eight rows are one of the hardware's core matrices. Rows and steps
 * outside are zeros. Blocks of a row follow each other along k.
 *
 * matmul_bf16x3: one group a multiprocessor walks the tiles of C, SIDE by SIDE. One item of its first warpgroup copies the blocks of
 * a step of A and B into a ring of STAGES local buffers; the other two warpgroups multiply from there, 64 rows each. Two sets of
 * registers alternate: while one is filled the other is added. The first `full` tiles are summed by a group each; of the
 * `tail`, `splits` items of work sum a part of k each into `part`. With flag 4 the warpgroup that finds that all others of its 64 rows
 * are done adds those up, its own too, in their order; else matmul_tile_sum does.
 *
 * Ceiling: a sixth of the bf16 peak, 165 TFLOP/s on an H200; f32 units have 60 there. Reached: 126 in a GPT-2 step, with the cuts 113 at
 * 4096 x 4096 x 4096, where f32 units make 45; bf16x3_planes 3.3 TB/s.
 *
 * bf16x3_planes
 * a b       float: A (m, k) and B transposed (n, k), at a_off and b_off, elements rs apart along rows and cs along k.
 * a_planes, b_planes  bf16 (rows / SIDE, steps, 3, BK / 8, SIDE, 8), rounded up.
 * halves    m / 64, rounded up to whole blocks. fours: bits of A and B, set where four steps along k can be read at once.
 * Groups    (steps, halves + those of B) of 256 items: 64 rows and BK steps each.
 *
 * matmul_bf16x3
 * a b       planes of A (M, K) and of B transposed (N, K).
 * bias c    float (N), (M, N); flags 1: C is added to, 2: bias is, 4: above.
 * part      float (splits, tail, SIDE, SIDE).
 * tickets     int, with flag 4: two for each tile of the tail, 0 before and after.
 * m n       sizes; steps, blocks of BK steps, even.
 * Groups    as many as there are multiprocessors, or items of work if fewer, of 384 items.
 *
 * Defines: DTYPE 2; PAIRS 1 where n and C's start are even, so that two neighbours are stored at once.
 */
#define UNROLL _Pragma("unroll")
#define SIDE 128
#define BK 32
#define STAGES 4
#define PLANE (SIDE * BK * 2)
#define BLOCK (3 * PLANE)
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 0, 0"
#define BAND 8
#define ADD_C 1
#define BIAS 2
#define LAST 4
#ifndef PAIRS
#define PAIRS 1
#endif

/* The upper halves of two f32, as they lie in memory. */
static inline uint upper(float low, float high) { return as_uint(low) >> 16 | as_uint(high) & 0xffff0000u; }
/* What bf16 leaves of x when the rest is cut off; a NaN whose bits all lie in the rest stays one. */
static inline float cut(float x) { return as_float((isnan(x) ? as_uint(x) | 0x400000u : as_uint(x)) & 0xffff0000u); }

/* 64 rows, number `piece`, and BK steps of x. */
static inline void cut_rows(__global const float *x, __global uint4 *planes, long off, int rows, int k, long row_stride, long k_stride,
                            int four, int piece) {
  const int item = get_local_id(0), along_k = k_stride == 1;
  /* Neighbours read neighbours, and write eight rows or more of 16 bytes. */
  const int in_row = along_k ? item / 4 : item % 64, eight = along_k ? item % 4 : item / 64;
  const int row = piece * 64 + in_row, step = get_group_id(0) * BK + eight * 8;
  const long at = off + row * row_stride + step * k_stride;
  float v[8];
  if (four && row < rows && step + 8 <= k) {
    const float4 low = *(__global const float4 *)(x + at), high = *(__global const float4 *)(x + at + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    UNROLL for (int i = 0; i < 8; i++) v[i] = row < rows && step + i < k ? x[at + i * k_stride] : 0.0f;
  }
  __global uint4 *to = planes + ((long)(row / SIDE) * get_num_groups(0) + get_group_id(0)) * (BLOCK / 16) + eight * SIDE + row % SIDE;
  UNROLL for (int p = 0; p < 3; p++) {
    float part[8];
    UNROLL for (int i = 0; i < 8; i++) part[i] = cut(v[i]), v[i] = isfinite(v[i]) ? v[i] - part[i] : 0.0f;
    to[p * (PLANE / 16)] = (uint4)(upper(part[0], part[1]), upper(part[2], part[3]), upper(part[4], part[5]), upper(part[6], part[7]));
  }
}

__attribute__((reqd_work_group_size(256, 1, 1)))
__kernel void bf16x3_planes(__global const float *a, __global const float *b, __global uint4 *a_planes, __global uint4 *b_planes,
                           const long a_off, const long b_off, const int m, const int n, const int k, const int halves, const long a_rs,
                           const long a_cs, const long b_rs, const long b_cs, const int fours) {
  const int piece = get_group_id(1);
  if (piece < halves) cut_rows(a, a_planes, a_off, m, k, a_rs, a_cs, fours & 1, piece);
  else cut_rows(b, b_planes, b_off, n, k, b_rs, b_cs, fours & 2, piece - halves);
}

/* Copies `bytes` that lie together to local memory; `bar` counts them. */
static inline void fetch(uint to, __global const uchar *from, uint bytes, uint bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
/* 8 bytes where `inside`, without a branch, which would part the warp. */
static inline void store8(__global float *to, int inside, float2 v) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(v.x), "f"(v.y) : "memory");
}
static inline float2 load8(__global const float *from, int inside) {
  float x, y;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %3, 0;\n\tmov.f32 %0, 0f00000000;\n\tmov.f32 %1, 0f00000000;\n\t"
               "@p ld.global.v2.f32 {%0, %1}, [%2];\n\t}" : "=f"(x), "=f"(y) : "l"(from), "r"(inside));
  return (float2)(x, y);
}

/* What another multiprocessor wrote: from the cache that all share. */
static inline void part_load(float *v, __global const float *from) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(from) : "memory");
}

/* Without a branch. */
static inline void mbar_arrive_if(uint bar, int yes) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(bar), "r"(yes) : "memory");
}

/* A sum that stays where it is written, between what fills `v` and what fills it again. */
static inline void add_now(float *sum, float v) { asm volatile("add.f32 %0, %0, %1;" : "+f"(*sum) : "f"(v)); }

/* Item of work w: its tile in the order of matmul_tile, its part of k in pairs of blocks. */
typedef struct {
  int row, column, slot, first, count;
} Work;
static inline Work work_of(int w, int m, int n, int steps, int full, int tail, int splits) {
  Work r;
  const int whole = w < full, split = whole ? 0 : (w - full) / tail, tile = whole ? w : full + (w - full) % tail;
  const int rows = (m + SIDE - 1) / SIDE, columns = (n + SIDE - 1) / SIDE;
  const int band = tile / (BAND * columns), within = tile % (BAND * columns), high = min(rows - band * BAND, BAND);
  r.row = band * BAND + within % high;
  r.column = within / high;
  r.slot = whole ? -1 : w - full;
  r.first = whole ? 0 : (int)((long)split * (steps / 2) / splits) * 2;
  r.count = whole ? steps : (int)((long)(split + 1) * (steps / 2) / splits) * 2 - r.first;
  return r;
}

/* Plane of A, and of B, of product p: 3 1, 1 3, 2 2, 2 1, 1 2, 1 1. */
#define OF_A(p) (0x001102 >> (p) * 4 & 15)
#define OF_B(p) (0x010120 >> (p) * 4 & 15)
/* Descriptors: no swizzle, core matrices 128 bytes apart along rows and SIDE of them along k; addresses in 16 bytes. */
#define CORES ((ulong)(128 >> 4) << 32 | (ulong)(SIDE * 16 >> 4) << 16)
#define BEGIN(set)                                                                                                             \
  {                                                                                                                            \
    mbar_wait(filled + stage * 8, phase);                                                                                      \
    const uint a0 = (base + stage * (2 * BLOCK) + mine * 1024) >> 4, b0 = (base + stage * (2 * BLOCK) + BLOCK) >> 4;           \
    asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory");                                                                 \
    UNROLL for (int p = 0; p < 6; p++)                                                                                         \
      UNROLL for (int s = 0; s < BK / 16; s++)                                                                                 \
        WGMMA_N128(set, CORES | (ulong)(a0 + (OF_A(p) * PLANE >> 4) + s * 2 * SIDE),                                           \
                   CORES | (ulong)(b0 + (OF_B(p) * PLANE >> 4) + s * 2 * SIDE), p + s > 0);                                    \
    asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");                                                          \
    before = last, last = empty + stage * 8;                                                                                   \
    if (++stage == STAGES) stage = 0, phase ^= 1;                                                                              \
  }
/* All but `left` groups of products are done: their buffer may be filled again, their sums are added. */
#define COLLECT(set, left, buffer)                                                                                             \
  asm volatile("//@wgmma.wait_group.sync.aligned " left ";" ::: "memory");                                                     \
  mbar_arrive_if(buffer, first);                                                                                               \
  UNROLL for (int i = 0; i < 64; i++) add_now(&sum[i], set[i]);

__attribute__((reqd_work_group_size(384, 1, 1)))
__kernel void matmul_bf16x3(__global const uchar *a, __global const uchar *b, __global const float *bias, __global float *c,
                           __global float *part, __global int *tickets, const int m, const int n, const int steps, const int full, const int tail,
                           const int splits, const float alpha, const int flags) {
  __local uchar ring[STAGES * 2 * BLOCK + 256] __attribute__((aligned(1024)));
  const uint base = (uint)(size_t)ring, filled = base + STAGES * 2 * BLOCK, empty = filled + STAGES * 8;
  const int item = get_local_id(0), group = get_group_id(0), groups = get_num_groups(0);
  const int works = full + tail * splits;
  __local int is_last[2];
  if (item == 0) {
    for (int s = 0; s < STAGES; s++) mbar_init(filled + s * 8, 1), mbar_init(empty + s * 8, 2);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  uint stage = 0, phase = 0;
  if (item < 128) {
    asm volatile("//@setmaxnreg.dec.sync.aligned.u32 24;");
    if (item == 0) {
      phase = 1;
      for (int w = group; w < works; w += groups) {
        const Work work = work_of(w, m, n, steps, full, tail, splits);
        __global const uchar *from_a = a + ((long)work.row * steps + work.first) * BLOCK;
        __global const uchar *from_b = b + ((long)work.column * steps + work.first) * BLOCK;
        for (int kb = 0; kb < work.count; kb++, from_a += BLOCK, from_b += BLOCK) {
          const uint to = base + stage * (2 * BLOCK), bar = filled + stage * 8;
          mbar_wait(empty + stage * 8, phase);
          mbar_expect(bar, 2 * BLOCK);
          fetch(to, from_a, BLOCK, bar);
          fetch(to + BLOCK, from_b, BLOCK, bar);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    return;
  }
  asm volatile("//@setmaxnreg.inc.sync.aligned.u32 240;");
  const int mine = item / 128 - 1, lane = item & 31, warp = item >> 5 & 3, first = (item & 127) == 0;
  for (int w = group; w < works; w += groups) {
    const Work work = work_of(w, m, n, steps, full, tail, splits);
    float sum[64], even[64], odd[64];
    UNROLL for (int i = 0; i < 64; i++) sum[i] = 0.0f;
    uint last = 0, before;
    for (int kb = 0; kb < work.count; kb += 2) {
      BEGIN(even)
      BEGIN(odd)
      COLLECT(even, "1", before)
      COLLECT(odd, "0", last)
    }

    /* sum[4j + {0, 1}] lies in row `lane / 4`, columns 8j + 2 (lane % 4) + {0, 1}; {2, 3} eight rows below. */
    const int in_tile = mine * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
    if (work.slot >= 0) {
      __global float *to = part + ((long)work.slot * SIDE + in_tile) * SIDE + column0;
      UNROLL for (int j = 0; j < 16; j++) {
        store8(to + j * 8, 1, (float2)(sum[j * 4], sum[j * 4 + 1]));
        store8(to + 8 * SIDE + j * 8, 1, (float2)(sum[j * 4 + 2], sum[j * 4 + 3]));
      }
      if (!(flags & LAST)) continue;
      const int tile = work.slot % tail;
      bar_sync(2 + mine, 128);
      if (first) {
        __global int *turn = tickets + tile * 2 + mine;
        is_last[mine] = turn_taken(turn) == splits - 1;
        if (is_last[mine]) *turn = 0;
      }
      bar_sync(2 + mine, 128);
      if (!is_last[mine]) continue;
      UNROLL for (int i = 0; i < 64; i++) sum[i] = 0.0f;
      __global const float *from = part + ((long)tile * SIDE + in_tile) * SIDE + column0;
      for (int s = 0; s < splits; s++, from += (long)tail * (SIDE * SIDE)) {
        UNROLL for (int j = 0; j < 16; j++) {
          part_load(even + j * 4, from + j * 8);
          part_load(even + j * 4 + 2, from + 8 * SIDE + j * 8);
        }
        UNROLL for (int i = 0; i < 64; i++) sum[i] += even[i];
      }
    }
    const int row = work.row * SIDE + in_tile;
    UNROLL for (int j = 0; j < 16; j++) {
      const int column = work.column * SIDE + column0 + j * 8;
      float2 shift = (float2)(0.0f);
      if (flags & BIAS && column < n) shift = (float2)(bias[column], column + 1 < n ? bias[column + 1] : 0.0f);
      UNROLL for (int below = 0; below < 2; below++) {
        const int at = row + below * 8, inside = at < m && column < n;
        __global float *to = c + (long)at * n + column;
        float2 y = (float2)(sum[j * 4 + below * 2], sum[j * 4 + below * 2 + 1]) * alpha + shift;
#if PAIRS
        if (flags & ADD_C) y += load8(to, inside);
        store8(to, inside, y);
#else
        if (inside) to[0] = flags & ADD_C ? y.x + to[0] : y.x;
        if (inside && column + 1 < n) to[1] = flags & ADD_C ? y.y + to[1] : y.y;
#endif
      }
    }
  }
}
