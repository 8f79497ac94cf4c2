/* Grouped products for GPUs: rows sorted by expert, each multiplied by its expert's matrix; sums in f32.
 *
 * grouped_rows  C[r] = A[row r] W[e]: a, W (E, K, N), or (E, N, K) with B_ALONG_K 1 → c (R, N) T. Tile i of tiles (tiles, 2) is an expert
 *               and the first of its at most BM rows in the tile; groups (column tiles, tiles). Rows of expert E, which does not have a matrix,
 *               become 0.
 * grouped_few   the same for W along k and few rows: groups (n / (WG / 32) rounded up, R) of one row and WG / 32 columns, 32 items per
 *               column, which read 32 VB adjacent elements together. It is limited by reading the weights; a tile of one row would not be.
 * grouped_sums  C[e] = sum over e's rows r of A[row r]^T B[row r]: a (.., M), b (.., N) → c (E, M, N) T; groups (column tiles, row tiles, E).
 *               An expert without rows gets zeros.
 *
 * Row r of A is line rows[r] of a with GATHER_A 1, otherwise line r; likewise B in grouped_sums. offsets (E + 1): the first row of each expert,
 * then the first row without an expert. A group owns a tile of BM x BN, an item 8 x 8 of it in registers. BK steps of the sum at a time go
 * through two local buffers, as in matmul_tile.cl. The order of a sum depends only on the rows.
 *
 * Defines: DTYPE, SUMS (1: compile grouped_sums, 0: the other two), B_ALONG_K, GATHER_A, GATHER_B; VA, VB 4 if 4 adjacent elements along the
 * contiguous axis can be read at once, otherwise 1; BM, BN, WG = BM * BN / 64. Tuned: BK, at least 8.
 *
 * Design: grouped GEMM over rows sorted by expert (Gale et al. 2022, MegaBlocks, arXiv:2211.15841; CUTLASS, grouped GEMM).
 * Ceiling: that of f32 multiply-adds, as in matmul_tile.cl.
 */
#ifndef SUMS
#define SUMS 0
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 0
#endif
#ifndef GATHER_A
#define GATHER_A 0
#endif
#ifndef GATHER_B
#define GATHER_B 0
#endif
#ifndef VA
#define VA 1
#endif
#ifndef VB
#define VB 1
#endif
#ifndef BM
#define BM 64
#endif
#ifndef BN
#define BN 128
#endif
#ifndef BK
#define BK 8
#endif
#define UNROLL _Pragma("unroll")
#define TX (BN / 8)
#define TY (BM / 8)
#define ITEMS (TX * TY)
#define A_ALONG_K (!SUMS)
/* Transposed writes go down columns. The padding avoids bank conflicts. */
#define LDA (BM + 4 * A_ALONG_K)
#define LDB (BN + 4 * B_ALONG_K)

/* ITEMS work-items read a slice of an operand, BK steps of SIDE lines, V adjacent elements at once. READS is the number of reads per item;
 * LINE_OF and STEP_OF are the line and the step of read i. */
#define READS(SIDE, V) ((SIDE) * BK / (V) / ITEMS)
#define LINE_OF(i, SIDE, V, ALONG_K) ((ALONG_K) ? (item + (i) * ITEMS) / (BK / (V)) : (item + (i) * ITEMS) % ((SIDE) / (V)) * (V))
#define STEP_OF(i, SIDE, V, ALONG_K) ((ALONG_K) ? (item + (i) * ITEMS) % (BK / (V)) * (V) : (item + (i) * ITEMS) / ((SIDE) / (V)))

#if VA == 4
typedef float4 VecA;
#define READ_A(p) load4(p)
#else
typedef float VecA;
#define READ_A(p) LD(p, 0)
#endif
#if VB == 4
typedef float4 VecB;
#define READ_B(p) load4(p)
#else
typedef float VecB;
#define READ_B(p) LD(p, 0)
#endif

#define PUT_1(to, v, LDT, ALONG_K) *(to) = v;
#define PUT_4(to, v, LDT, ALONG_K)                                                                      \
  if (ALONG_K) (to)[0] = v.x, (to)[LDT] = v.y, (to)[2 * (LDT)] = v.z, (to)[3 * (LDT)] = v.w;            \
  else *(__local float4 *)(to) = v;
#define KEEP(tile, LDT, next, SIDE, V, ALONG_K)                                                         \
  UNROLL for (int i = 0; i < READS(SIDE, V); ++i) {                                                     \
    __local float *to = (tile) + STEP_OF(i, SIDE, V, ALONG_K) * (LDT) + LINE_OF(i, SIDE, V, ALONG_K);   \
    CAT(PUT_, V)(to, next[i], LDT, ALONG_K)                                                             \
  }

/* Loads the next slices of both operands to registers, with zeros outside. A has lines up to m_end, B up to n, and both have steps up to k_end. */
#define FETCH_BOTH(k_at)                                                                                \
  UNROLL for (int i = 0; i < READS(BM, VA); ++i) {                                                      \
    const int at = m0 + LINE_OF(i, BM, VA, A_ALONG_K), step = (k_at) + STEP_OF(i, BM, VA, A_ALONG_K);   \
    const int inside = at < m_end && step < k_end;                                                      \
    next_a[i] = inside ? READ_A(a + A_AT(i, at, step)) : (VecA)(0.0f);                                  \
  }                                                                                                     \
  UNROLL for (int i = 0; i < READS(BN, VB); ++i) {                                                      \
    const int at = n0 + LINE_OF(i, BN, VB, B_ALONG_K), step = (k_at) + STEP_OF(i, BN, VB, B_ALONG_K);   \
    const int inside = at < n && step < k_end;                                                          \
    next_b[i] = inside ? READ_B(b + B_AT(at, step)) : (VecB)(0.0f);                                     \
  }
#define KEEP_BOTH(s)                                                                                    \
  KEEP(tile_a[s], LDA, next_a, BM, VA, A_ALONG_K)                                                       \
  KEEP(tile_b[s], LDB, next_b, BN, VB, B_ALONG_K)

/* acc = the sum over steps k_begin … k_end - 1. */
#define MULTIPLY                                                                                        \
  VecA next_a[READS(BM, VA)];                                                                           \
  VecB next_b[READS(BN, VB)];                                                                           \
  int s = 0;                                                                                            \
  FETCH_BOTH(k_begin)                                                                                   \
  KEEP_BOTH(0)                                                                                          \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
  for (int k0 = k_begin; k0 < k_end; k0 += BK) {                                                        \
    const int more = k0 + BK < k_end;                                                                   \
    if (more) {                                                                                         \
      FETCH_BOTH(k0 + BK)                                                                               \
    }                                                                                                   \
    UNROLL for (int u = 0; u < BK; ++u) {                                                               \
      float4 va[2], vb[2];                                                                              \
      UNROLL for (int i = 0; i < 2; ++i) va[i] = *(__local const float4 *)(tile_a[s] + u * LDA + (i * TY + ty) * 4); \
      UNROLL for (int j = 0; j < 2; ++j) vb[j] = *(__local const float4 *)(tile_b[s] + u * LDB + (j * TX + tx) * 4); \
      UNROLL for (int i = 0; i < 2; ++i) {                                                              \
        UNROLL for (int j = 0; j < 2; ++j) {                                                            \
          acc[i * 4][j] = fma((float4)(va[i].x), vb[j], acc[i * 4][j]);                                 \
          acc[i * 4 + 1][j] = fma((float4)(va[i].y), vb[j], acc[i * 4 + 1][j]);                         \
          acc[i * 4 + 2][j] = fma((float4)(va[i].z), vb[j], acc[i * 4 + 2][j]);                         \
          acc[i * 4 + 3][j] = fma((float4)(va[i].w), vb[j], acc[i * 4 + 3][j]);                         \
        }                                                                                               \
      }                                                                                                 \
    }                                                                                                   \
    if (more) {                                                                                         \
      KEEP_BOTH(s ^ 1)                                                                                  \
    }                                                                                                   \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                       \
    s ^= 1;                                                                                             \
  }

/* Stores the tile of 8 x 8 to the rows of c, within its edges. */
static inline void keep_tile(__global T *c, float4 acc[8][2], int m0, int m_end, int n0, int n, int ty, int tx) {
  UNROLL for (int i = 0; i < 8; ++i) {
    const int row = m0 + (i / 4 * TY + ty) * 4 + i % 4;
    UNROLL for (int j = 0; j < 2; ++j) {
      const int column = n0 + (j * TX + tx) * 4, inside = row < m_end ? min(n - column, 4) : 0;
      __global T *to = c + (long)row * n + column;
      const float v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
      if (n % 4 == 0 && inside == 4) store4(to, acc[i][j]);
      else UNROLL for (int x = 0; x < 4; ++x) if (x < inside) ST(to, x, v[x]);
    }
  }
}

/* 32 adjacent items own 4 x 8 positions. A read then has few distinct addresses, which local memory broadcasts. */
#define PLACES                                                                                          \
  const int item = get_local_id(0), w = item / 32, l = item % 32;                                       \
  const int ty = w / (TX / 8) * 4 + l / 8, tx = w % (TX / 8) * 8 + l % 8;                               \
  float4 acc[8][2];                                                                                     \
  UNROLL for (int i = 0; i < 8; ++i) {                                                                  \
    UNROLL for (int j = 0; j < 2; ++j) acc[i][j] = (float4)(0.0f);                                      \
  }

#if SUMS
#define A_AT(i, at, step) ((long)(GATHER_A ? rows[step] : (step)) * m + (at))
#define B_AT(at, step) ((long)(GATHER_B ? rows[step] : (step)) * n + (at))
__kernel void grouped_sums(__global const T *restrict a, __global const T *restrict b, __global T *restrict c,
                           __global const uint *restrict rows, __global const uint *restrict offsets, int m, int n) {
  __local float tile_a[2][BK * LDA] __attribute__((aligned(16))), tile_b[2][BK * LDB] __attribute__((aligned(16)));
  const int m0 = get_group_id(1) * BM, m_end = m, n0 = get_group_id(0) * BN, expert = get_group_id(2);
  const int k_begin = offsets[expert], k_end = offsets[expert + 1];
  PLACES
  MULTIPLY
  keep_tile(c + (long)expert * m * n, acc, m0, m, n0, n, ty, tx);
}
#else
#define A_AT(i, at, step) (line_of_a[i] + (step))
#define B_AT(at, step) (B_ALONG_K ? (long)(at) * k_end + (step) : (long)(step) * n + (at))
__kernel void grouped_rows(__global const T *restrict a, __global const T *restrict b, __global T *restrict c,
                           __global const uint *restrict rows, __global const uint *restrict offsets, __global const uint *restrict tiles,
                           int experts, int n, int k, int all) {
  __local float tile_a[2][BK * LDA] __attribute__((aligned(16))), tile_b[2][BK * LDB] __attribute__((aligned(16)));
  const uint expert = tiles[2 * get_group_id(1)];
  if (expert == ~0u) return;
  const int m0 = tiles[2 * get_group_id(1) + 1], n0 = get_group_id(0) * BN, nobody = expert == (uint)experts;
  const int m_end = min(m0 + BM, nobody ? all : (int)offsets[expert + 1]), k_begin = 0, k_end = nobody ? 0 : k;
  PLACES
  long line_of_a[READS(BM, VA)];
  UNROLL for (int i = 0; i < READS(BM, VA); ++i) {
    const int at = m0 + LINE_OF(i, BM, VA, A_ALONG_K);
    line_of_a[i] = at < m_end ? (long)(GATHER_A ? rows[at] : at) * k : 0;
  }
  b += nobody ? 0 : (long)expert * n * k;
  MULTIPLY
  keep_tile(c, acc, m0, m_end, n0, n, ty, tx);
}

#if B_ALONG_K
__kernel void grouped_few(__global const T *restrict a, __global const T *restrict b, __global T *restrict c,
                          __global const uint *restrict rows, __global const uint *restrict offsets, int experts, int n, int k) {
  __local float sums[ITEMS];
  __local int found;
  const int row = get_group_id(1), l = get_local_id(0), lane = l % 32, column = get_group_id(0) * (ITEMS / 32) + l / 32;
  if (l == 0) found = experts;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = l; e < experts; e += ITEMS)
    if ((int)offsets[e] <= row && row < (int)offsets[e + 1]) found = e;
  barrier(CLK_LOCAL_MEM_FENCE);
  VecB acc = (VecB)(0.0f);
  if (found < experts && column < n) {
    a += (long)(GATHER_A ? rows[row] : row) * k;
    b += ((long)found * n + column) * k;
    for (int u = lane * VB; u < k; u += 32 * VB) acc = fma(READ_B(a + u), READ_B(b + u), acc);
  }
#if VB == 4
  sums[l] = (acc.x + acc.z) + (acc.y + acc.w);
#else
  sums[l] = acc;
#endif
  for (int h = 16; h > 0; h /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < h) sums[l] += sums[l + h];
  }
  if (lane == 0 && column < n) ST(c, (long)row * n + column, sums[l]);
}
#endif
#endif
