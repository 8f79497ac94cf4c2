/* Grouped products for CPUs: rows sorted by expert, each multiplied by its expert's matrix; sums in f32.
 *
 * grouped_rows  C[r] = A[row r] W[e]: a, W (E, K, N), or (E, N, K) with B_ALONG_K 1 → c (R, N) T. Groups (column blocks, E + 1): all rows of
 *               an expert by nc columns. Rows of expert E, which does not have a matrix, become 0.
 * grouped_sums  C[e] = sum over e's rows r of A[row r]^T B[row r]: a (.., M), b (.., N) → c (E, M, N) T; groups (column blocks, row
 *               blocks, E) of mg by nc. An expert without rows gets zeros.
 *
 * Row r of A is line rows[r] of a with GATHER_A 1, otherwise line r; likewise B in grouped_sums. offsets (E + 1): the first row of each expert,
 * then the first row without an expert. Blocks are copied into local memory and multiplied as in matmul_vector.cl; f32 rows of A are read in
 * place. If an expert has at most FEW rows and its matrix is along k, nothing is copied: 4 rows by 4 columns at a time are computed as dot
 * products. Single-token decoding uses this path.
 *
 * part          float, as large as c: sums between two blocks of k. Only if T is narrower than float and k may be above kc.
 * mc nc kc      blocks that are copied; nc is a multiple of NR, nc * kc <= NC * KC, mc * kc <= MC * KC.
 * Defines: DTYPE, VW, SUMS (1: compile grouped_sums, 0: grouped_rows), B_ALONG_K, GATHER_A, GATHER_B, and those of matmul_panels.cl.
 * The order of a sum depends only on kc and the number of the expert's rows: the bits are the same for any number of groups.
 *
 * Design: grouped GEMM over rows sorted by expert (Gale et al. 2022, MegaBlocks, arXiv:2211.15841), packed as in Goto and van de Geijn
 * 2008.
 * Ceiling: f32 multiply-adds of all cores.
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
#define FEW 16
#define LINE_A(r) ((long)(GATHER_A ? rows[r] : (r)))
#define LINE_B(r) ((long)(GATHER_B ? rows[r] : (r)))

/* Stores the finished tile of rows by cols, or its sums before the last block of k. add: adds to the present contents of sums. */
ALWAYS_INLINE void keep_tile(__global T *c, __global float *sums, FV acc[MR][NV], size_t at, int n, int rows, int cols, int add, int last) {
#define TILE UNROLL for (int x = 0; x < MR; ++x) UNROLL for (int y = 0; y < NV; ++y)
#define AT (at + (size_t)x * n + y * VW)
  if (rows == MR && cols == NR) {
    if (add) TILE acc[x][y] += LVEC(sums + AT);
    if (last) TILE STV(c, AT, acc[x][y]);
    else TILE SVEC(acc[x][y], sums + AT);
    return;
  }
  float tile[MR * NR];
  TILE SVEC(acc[x][y], tile + x * NR + y * VW);
  for (int x = 0; x < rows; ++x)
    for (int y = 0; y < cols; ++y) {
      const size_t p = at + (size_t)x * n + y;
      const float s = tile[x * NR + y] + (add ? sums[p] : 0.0f);
      if (last) ST(c, p, s);
      else sums[p] = s;
    }
}
#define CLEAR(acc) TILE acc[x][y] = (FV)(0.0f)

#if SUMS
/* Packs n elements from j0 on of kc rows into panels of w: dst[j * kc + k * w + v] = row k [j0 + j + v], zero past n. */
#define PACK_ROWS(dst, src, LINE, length, j0, w, n, k0, kc)                                        \
  for (int ka = 0; ka < (kc); ka += KP)                                                            \
    for (int j = 0; j < (n); j += (w))                                                             \
      for (int k = ka; k < min((kc), ka + KP); ++k) {                                              \
        __global const T *s = (src) + LINE((k0) + k) * (length) + (j0) + j;                        \
        __local float *d = (dst) + (size_t)j * (kc) + (size_t)k * (w);                             \
        if (j + (w) <= (n)) COPY_##w(d, s)                                                         \
        else for (int v = 0; v < (w); ++v) d[v] = j + v < (n) ? LD(s, v) : 0.0f;                   \
      }
#define COPY_NR(d, s) UNROLL for (int v = 0; v < NV; ++v) SVEC(LDV(s, v * VW), d + v * VW);
#define COPY_MR(d, s)                                                                              \
  {                                                                                                \
    UNROLL for (int v = 0; v + 4 <= MR; v += 4) vstore4(LD4(s, v), 0, d + v);                      \
    if (MR & 2) vstore2(LD2(s, MR / 4 * 4), 0, d + MR / 4 * 4);                                    \
    if (MR & 1) d[MR - 1] = LD(s, MR - 1);                                                         \
  }

__kernel void grouped_sums(__global const T *restrict a, __global const T *restrict b, __global T *restrict c,
#if DTYPE != 0
                           __global float *restrict part,
#endif
                           __global const uint *restrict rows, __global const uint *restrict offsets, int m, int n, int mg, int mc, int nc,
                           int kc_max) {
  __local float la[MC * KC] __attribute__((aligned(64)));
  __local float lb[NC * KC] __attribute__((aligned(64)));
  const long expert = get_group_id(2);
  const int m0 = get_group_id(1) * mg, m1 = min(m, m0 + mg), n0 = get_group_id(0) * nc, cols_left = min(nc, n - n0);
  const int k_end = offsets[expert + 1];
  int k0 = offsets[expert];
  c += expert * m * n;
#if DTYPE == 0
  __global float *sums = c;
#else
  __global float *sums = part + expert * m * n;
#endif
  int first = 1;
  do {
    const int kc = min(kc_max, k_end - k0), last = k0 + kc == k_end;
    PACK_ROWS(lb, b, LINE_B, n, n0, NR, cols_left, k0, kc)
    for (int im = m0; im < m1; im += mc) {
      const int rows_left = min(mc, m1 - im);
      PACK_ROWS(la, a, LINE_A, m, im, MR, rows_left, k0, kc)
      for (int j = 0; j < cols_left; j += NR) {
        for (int i = 0; i < rows_left; i += MR) {
          FV acc[MR][NV];
          CLEAR(acc);
          __local const float *pb = lb + (size_t)j * kc, *pa = la + (size_t)i * kc;
          SUM_OVER_K(PACKED_AT, PACKED_NEXT)
          keep_tile(c, sums, acc, (size_t)(im + i) * n + n0 + j, n, min(MR, rows_left - i), min(NR, cols_left - j), !first, last);
        }
      }
    }
    k0 += kc;
    first = 0;
  } while (k0 < k_end);
}
#else
#if B_ALONG_K
/* Computes up to 4 rows by up to 4 columns as dot products. */
static inline void dots(__global T *c, __global const T *const line_a[4], __global const T *b, int n, int k, int rows, int cols) {
  FV acc[4][4];
  UNROLL for (int x = 0; x < 4; ++x) {
    UNROLL for (int y = 0; y < 4; ++y) acc[x][y] = (FV)(0.0f);
  }
  int u = 0;
  for (; u + VW <= k; u += VW) {
    FV vb[4];
    UNROLL for (int y = 0; y < 4; ++y) vb[y] = LDV(b, (size_t)min(y, cols - 1) * k + u);
    UNROLL for (int x = 0; x < 4; ++x) {
      const FV va = LDV(line_a[x], u);
      UNROLL for (int y = 0; y < 4; ++y) acc[x][y] = fma(va, vb[y], acc[x][y]);
    }
  }
  for (int x = 0; x < rows; ++x)
    for (int y = 0; y < cols; ++y) {
      float sum = sum_lanes(acc[x][y]);
      for (int v = u; v < k; ++v) sum = fma(LD(line_a[x], v), LD(b, (size_t)y * k + v), sum);
      ST(c, (size_t)x * n + y, sum);
    }
}
#endif

__kernel void grouped_rows(__global const T *restrict a, __global const T *restrict b, __global T *restrict c,
#if DTYPE != 0
                           __global float *restrict part,
#endif
                           __global const uint *restrict rows, __global const uint *restrict offsets, int experts, int n, int k, int all,
                           int mc, int nc, int kc_max) {
  __local float lb[NC * KC] __attribute__((aligned(64)));
#if DTYPE == 0
  __global float *sums = c;
#else
  __local float la[MC * KC] __attribute__((aligned(64)));
  __global float *sums = part;
#endif
  const int expert = get_group_id(1), nobody = expert == experts;
  const int m0 = offsets[expert], m1 = nobody ? all : (int)offsets[expert + 1];
  const int n0 = get_group_id(0) * nc, cols_left = min(nc, n - n0);
  if (m0 == m1) return;
  if (nobody) {
    for (int r = m0; r < m1; ++r)
      for (int j = 0; j < cols_left; ++j) ST(c, (size_t)r * n + n0 + j, 0.0f);
    return;
  }
  b += (size_t)expert * n * k;
#if B_ALONG_K
  if (m1 - m0 <= FEW) {
    for (int j = 0; j < cols_left; j += 4)
      for (int r = m0; r < m1; r += 4) {
        __global const T *line_a[4];
        UNROLL for (int x = 0; x < 4; ++x) line_a[x] = a + LINE_A(min(r + x, m1 - 1)) * k;
        dots(c + (size_t)r * n + n0 + j, line_a, b + (size_t)(n0 + j) * k, n, k, min(4, m1 - r), min(4, cols_left - j));
      }
    return;
  }
#endif
  int k0 = 0;
  do {
    const int kc = min(kc_max, k - k0), last = k0 + kc == k;
    if (B_ALONG_K) pack(lb, b + (size_t)n0 * k + k0, NR, cols_left, kc, k, 1);
    else pack(lb, b + (size_t)k0 * n + n0, NR, cols_left, kc, 1, n);
    for (int im = m0; im < m1; im += mc) {
      const int rows_left = min(mc, m1 - im);
#if DTYPE != 0
      for (int i = 0; i < rows_left; i += MR) {
        __global const T *line[MR];
        for (int x = 0; x < MR; ++x) line[x] = a + LINE_A(im + min(i + x, rows_left - 1)) * k + k0;
        __local float *d = la + (size_t)i * kc;
        int u = 0;
        for (; u + 4 <= kc; u += 4, d += 4 * MR)
          UNROLL for (int x = 0; x < MR; ++x) {
            const float4 v = LD4(line[x], u);
            d[x] = v.x, d[x + MR] = v.y, d[x + 2 * MR] = v.z, d[x + 3 * MR] = v.w;
          }
        for (; u < kc; ++u, d += MR)
          for (int x = 0; x < MR; ++x) d[x] = LD(line[x], u);
      }
#endif
      for (int j = 0; j < cols_left; j += NR) {
        for (int i = 0; i < rows_left; i += MR) {
          const int tile_rows = min(MR, rows_left - i);
          FV acc[MR][NV];
          CLEAR(acc);
          __local const float *pb = lb + (size_t)j * kc;
#if DTYPE == 0
          __global const T *row[MR];
          UNROLL for (int x = 0; x < MR; ++x) row[x] = a + LINE_A(im + i + min(x, tile_rows - 1)) * k + k0;
          SUM_OVER_K(ROW_AT, ROW_NEXT)
#else
          __local const float *pa = la + (size_t)i * kc;
          SUM_OVER_K(PACKED_AT, PACKED_NEXT)
#endif
          keep_tile(c, sums, acc, (size_t)(im + i) * n + n0 + j, n, tile_rows, min(NR, cols_left - j), k0 > 0, last);
        }
      }
    }
    k0 += kc;
  } while (k0 < k);
}
#endif
