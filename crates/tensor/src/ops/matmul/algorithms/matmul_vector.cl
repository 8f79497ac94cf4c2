/* Matrix product for CPUs: C[z] = alpha * A[z] B[z] + (bias | 0) + (C[z] | 0), batch z, sums in f32.
 *
 * One work-item is a work-group and owns a block of mg rows by ng columns of one batch of C. It processes nc columns, kc steps of the sum and mc
 * rows at a time. B's part is copied into local memory (on a CPU: cache) in the order in which the innermost loop reads it, and so is A's part
 * if its rows cannot be read well in place. The innermost loop keeps MR x NV vectors of C in registers. Tiles that many items share help GPUs
 * but slow CPUs down: matmul_tile.cl.
 *
 * a, b      T; element (i, j) of batch (z0, z1) at off + z0*s0 + z1*s1 + i*rs + j*cs, any strides.
 * bias      T (N), read when flags has BIAS.
 * c         T (Z, M, N), dense. With ADD_C, the product is added to it.
 * col       float (N): sums of B's columns over k, written when flags has COLUMN_SUMS; Z is 1 then. They cost one more pass over B in
 *           cache: the gradient of a bias together with that of the weight.
 * part      float (Z, M, N): sums between two blocks of k. Only if T is narrower than float (c cannot hold them) and k > kc.
 * m n k z1  sizes; z1 is the inner batch count. Global size (row blocks, column blocks, batches), local size 1.
 * mg ng     block of a group, multiples of MR and NR. kc is a multiple of 4, nc * kc <= NC * KC; if A is copied, mc * kc <= MC * KC.
 *
 * TREE      a generated epilogue: tree_v and tree_1 compute C's elements from the sums; they read and write TREE_PARAMETERS.
 *
 * Defines: DTYPE, VW (native vector), MR rows by NV vectors of the register tile (MR*NV + NV + 1 registers: 6 x 2 of 16 on
 * AVX2, 12 x 2 of 32 on AVX-512). Tuned: KC, MC, NC; (MC + NC) * KC floats of local memory.
 * The order of a sum depends only on kc: the bits are the same for any number of groups.
 *
 * Design: Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication", with the loops of BLIS (Van Zee and van de Geijn
 * 2015).
 * Ceiling: f32 multiply-adds of all cores. Reached on two of them: 0.90 to 1.23 times PyTorch's speed at 768 to 2304.
 */
#define ADD_C 1
#define BIAS 2
#define COLUMN_SUMS 4
#ifdef TREE
#if VW == 1
#define TREE_FIRST(v) (v)
#else
#define TREE_FIRST(v) ((v).s0)
#endif
TREE
#define TREE_V(v, row, column) tree_v(v, row, column, n TREE_ARGUMENTS)
#define TREE_1(v, row, column) tree_1(v, row, column, n TREE_ARGUMENTS)
#else
#define TREE_PARAMETERS
#define TREE_1(v, row, column) (v)
#endif

/* Adds to col[j] the sum over k of the packed block's column j, in four running sums, so that additions overlap. */
static inline void add_columns(__global float *col, __local const float *block, int n, int kc, int first) {
  for (int j = 0; j < n; j += VW) {
    __local const float *p = block + (size_t)(j / NR) * NR * kc + j % NR;
    FV s[4] = {(FV)(0.0f), (FV)(0.0f), (FV)(0.0f), (FV)(0.0f)};
    int k = 0;
    for (; k + 4 <= kc; k += 4) {
      UNROLL for (int u = 0; u < 4; ++u) s[u] += LVEC(p + (k + u) * NR);
    }
    for (; k < kc; ++k) s[0] += LVEC(p + k * NR);
    float sums[VW];
    SVEC((s[0] + s[1]) + (s[2] + s[3]), sums);
    for (int v = 0; v < VW && j + v < n; ++v) col[j + v] = first ? sums[v] : col[j + v] + sums[v];
  }
}

__kernel void matmul_vector(__global const T *restrict a, __global const T *restrict b, __global const T *restrict bias,
                            __global T *restrict c, __global float *restrict col,
#if DTYPE != 0
                            __global float *restrict part,
#endif
                            long a_off, long b_off, int m, int n, int k, int z1, long a_s0, long a_s1, long b_s0,
                            long b_s1, long a_rs, long a_cs, long b_rs, long b_cs, int mg, int ng, int mc, int nc,
                            int kc_max, float alpha, int flags TREE_PARAMETERS) {
  __local float la[MC * KC] __attribute__((aligned(64)));
  __local float lb[NC * KC] __attribute__((aligned(64)));
  const long z = get_group_id(2);
  const int m0 = get_group_id(0) * mg, m1 = min(m, m0 + mg), n0 = get_group_id(1) * ng, n1 = min(n, n0 + ng);
  const long z_outer = z / z1, z_inner = z - z_outer * z1; /* Oclgrind does not support the instruction that LLVM makes of / and % together */
  a += a_off + z_outer * a_s0 + z_inner * a_s1;
  b += b_off + z_outer * b_s0 + z_inner * b_s1;
  c += z * m * n;
#if DTYPE == 0
  __global float *sums = c;
  const int direct = a_cs == 1;
#else
  __global float *sums = part + z * m * n;
  const int direct = 0;
#endif
  for (int jn = n0; jn < n1; jn += nc) {
    const int cols_left = min(nc, n1 - jn);
    int k0 = 0;
    do {
      const int kc = min(kc_max, k - k0), last = k0 + kc == k;
      pack(lb, b + k0 * b_rs + jn * b_cs, NR, cols_left, kc, b_cs, b_rs);
      if ((flags & COLUMN_SUMS) && m0 == 0) add_columns(col + jn, lb, cols_left, kc, k0 == 0);
      for (int im = m0; im < m1; im += mc) {
        const int rows_left = min(mc, m1 - im);
        __global const T *a_block = a + im * a_rs + k0 * a_cs;
        if (!direct) pack(la, a_block, MR, rows_left, kc, a_rs, a_cs);
        for (int j = 0; j < cols_left; j += NR) {
          for (int i = 0; i < rows_left; i += MR) {
            const int rows = min(MR, rows_left - i), cols = min(NR, cols_left - j);
            const size_t at = (size_t)(im + i) * n + jn + j;
            FV acc[MR][NV];
            UNROLL for (int x = 0; x < MR; ++x) {
              UNROLL for (int y = 0; y < NV; ++y) acc[x][y] = (FV)(0.0f);
            }
            if (rows == MR) {
              UNROLL for (int x = 0; x < MR; ++x) WARM(sums + at + (size_t)x * n);
#ifdef TREE
              if (last) UNROLL for (int x = 0; x < MR; ++x) tree_warm(at + (size_t)x * n + z * m * n TREE_ARGUMENTS);
#endif
            }
            __local const float *pb = lb + (size_t)j * kc;
#if DTYPE == 0
            if (direct) {
              __global const float *row[MR];
              UNROLL for (int x = 0; x < MR; ++x) row[x] = a_block + (i + min(x, rows - 1)) * a_rs;
              SUM_OVER_K(ROW_AT, ROW_NEXT)
            } else
#endif
            {
              __local const float *pa = la + (size_t)i * kc;
              SUM_OVER_K(PACKED_AT, PACKED_NEXT)
            }
            if (rows == MR && cols == NR) {
#define TILE(x, y) UNROLL for (int x = 0; x < MR; ++x) UNROLL for (int y = 0; y < NV; ++y)
#define AT(x, y) (at + (size_t)(x) * n + (y) * VW)
              TILE(x, y) acc[x][y] *= alpha;
              if (k0) TILE(x, y) acc[x][y] += LVEC(sums + AT(x, y));
              else {
                if (flags & ADD_C) TILE(x, y) acc[x][y] += LDV(c, AT(x, y));
                if (flags & BIAS) TILE(x, y) acc[x][y] += LDV(bias, jn + j + y * VW);
              }
#ifdef TREE
              if (last) {
                /* A loop: copies of an expression for every register would take longer than the way through memory. */
                float tile[MR * NR];
                TILE(x, y) SVEC(acc[x][y], tile + x * NR + y * VW);
                for (int x = 0; x < MR; ++x)
                  for (int y = 0; y < NV; ++y)
                    STV(c, AT(x, y), TREE_V(LVEC(tile + x * NR + y * VW), z * m + im + i + x, jn + j + y * VW));
              }
#else
              if (last) TILE(x, y) STV(c, AT(x, y), acc[x][y]);
#endif
              else TILE(x, y) SVEC(acc[x][y], sums + AT(x, y));
            } else {
              float tile[MR * NR];
              TILE(x, y) SVEC(acc[x][y], tile + x * NR + y * VW);
              for (int x = 0; x < rows; ++x)
                for (int y = 0; y < cols; ++y) {
                  const size_t p = at + (size_t)x * n + y;
                  float s = tile[x * NR + y] * alpha;
                  if (k0) s += sums[p];
                  else {
                    if (flags & ADD_C) s += LD(c, p);
                    if (flags & BIAS) s += LD(bias, jn + j + y);
                  }
                  if (last) ST(c, p, TREE_1(s, z * m + im + i + x, jn + j + y));
                  else sums[p] = s;
                }
            }
          }
        }
      }
      k0 += kc;
    } while (k0 < k);
  }
}
