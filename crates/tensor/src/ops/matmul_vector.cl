/* Matrix product for CPUs: C[z] = alpha * A[z] B[z] + (bias | 0) + (C[z] | 0), batch z, sums in f32.
 *
 * One work-item is a work-group and owns a block of mg rows by ng columns of one batch of C. It walks the block nc columns, kc of
 * the sum and mc rows at a time. The part of B, and of A where its rows are not already good to read, is copied into local
 * memory (on a CPU: cache) in the order in which the innermost loop reads it; that loop keeps MR x NV vectors of C in
 * registers. Tiles shared by many items, which GPUs want, cost here what they save there: matmul_tile.cl.
 *
 * a, b      T; element (i, j) of batch (z0, z1) at off + z0*s0 + z1*s1 + i*rs + j*cs, any strides.
 * bias      T (N), read when flags has BIAS.
 * c         T (Z, M, N), dense. With ADD_C it is added to.
 * col       float (N): sums of B's columns over k, written when flags has COLUMN_SUMS; Z is 1 then. They come for the price of
 *           one more pass over B in cache: the gradient of a bias beside that of the weight.
 * part      float (Z, M, N): sums between two blocks of k. Only where T is narrower than float (c cannot hold them) and k > kc.
 * m n k z1  sizes; z1 is the inner batch count. Global size (row blocks, column blocks, batches), local size 1.
 * mg ng     block of a group, in whole MR and NR. kc in steps of 4, nc * kc <= NC * KC; where A is copied mc * kc <= MC * KC.
 *
 * Defines: DTYPE, VW (native vector), MR rows by NV vectors of the register tile (MR*NV + NV + 1 registers: 6 x 2 of 16 on
 * AVX2, 12 x 2 of 32 on AVX-512). Tuned: KC, MC, NC; (MC + NC) * KC floats of local memory.
 * The order of a sum depends on kc and on nothing else: the same bits for any number of groups.
 *
 * Ceiling: f32 multiply-adds of all cores. Reached on two of them: 0.90 to 1.23 of PyTorch at 768 to 2304.
 */
#ifndef MR
#define MR 6
#endif
#ifndef NV
#define NV 2
#endif
#ifndef KC
#define KC 64
#endif
#ifndef MC
#define MC 24
#endif
#ifndef NC
#define NC 96
#endif
#define NR (VW * NV)
#define KU 4 /* steps of the sum unrolled */
#define KP 8 /* rows copied side by side: enough to use whole lines and pages of a matrix whose k is strided */
#define ADD_C 1
#define BIAS 2
#define COLUMN_SUMS 4
#define UNROLL _Pragma("unroll")
/* Panel widths must reach the loops as constants. */
#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Four or two neighbours, anywhere. Halves pass through an aligned private vector, as in the prelude. */
#if DTYPE == 0
#define LD4(p, i) vload4(0, (p) + (i))
#define LD2(p, i) vload2(0, (p) + (i))
#elif DTYPE == 1
#define LD4(p, i) f16_load4((p) + (i))
#define LD2(p, i) f16_load2((p) + (i))
static inline float4 f16_load4(__global const half *p) {
  const ushort4 h = vload4(0, (__global const ushort *)p);
  return vload_half4(0, (const half *)&h);
}
static inline float2 f16_load2(__global const half *p) {
  const ushort2 h = vload2(0, (__global const ushort *)p);
  return vload_half2(0, (const half *)&h);
}
#else
#define LD4(p, i) as_float4(convert_uint4(vload4(0, (p) + (i))) << 16)
#define LD2(p, i) as_float2(convert_uint2(vload2(0, (p) + (i))) << 16)
#endif
#if VW == 1
#define LVEC(p) (*(p))
#define SVEC(v, p) (*(p) = (v))
#else
#define LVEC(p) CAT(vload, VW)(0, p)
#define SVEC(v, p) CAT(vstore, VW)(v, 0, p)
#endif
#if defined(__clang__) && !defined(NO_PREFETCH)
#define WARM(p) __builtin_prefetch((const void *)(size_t)(p), 1)
#else
#define WARM(p)
#endif

/* Rows of w neighbours in unit stride (k strided): dst[(j*kc + k*w) + v] = src[j + v + k*ks], KP rows at a time. */
ALWAYS_INLINE void pack_rows(__local float *dst, __global const T *src, const int w, int full, int kc, long ks) {
  for (int k0 = 0; k0 < kc; k0 += KP) {
    const int k1 = min(kc, k0 + KP);
    for (int j = 0; j < full; j += w) {
      for (int k = k0; k < k1; ++k) {
        __global const T *s = src + k * ks + j;
        __local float *d = dst + (size_t)j * kc + (size_t)k * w;
        if (w == NR) {
          UNROLL for (int v = 0; v < NV; ++v) SVEC(LDV(s, v * VW), d + v * VW);
        } else {
          UNROLL for (int v = 0; v + 4 <= w; v += 4) vstore4(LD4(s, v), 0, d + v);
          if (w & 2) vstore2(LD2(s, w / 4 * 4), 0, d + w / 4 * 4);
          if (w & 1) d[w - 1] = LD(s, w - 1);
        }
      }
    }
  }
}

/* One panel of w neighbours that lie rs apart, each with unit stride along k: 4 x 4 transposes. Returns how many k it did. */
ALWAYS_INLINE int pack_transposed(__local float *dst, __global const T *src, const int w, int kc, long rs) {
  int k = 0;
  for (; k + 4 <= kc; k += 4) {
    __local float *d = dst + (size_t)k * w;
    UNROLL for (int v = 0; v + 4 <= w; v += 4) {
      __global const T *s = src + v * rs + k;
      const float4 r0 = LD4(s, 0), r1 = LD4(s, rs), r2 = LD4(s, 2 * rs), r3 = LD4(s, 3 * rs);
      vstore4((float4)(r0.x, r1.x, r2.x, r3.x), 0, d + v);
      vstore4((float4)(r0.y, r1.y, r2.y, r3.y), 0, d + v + w);
      vstore4((float4)(r0.z, r1.z, r2.z, r3.z), 0, d + v + 2 * w);
      vstore4((float4)(r0.w, r1.w, r2.w, r3.w), 0, d + v + 3 * w);
    }
    UNROLL for (int v = w / 4 * 4; v < w; ++v) {
      const float4 r = LD4(src + v * rs, k);
      d[v] = r.x, d[v + w] = r.y, d[v + 2 * w] = r.z, d[v + 3 * w] = r.w;
    }
  }
  return k;
}

/* n lines of kc into panels of w: dst[(j*kc + k*w) + v] = src[(j + v)*rs + k*ks] for j in steps of w, zero past n. */
ALWAYS_INLINE void pack(__local float *dst, __global const T *src, const int w, int n, int kc, long rs, long ks) {
  const int full = n / w * w;
  int done = 0;
  if (rs == 1) {
    pack_rows(dst, src, w, full, kc, ks);
    done = full;
  }
  for (int j = done; j < n; j += w) {
    __local float *d = dst + (size_t)j * kc;
    __global const T *s = src + j * rs;
    int k = ks == 1 && j < full ? pack_transposed(d, s, w, kc, rs) : 0;
    for (; k < kc; ++k)
      for (int v = 0; v < w; ++v) d[k * w + v] = j + v < n ? LD(s, v * rs + k * ks) : 0.0f;
  }
}

/* col[j] (+)= sum over k of the packed block's column j; four running sums, so that additions overlap. */
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

/* acc += A(0..MR, 0..kc) B(0..kc, 0..NR), B a packed panel. A_AT(i, u) reads row i, step u; A_NEXT moves on. */
#define STEP(A_AT, u)                                                            \
  {                                                                              \
    FV b_[NV];                                                                   \
    UNROLL for (int y = 0; y < NV; ++y) b_[y] = LVEC(pb + (u) * NR + y * VW);    \
    UNROLL for (int x = 0; x < MR; ++x) {                                        \
      const FV a_ = (FV)(A_AT(x, u));                                            \
      UNROLL for (int y = 0; y < NV; ++y) acc[x][y] = fma(a_, b_[y], acc[x][y]); \
    }                                                                            \
  }
#define SUM_OVER_K(A_AT, A_NEXT)                                                 \
  {                                                                              \
    int left = kc;                                                               \
    for (; left >= KU; left -= KU, pb += KU * NR) {                              \
      UNROLL for (int u = 0; u < KU; ++u) STEP(A_AT, u)                          \
      A_NEXT(KU);                                                                \
    }                                                                            \
    for (; left > 0; --left, pb += NR) {                                         \
      STEP(A_AT, 0)                                                              \
      A_NEXT(1);                                                                 \
    }                                                                            \
  }
#define PACKED_AT(x, u) pa[(u) * MR + (x)]
#define PACKED_NEXT(u) pa += (u) * MR
#define ROW_AT(x, u) row[x][u]
#define ROW_NEXT(u) UNROLL for (int x = 0; x < MR; ++x) row[x] += (u)

__kernel void matmul_vector(__global const T *restrict a, __global const T *restrict b, __global const T *restrict bias,
                            __global T *restrict c, __global float *restrict col,
#if DTYPE != 0
                            __global float *restrict part,
#endif
                            long a_off, long b_off, int m, int n, int k, int z1, long a_s0, long a_s1, long b_s0,
                            long b_s1, long a_rs, long a_cs, long b_rs, long b_cs, int mg, int ng, int mc, int nc,
                            int kc_max, float alpha, int flags) {
  __local float la[MC * KC] __attribute__((aligned(64)));
  __local float lb[NC * KC] __attribute__((aligned(64)));
  const long z = get_group_id(2);
  const int m0 = get_group_id(0) * mg, m1 = min(m, m0 + mg), n0 = get_group_id(1) * ng, n1 = min(n, n0 + ng);
  const long z_outer = z / z1, z_inner = z - z_outer * z1; /* Oclgrind does not know what LLVM makes of / beside % */
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
              if (last) TILE(x, y) STV(c, AT(x, y), acc[x][y]);
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
                  if (last) ST(c, p, s);
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
