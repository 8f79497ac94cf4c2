/* Matrix product for NVIDIA from sm_80 on, through instructions that the driver's compiler supports (mma.sync, ldmatrix, cp.async): C[z] = alpha
 * * A[z] B[z] + (bias | 0) + (C[z] | 0), batch z, sums in f32. f16 and bf16 are used unchanged; f32 is rounded to tf32, which has ten bits of
 * mantissa.
 *
 * A work-group of four warps owns a tile of 128 by 128 of C, a warp 64 by 64. Blocks of 64 bytes along k by 128 rows or columns are copied to a
 * ring of three local buffers, bypassing registers; elements outside of a matrix are read as zeros. Chunks of 16 bytes are permuted within a row
 * (for 16-bit and K-major operands: by ldmatrix's eight rows) to avoid bank conflicts. Fragments of the next step are read while this one is
 * multiplied.
 *
 * Arguments, groups and splits are those of matmul_tile.cl, whose matmul_parts_sum adds the parts. Operands whose lines and batches start at
 * multiples of 16 bytes (A_ALIGNED, B_ALIGNED) are copied so. Others are loaded through registers and shifted. C_ALIGNED: the rows of C are
 * aligned too. f32 is always aligned.
 *
 * Measured in an earlier form on an H200 (bf16): 0.65 of cuBLAS, 410 to 450 TFLOP/s at 4096.
 *
 * Defines: DTYPE; A_ALONG_K, B_ALONG_K: the axis of stride 1 is k; A_ALIGNED, B_ALIGNED, C_ALIGNED.
 *
 * Design: CUTLASS's multistage GEMM for Ampere: cp.async ring, swizzled local memory, ldmatrix, mma.sync.
 * Ceiling: mma.sync on an H200: about 60 % of wgmma. Reached in a GPT-2 step: 230 TFLOP/s.
 */
#define ADD_C 1
#define BIAS 2
#define BAND 8
#define SIDE 128
#define ITEMS 128
#define STAGES 3
#define SIZE (DTYPE == 0 ? 4 : 2)
#define LANES (16 / SIZE)        /* elements of a chunk */
#define BK (4 * LANES)           /* steps of the sum in a block: 64 bytes */
#define CHUNKS (SIDE / LANES)    /* chunks of a row where k is not contiguous */
#define TILE_BYTES (SIDE * 64)
#define STAGE_BYTES (2 * TILE_BYTES)
#define UNROLL _Pragma("unroll")
#if DTYPE == 1
#define PAIR_TYPE "f16x2"
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif DTYPE == 2
#define PAIR_TYPE "bf16x2"
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif

#ifndef A_ALIGNED
#define A_ALIGNED 1
#endif
#ifndef B_ALIGNED
#define B_ALIGNED 1
#endif
#ifndef C_ALIGNED
#define C_ALIGNED 1
#endif

/* Positions of chunk c of line or step r. */
#define ALONG(r, c) ((c) ^ ((r) >> 1 & 3))
#if DTYPE == 0
#define ACROSS(r, c) ((c) ^ ((r) & 3) << 1)
#else
#define ACROSS(r, c) ((c) ^ ((r) & 7))
#endif

/* Copies `bytes` of 16 bytes and fills the rest with zeros. */
static inline void copy16(uint to, __global const T *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/* Loads the same from any address: reads the one or two whole chunks that hold those bytes, and shifts them. A whole chunk is in the same page
 * as the part of it that belongs to the matrix. */
static inline uint4 gather16(__global const T *from, int bytes) {
  const int off = (int)((ulong)from & 15);
  __global const uint4 *chunk = (__global const uint4 *)((ulong)from - off);
  uint4 low = (uint4)(0), high = (uint4)(0);
  if (bytes > 0) low = chunk[0];
  if (off + bytes > 16) high = chunk[1];
  uint w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  UNROLL for (int i = 0; i < 6; ++i) w[i] = off & 8 ? w[i + 2] : w[i];
  UNROLL for (int i = 0; i < 5; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
  UNROLL for (int i = 0; i < 4; ++i) {
    w[i] = off & 2 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    const int left = bytes - 4 * i;
    w[i] = left >= 4 ? w[i] : left >= 2 ? w[i] & 0xffff : 0;
  }
  return (uint4)(w[0], w[1], w[2], w[3]);
}
static inline void keep16(uint to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
/* An operand as a group's items load it to local memory, four chunks of a block each: `from` points to an item's first chunk and advances from
 * block to block. */
typedef struct {
  __global const T *from;
  long line_stride, k_stride;
  int line0, lines; /* the tile's first line, and the operand's number of lines */
  int along_k, aligned;
} Operand;
/* Line and step of an item's first chunk. */
static inline int line_of(int item, int along_k) { return along_k ? item >> 2 : item % CHUNKS * LANES; }
static inline int step_of(int item, int along_k) { return along_k ? (item & 3) * LANES : item / CHUNKS; }
/* Returns the position of an item's chunk i in the tile. */
static inline uint place(uint tile, int item, int i, int along_k) {
  const int row = item / CHUNKS + i * (ITEMS / CHUNKS);
  return tile + (along_k ? ((item >> 2) + i * 32) * 64 + (ALONG(item >> 2, item & 3) << 4)
                         : row * (CHUNKS * 16) + (ACROSS(row, item % CHUNKS) << 4));
}
/* Returns the bytes of that chunk inside the operand, which has `left` more steps. */
static inline int inside(const Operand *x, int item, int i, int left) {
  const int line = x->line0 + (item >> 2) + i * 32, step = item / CHUNKS + i * (ITEMS / CHUNKS);
  const int there = x->along_k ? line < x->lines : step < left;
  const int elements = x->along_k ? left - step_of(item, 1) : x->lines - x->line0 - line_of(item, 0);
  return there ? min(max(elements * SIZE, 0), 16) : 0;
}
/* Starts loading an item's part of the next block to the tile. */
static inline void send(Operand *x, uint tile, int item, int left) {
  const long apart = x->along_k ? 32 * x->line_stride : (ITEMS / CHUNKS) * x->k_stride;
  if (x->aligned) {
    UNROLL for (int i = 0; i < 4; ++i) copy16(place(tile, item, i, x->along_k), x->from + i * apart, inside(x, item, i, left));
  } else {
    uint4 got[4];
    UNROLL for (int i = 0; i < 4; ++i) got[i] = gather16(x->from + i * apart, inside(x, item, i, left));
    UNROLL for (int i = 0; i < 4; ++i) keep16(place(tile, item, i, x->along_k), got[i]);
  }
  x->from += BK * x->k_stride;
}
static inline void send_both(Operand *a, Operand *b, uint stage, int item, int left) {
  send(a, stage, item, left);
  send(b, stage + TILE_BYTES, item, left);
}

static inline void matrices(uint *r, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static inline void matrices_transposed(uint *r, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static inline uint local4(uint at) {
  uint v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
/* Rounds to tf32, to nearest. */
static inline void round4(uint *r) {
#if DTYPE == 0
  UNROLL for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[i]) : "f"(as_float(r[i])));
#endif
}
static inline void multiply(float *c, const uint *a, uint b0, uint b1) {
  asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads fragments of the block at `tile`, step kk of two: A for 16 rows from `row` on, B for 16 columns from `col` on. For A, a work-item loads
 * rows g and g + 8 at k = t and t + 4, in 4-byte words (pairs of 16-bit elements). For B, it loads columns g and g + 8. */
static inline void fragment_a(uint *r, uint tile, int row, int kk, int lane) {
#if A_ALONG_K
  const int line = lane & 15;
  matrices(r, tile + (row + line) * 64 + (ALONG(line, (lane >> 4) + kk * 2) << 4));
#elif DTYPE == 0
  const int g = lane >> 2, t = lane & 3;
  const uint at = tile + (kk * 8 + t) * (SIDE * 4);
  UNROLL for (int i = 0; i < 4; ++i) r[i] = local4(at + (i >> 1) * 4 * (SIDE * 4) + ((row + g + (i & 1) * 8) ^ t << 3) * 4);
#else
  const int step = (lane & 7) + (lane >> 4 << 3);
  matrices_transposed(r, tile + (kk * 16 + step) * (SIDE * 2) + (ACROSS(step, row / 8 + (lane >> 3 & 1)) << 4));
#endif
  round4(r);
}
static inline void fragment_b(uint *r, uint tile, int col, int kk, int lane) {
#if B_ALONG_K
  const int line = (lane & 7) + (lane >> 4 << 3);
  matrices(r, tile + (col + line) * 64 + (ALONG(line, (lane >> 3 & 1) + kk * 2) << 4));
#elif DTYPE == 0
  const int g = lane >> 2, t = lane & 3;
  const uint at = tile + (kk * 8 + t) * (SIDE * 4);
  UNROLL for (int i = 0; i < 4; ++i) r[i] = local4(at + (i & 1) * 4 * (SIDE * 4) + ((col + g + (i >> 1) * 8) ^ t << 3) * 4);
#else
  const int step = lane & 15;
  matrices_transposed(r, tile + (kk * 16 + step) * (SIDE * 2) + (ACROSS(step, col / 8 + (lane >> 4)) << 4));
#endif
  round4(r);
}
/* Loads a warp's fragments, four of each operand, of half `kk` of the block at `at`. */
static inline void fragments(uint (*a)[4], uint (*b)[4], uint at, int row0, int col0, int kk, int lane) {
  UNROLL for (int i = 0; i < 4; ++i) fragment_a(a[i], at, row0 + i * 16, kk, lane);
  UNROLL for (int j = 0; j < 4; ++j) fragment_b(b[j], at + TILE_BYTES, col0 + j * 16, kk, lane);
}

/* Computes two adjacent elements of a row of C. */
static inline float2 finish(__global const T *c, __global const T *bias, int column, float2 v, float alpha, int flags) {
  v *= alpha;
  if (flags & BIAS) v += (float2)(LD(bias, column), LD(bias, column + 1));
  if (flags & ADD_C) v += (float2)(LD(c, 0), LD(c, 1));
  return v;
}
#if DTYPE != 0
static inline uint pack(float2 v) {
  uint r;
  asm("cvt.rn." PAIR_TYPE ".f32 %0, %1, %2;" : "=r"(r) : "f"(v.y), "f"(v.x));
  return r;
}
static inline uint swap_u(uint v, int lanes) {
  uint r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lanes));
  return r;
}
#endif

__attribute__((reqd_work_group_size(ITEMS, 1, 1)))
__kernel void matmul_mma(__global const T *restrict a, __global const T *restrict b, __global const T *restrict bias,
                         __global T *restrict c, __global float *restrict part, long a_off, long b_off, int m, int n,
                         int k, int z1, long a_s0, long a_s1, long b_s0, long b_s1, long a_rs, long a_cs, long b_rs, long b_cs,
                         int k_part, float alpha, int flags) {
  __local uchar ring[STAGES * STAGE_BYTES] __attribute__((aligned(16)));
  const uint base = (uint)(size_t)ring;
  const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
  const int rows = (m + SIDE - 1) / SIDE, columns = (n + SIDE - 1) / SIDE, tile = get_group_id(0);
  const int band = tile / (BAND * columns), within = tile % (BAND * columns), high = min(rows - band * BAND, BAND);
  const int m0 = (band * BAND + within % high) * SIDE, n0 = within / high * SIDE;
  const int row0 = (warp >> 1) * 64, col0 = (warp & 1) * 64;
  const long z = get_group_id(2);
  const int k_start = get_group_id(1) * k_part, k_end = min(k, k_start + k_part);
  a += a_off + z / z1 * a_s0 + z % z1 * a_s1 + (m0 + line_of(item, A_ALONG_K)) * a_rs + (k_start + step_of(item, A_ALONG_K)) * a_cs;
  b += b_off + z / z1 * b_s0 + z % z1 * b_s1 + (n0 + line_of(item, B_ALONG_K)) * b_cs + (k_start + step_of(item, B_ALONG_K)) * b_rs;
  Operand of_a = {a, a_rs, a_cs, m0, m, A_ALONG_K, A_ALIGNED}, of_b = {b, b_cs, b_rs, n0, n, B_ALONG_K, B_ALIGNED};

  float acc[4][8][4];
  UNROLL for (int i = 0; i < 4; ++i) UNROLL for (int j = 0; j < 8; ++j) UNROLL for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;
  UNROLL for (int s = 0; s < STAGES - 1; ++s) {
    const int left = k_end - k_start - s * BK;
    if (left > 0) send_both(&of_a, &of_b, base + s * STAGE_BYTES, item, left);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  uint at = base, into = base + (STAGES - 1) * STAGE_BYTES;
  uint fa[2][4][4], fb[2][4][4];
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
  barrier(CLK_LOCAL_MEM_FENCE);
  fragments(fa[0], fb[0], at, row0, col0, 0, lane);
  for (int k0 = k_start; k0 < k_end; k0 += BK) {
    UNROLL for (int kk = 0; kk < 2; ++kk) {
      if (kk == 1) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        barrier(CLK_LOCAL_MEM_FENCE);
        at = at == base + (STAGES - 1) * STAGE_BYTES ? base : at + STAGE_BYTES;
      }
      fragments(fa[kk ^ 1], fb[kk ^ 1], at, row0, col0, kk ^ 1, lane);
      if (kk == 0) {
        const int left = k_end - k0 - (STAGES - 1) * BK;
        if (left > 0) send_both(&of_a, &of_b, into, item, left);
        asm volatile("cp.async.commit_group;" ::: "memory");
        into = into == base + (STAGES - 1) * STAGE_BYTES ? base : into + STAGE_BYTES;
      }
      UNROLL for (int i = 0; i < 4; ++i)
        UNROLL for (int j = 0; j < 8; ++j) multiply(acc[i][j], fa[kk][i], fb[kk][j / 2][j % 2 * 2], fb[kk][j / 2][j % 2 * 2 + 1]);
    }
  }

  const ulong plane = (ulong)m * n;
  const int whole = get_num_groups(1) == 1, t = lane & 3;
  c += z * plane;
  part += (get_group_id(1) * get_num_groups(2) + z) * plane;
  UNROLL for (int i = 0; i < 4; ++i) UNROLL for (int low = 0; low < 2; ++low) {
    const int row = m0 + row0 + i * 16 + (lane >> 2) + low * 8;
    const ulong line = (ulong)row * n;
    const int column = n0 + col0 + t * 2;
    UNROLL for (int j = 0; j < 8; j += 4) {
#if DTYPE != 0 && C_ALIGNED
      uint v[4];
#endif
      UNROLL for (int e = 0; e < 4; ++e) {
        const int col = column + (j + e) * 8, inside = row < m && col < n;
        float2 y = (float2)(acc[i][j + e][low * 2], acc[i][j + e][low * 2 + 1]);
#if C_ALIGNED
        if (!whole && inside) *(__global float2 *)(part + line + col) = y;
        if (whole && inside) y = finish(c + line + col, bias, col, y, alpha, flags);
#if DTYPE == 0
        if (whole && inside) *(__global float2 *)(c + line + col) = y;
#else
        v[e] = pack(y);
#endif
#else
        UNROLL for (int x = 0; x < 2; ++x) {
          const float sum = x ? y.y : y.x;
          if (row >= m || col + x >= n) continue;
          if (!whole) part[line + col + x] = sum;
          else ST(c, line + col + x, alpha * sum + (flags & BIAS ? LD(bias, col + x) : 0.0f) + (flags & ADD_C ? LD(c, line + col + x) : 0.0f));
        }
#endif
      }
#if DTYPE != 0 && C_ALIGNED
      /* Before the exchange, each of four items has two columns of each of four 8-column blocks. After it, each has all eight of one block. */
      uint p = swap_u(t & 1 ? v[0] : v[1], 1), q = swap_u(t & 1 ? v[2] : v[3], 1);
      if (t & 1) v[0] = p, v[2] = q;
      else v[1] = p, v[3] = q;
      p = swap_u(t & 2 ? v[0] : v[2], 2), q = swap_u(t & 2 ? v[1] : v[3], 2);
      if (t & 2) v[0] = p, v[1] = q;
      else v[2] = p, v[3] = q;
      const int first = n0 + col0 + (j + t) * 8;
      if (whole && row < m && first < n) *(__global uint4 *)(c + line + first) = (uint4)(v[0], v[1], v[2], v[3]);
#endif
    }
  }
}
