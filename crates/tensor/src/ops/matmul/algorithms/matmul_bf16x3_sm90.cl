/* Matrix product in f32 on NVIDIA's sm_90 tensor cores with f32's accuracy, by bf16x3 emulation (include/bf16x3.cl): C = alpha A B + (bias | 0)
 * + (C | 0).
 *
 * For each BK steps, the tensor cores start a new sum from zero, and f32 units add it to the result's registers. A NaN stays a NaN. An infinity
 * may become a NaN, because it may be multiplied by a part of the other factor that is zero. Parts below 1e-38, which are those of numbers below
 * 1e-33, are treated as zeros.
 *
 * bf16x3_planes splits both operands and stores them in the order in which the products read them: blocks of SIDE rows and BK steps, three
 * planes each. Rows and steps outside are zeros. Blocks of a row are consecutive along k.
 *
 * matmul_bf16x3: one group per multiprocessor processes the tiles of C, SIDE by SIDE. One item of its first warpgroup, the producer, copies the
 * blocks of a step of A and B into a ring of STAGES local buffers (include/sm90.cl). Two consumer warpgroups multiply from there, 64 rows each.
 * Two sets of registers alternate: one is filled while the other is added.
 *
 *   local memory    (A | B) 0 | (A | B) 1 | ... STAGES | barriers
 *   producer        block 0 -> block 1 -> block 2 -> ...
 *   consumer  products   even = block 0 | odd = block 1 | even = block 2 | ...
 *             f32 units                   sum += even     sum += odd
 *
 *   barrier        id     items   arrives                                   waits
 *   filled         -      bytes   the producer's copies                     consumers, before products
 *   empty          -      2       consumers, once products have read it     the producer, before the next copies
 *   LAST_OF + c    2, 3   128     the items of consumer c: its part is in memory; then, which part was the last
 *
 * Sums: sum[4j + {0, 1}] of lane l of warp w in a consumer is in row 16 w + l / 4, columns 8j + 2 (l % 4) + {0, 1}; {2, 3} is eight rows below.
 *
 * One group sums each of the first `full` tiles. For the `tail` tiles, `splits` items of work each sum a part of k into `part`. With flag 4, the
 * last warpgroup to finish among those with the same 64 rows adds all their parts in order, including its own; otherwise matmul_tile_sum does.
 *
 * Design: CUTLASS's persistent warp-specialized kernels for Hopper; split-K with a workspace.
 * Ceiling: a sixth of the bf16 peak, 165 TFLOP/s on an H200; f32 units have 60 there. Reached: 126 in a GPT-2 step; 113 including the split into
 * planes at 4096 x 4096 x 4096, where f32 units reach 45; bf16x3_planes 3.3 TB/s.
 *
 * bf16x3_planes
 * a b       float: A (m, k) and B transposed (n, k), at a_off and b_off, elements rs apart along rows and cs along k.
 * a_planes, b_planes  bf16 (rows / SIDE, steps, 3, BK / 8, SIDE, 8), rounded up.
 * halves    m / 64, rounded up to whole blocks. fours: bits of A and B, set where four steps along k can be read at once.
 * Groups    (steps, halves + those of B) of 256 items: 64 rows and BK steps each.
 *
 * matmul_bf16x3
 * a b       planes of A (M, K) and of B transposed (N, K).
 * bias c    float (N), (M, N); flags 1: adds to C, 2: adds the bias, 4: see above.
 * part      float (splits, tail, SIDE, SIDE).
 * tickets   int, with flag 4: two per tile of the tail, 0 before and after.
 * m n       sizes; steps, blocks of BK steps, even.
 * Groups    the number of multiprocessors, or of items of work if that is smaller; 384 items each.
 *
 * Defines: DTYPE 2; PAIRS 1 if n and C's start are even, so that two adjacent elements can be stored at once.
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
#define LAST_OF 2
#ifndef PAIRS
#define PAIRS 1
#endif

/* Splits 64 rows, block number `piece`, and BK steps of x into planes. */
INLINE void cut_rows(__global const float *x, __global uint4 *planes, long off, int rows, int k, long row_stride, long k_stride,
                            int four, int piece) {
  const int item = get_local_id(0), along_k = k_stride == 1;
  /* Adjacent items read adjacent elements, and write 16 bytes in each of eight or more rows. */
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
    UNROLL for (int i = 0; i < 8; i++) part[i] = upper_part_or_nan(v[i]), v[i] = isfinite(v[i]) ? v[i] - part[i] : 0.0f;
    to[p * (PLANE / 16)] = eight_parts(part);
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

/* Stores 8 bytes if `inside`, without a branch, which would diverge the warp. */
INLINE void store8(__global float *to, int inside, float2 v) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(v.x), "f"(v.y) : "memory");
}
INLINE float2 load8(__global const float *from, int inside) {
  float x, y;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %3, 0;\n\tmov.f32 %0, 0f00000000;\n\tmov.f32 %1, 0f00000000;\n\t"
               "@p ld.global.v2.f32 {%0, %1}, [%2];\n\t}" : "=f"(x), "=f"(y) : "l"(from), "r"(inside));
  return (float2)(x, y);
}

/* Loads what another multiprocessor wrote, from the shared L2 cache. */
INLINE void part_load(float *v, __global const float *from) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(from) : "memory");
}

/* Adds at this point in the program: the assembler may not move it past the instructions that fill `v`. */
INLINE void add_now(float *sum, float v) { asm volatile("add.f32 %0, %0, %1;" : "+f"(*sum) : "f"(v)); }

/* Arguments of a product. */
typedef struct {
  __global const float *bias;
  __global float *c, *part;
  __global int *tickets;
  int m, n, steps, full, tail, splits, flags;
  float alpha;
} Product;
/* Item of work w: its tile in the order of matmul_tile, and its part of k in blocks (an even number). */
typedef struct {
  int row, column, slot, first, count;
} Work;
INLINE Work work_of(int w, const Product *p) {
  Work r;
  const int whole = w < p->full, split = whole ? 0 : (w - p->full) / p->tail, tile = whole ? w : p->full + (w - p->full) % p->tail;
  const int rows = (p->m + SIDE - 1) / SIDE, columns = (p->n + SIDE - 1) / SIDE;
  const int band = tile / (BAND * columns), within = tile % (BAND * columns), high = min(rows - band * BAND, BAND);
  r.row = band * BAND + within % high;
  r.column = within / high;
  r.slot = whole ? -1 : w - p->full;
  r.first = whole ? 0 : (int)((long)split * (p->steps / 2) / p->splits) * 2;
  r.count = whole ? p->steps : (int)((long)(split + 1) * (p->steps / 2) / p->splits) * 2 - r.first;
  return r;
}

typedef struct {
  uint ring, filled, empty; /* first stage, first barriers */
  __local int *is_last;     /* of each consumer */
} Place;

INLINE void produce(const Place *at, const Product *p, int works, __global const uchar *a, __global const uchar *b) {
  const int groups = get_num_groups(0);
  uint stage = 0, phase = 1;
  for (int w = get_group_id(0); w < works; w += groups) {
    const Work work = work_of(w, p);
    __global const uchar *from_a = a + ((long)work.row * p->steps + work.first) * BLOCK;
    __global const uchar *from_b = b + ((long)work.column * p->steps + work.first) * BLOCK;
    for (int kb = 0; kb < work.count; kb++, from_a += BLOCK, from_b += BLOCK) {
      const uint to = at->ring + stage * (2 * BLOCK), bar = at->filled + stage * 8;
      mbar_wait(at->empty + stage * 8, phase);
      mbar_expect(bar, 2 * BLOCK);
      copy_bytes(to, from_a, BLOCK, bar);
      copy_bytes(to + BLOCK, from_b, BLOCK, bar);
      NEXT_STAGE(stage, phase, STAGES)
    }
  }
}

/* Planes of A and B in product p, as parts of A and B: 3 1, 1 3, 2 2, 2 1, 1 2, 1 1. */
#define OF_A(p) (0x001102 >> (p) * 4 & 15)
#define OF_B(p) (0x010120 >> (p) * 4 & 15)
/* Issues c = A B of the blocks at a0 and b0, in units of 16 bytes, and commits it without waiting. */
INLINE void multiply(float *c, uint a0, uint b0) {
  const ulong cores = CORES(128, SIDE * 16);
  asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory");
  UNROLL for (int p = 0; p < 6; p++)
    UNROLL for (int s = 0; s < BK / 16; s++)
      WGMMA_N128(c, cores | (ulong)(a0 + (OF_A(p) * PLANE >> 4) + s * 2 * SIDE),
                 cores | (ulong)(b0 + (OF_B(p) * PLANE >> 4) + s * 2 * SIDE), p + s > 0);
  asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");
}
INLINE void add_block(float *sum, const float *c) {
  UNROLL for (int i = 0; i < 64; i++) add_now(&sum[i], c[i]);
}

/* Stores an item's part at its place in `part`. Returns whether this consumer's sums are now complete; `sum` then holds the sum of all parts. */
INLINE int add_parts(float *sum, float *scratch, const Place *at, const Product *p, const Work *work, int mine, int in_tile, int column0) {
  const int first = (get_local_id(0) & 127) == 0, tile = work->slot % p->tail;
  __global float *to = p->part + ((long)work->slot * SIDE + in_tile) * SIDE + column0;
  UNROLL for (int j = 0; j < 16; j++) {
    store8(to + j * 8, 1, (float2)(sum[j * 4], sum[j * 4 + 1]));
    store8(to + 8 * SIDE + j * 8, 1, (float2)(sum[j * 4 + 2], sum[j * 4 + 3]));
  }
  if (!(p->flags & LAST)) return 0;
  bar_sync(LAST_OF + mine, 128);
  if (first) {
    __global int *turn = p->tickets + tile * 2 + mine;
    at->is_last[mine] = turn_taken(turn) == p->splits - 1;
    if (at->is_last[mine]) *turn = 0;
  }
  bar_sync(LAST_OF + mine, 128);
  if (!at->is_last[mine]) return 0;
  UNROLL for (int i = 0; i < 64; i++) sum[i] = 0.0f;
  __global const float *from = p->part + ((long)tile * SIDE + in_tile) * SIDE + column0;
  for (int s = 0; s < p->splits; s++, from += (long)p->tail * (SIDE * SIDE)) {
    UNROLL for (int j = 0; j < 16; j++) {
      part_load(scratch + j * 4, from + j * 8);
      part_load(scratch + j * 4 + 2, from + 8 * SIDE + j * 8);
    }
    UNROLL for (int i = 0; i < 64; i++) sum[i] += scratch[i];
  }
  return 1;
}

/* Stores sums to C, with scale, bias and the present contents of C. */
INLINE void store_tile(const float *sum, const Product *p, const Work *work, int in_tile, int column0) {
  const int row = work->row * SIDE + in_tile;
  UNROLL for (int j = 0; j < 16; j++) {
    const int column = work->column * SIDE + column0 + j * 8;
    float2 shift = (float2)(0.0f);
    if (p->flags & BIAS && column < p->n) shift = (float2)(p->bias[column], column + 1 < p->n ? p->bias[column + 1] : 0.0f);
    UNROLL for (int below = 0; below < 2; below++) {
      const int at = row + below * 8, inside = at < p->m && column < p->n;
      __global float *to = p->c + (long)at * p->n + column;
      float2 y = (float2)(sum[j * 4 + below * 2], sum[j * 4 + below * 2 + 1]) * p->alpha + shift;
#if PAIRS
      if (p->flags & ADD_C) y += load8(to, inside);
      store8(to, inside, y);
#else
      if (inside) to[0] = p->flags & ADD_C ? y.x + to[0] : y.x;
      if (inside && column + 1 < p->n) to[1] = p->flags & ADD_C ? y.y + to[1] : y.y;
#endif
    }
  }
}

/* Processes the items of work of consumer `mine`. */
INLINE void consume(const Place *at, const Product *p, int works, int mine) {
  const int item = get_local_id(0), lane = item & 31, warp = item >> 5 & 3, first = (item & 127) == 0, groups = get_num_groups(0);
  const int in_tile = mine * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  uint stage = 0, phase = 0;
  for (int w = get_group_id(0); w < works; w += groups) {
    const Work work = work_of(w, p);
    float sum[64], even[64], odd[64];
    UNROLL for (int i = 0; i < 64; i++) sum[i] = 0.0f;
    uint block, even_read, odd_read;
    for (int kb = 0; kb < work.count; kb += 2) {
      mbar_wait(at->filled + stage * 8, phase);
      block = at->ring + stage * (2 * BLOCK);
      multiply(even, (block + mine * 1024) >> 4, (block + BLOCK) >> 4);
      even_read = at->empty + stage * 8;
      NEXT_STAGE(stage, phase, STAGES)
      mbar_wait(at->filled + stage * 8, phase);
      block = at->ring + stage * (2 * BLOCK);
      multiply(odd, (block + mine * 1024) >> 4, (block + BLOCK) >> 4);
      odd_read = at->empty + stage * 8;
      NEXT_STAGE(stage, phase, STAGES)
      WAIT_PRODUCTS(1);
      mbar_arrive_if(even_read, first);
      add_block(sum, even);
      WAIT_PRODUCTS(0);
      mbar_arrive_if(odd_read, first);
      add_block(sum, odd);
    }
    if (work.slot >= 0 && !add_parts(sum, even, at, p, &work, mine, in_tile, column0)) continue;
    store_tile(sum, p, &work, in_tile, column0);
  }
}

__attribute__((reqd_work_group_size(384, 1, 1)))
__kernel void matmul_bf16x3(__global const uchar *a, __global const uchar *b, __global const float *bias, __global float *c,
                           __global float *part, __global int *tickets, const int m, const int n, const int steps, const int full, const int tail,
                           const int splits, const float alpha, const int flags) {
  __local uchar local_[STAGES * 2 * BLOCK + 256] __attribute__((aligned(1024)));
  __local int is_last[2];
  const int item = get_local_id(0), works = full + tail * splits;
  Place at;
  at.ring = (uint)(size_t)local_;
  at.filled = at.ring + STAGES * 2 * BLOCK;
  at.empty = at.filled + STAGES * 8;
  at.is_last = is_last;
  Product p;
  p.bias = bias, p.c = c, p.part = part, p.tickets = tickets, p.alpha = alpha, p.flags = flags;
  p.m = m, p.n = n, p.steps = steps, p.full = full, p.tail = tail, p.splits = splits;
  if (item == 0) {
    ring_init(at.filled, at.empty, STAGES, 2);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(24);
    if (item == 0) produce(&at, &p, works, a, b);
  } else {
    TAKE_REGISTERS(240);
    consume(&at, &p, works, item / 128 - 1);
  }
}
