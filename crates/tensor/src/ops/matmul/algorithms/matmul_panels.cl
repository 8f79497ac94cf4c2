/* Panels of matrix products on CPUs: blocks are copied into local memory (on a CPU: cache) in the order in which the innermost loop reads them.
 * A register tile is MR rows by NV vectors; a panel of A is MR adjacent rows, a panel of B NR adjacent columns.
 *
 * Design: packing and micro-kernel of Goto and van de Geijn 2008.
 * Defines: MR, NV, KC, MC, NC of matmul_vector.cl.
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
#define KP 8 /* rows copied together: enough to use whole lines and pages of a matrix whose k is strided */
#define UNROLL _Pragma("unroll")
/* Panel widths must reach the loops as constants. */
#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Loads four or two adjacent elements at any address. 16-bit floats go through an aligned private vector, as in the prelude. */
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

/* Packs rows of w adjacent elements with unit stride (k strided): dst[(j*kc + k*w) + v] = src[j + v + k*ks], KP rows at a time. */
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

/* Packs one panel of w lines rs apart, each with unit stride along k, by 4 x 4 transposes. Returns the number of k steps done. */
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

/* Packs n lines of kc into panels of w: dst[(j*kc + k*w) + v] = src[(j + v)*rs + k*ks] for j in steps of w, zero past n. */
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

/* Computes acc += A(0..MR, 0..kc) B(0..kc, 0..NR); B is a packed panel. A_AT(i, u) reads row i, step u; A_NEXT advances. */
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
