/* Prepended to every kernel. Converts storage types to f32 arithmetic; vectors of VW lanes; reductions.
 *
 * DTYPE  storage of the tensors of type T: 0 f32, 1 f16, 2 bf16, 5 byte masks. Arithmetic is always float.
 * OUT    storage of the tensors of type OUT_T: the same, and 3 i32, 4 u32; DTYPE by default.
 *        A nonzero byte of a mask is loaded as 1, and a nonzero value is stored as 1.
 * VW     lanes per work-item (1, 2, 4, 8, 16). FV is float or floatVW.
 * WG     work-items per group where a kernel reduces over a group; 1 on CPUs, where one core handles a row.
 * ALIGNED_VECTORS 1: LDV and STV access multiples of VW elements only, so that a vector is one access. VW is then above 1.
 * UNROLL before a loop asks the compiler to unroll it.
 * NVIDIA_CC  compute capability of an NVIDIA device, 90 for 9.0. From 80 up, instructions round to 16 bits.
 */
#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef OUT
#define OUT DTYPE
#endif
#ifndef VW
#define VW 1
#endif
#ifndef WG
#define WG 1
#endif
#ifndef ALIGNED_VECTORS
#define ALIGNED_VECTORS 0
#endif
#ifndef NVIDIA_CC
#define NVIDIA_CC 0
#endif

#define UNROLL _Pragma("unroll")
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#if VW == 1
typedef float FV;
typedef int IV;
typedef uint UV;
#define AS_UV(v) as_uint(v)
#define AS_FV(v) as_float(v)
#define TO_IV(v) convert_int(v)
#define TO_UV(v) convert_uint(v)
#define TO_FV(v) convert_float(v)
#else
typedef CAT(float, VW) FV;
typedef CAT(int, VW) IV;
typedef CAT(uint, VW) UV;
#define AS_UV(v) CAT(as_uint, VW)(v)
#define AS_FV(v) CAT(as_float, VW)(v)
#define TO_IV(v) CAT(convert_int, VW)(v)
#define TO_UV(v) CAT(convert_uint, VW)(v)
#define TO_FV(v) CAT(convert_float, VW)(v)
#endif

/* bf16: round to nearest, ties to even; NaN stays NaN. */
#if NVIDIA_CC >= 80
static inline ushort bf16_of(float x) {
  ushort r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
#else
static inline ushort bf16_of(float x) {
  uint u = as_uint(x);
  return isnan(x) ? (ushort)((u >> 16) | 64u) : (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#endif
static inline float of_bf16(ushort h) { return as_float((uint)h << 16); }
static inline float of_mask(uchar b) { return b != 0 ? 1.0f : 0.0f; }
static inline uchar mask_of(float v) { return v != 0.0f; }

/* Vectors of 16-bit floats. Halves go through an aligned private vector: PoCL's vstore_halfN assumes that the address is aligned
 * to the whole vector, which the specification does not guarantee. */
#if VW == 1
#define LDV_F32(p) (*(p))
#define STV_F32(p, v) (*(p) = (v))
#define LDV_F16(p) vload_half(0, (p))
#define STV_F16(p, v) vstore_half_rte((v), 0, (p))
#define LDV_BF16(p) of_bf16(*(p))
#define STV_BF16(p, v) (*(p) = bf16_of(v))
#define LDV_MASK(p) of_mask(*(p))
#define STV_MASK(p, v) (*(p) = mask_of(v))
#else
typedef CAT(ushort, VW) HV;
typedef CAT(uchar, VW) BV;
#if WG == 1 && defined(__clang__)
/* PoCL's vload and vstore split vectors recursively down to single short elements. If a sum follows at once, the compiler also computes it
 * from these pieces, and assembles the vector afterwards. */
typedef HV __attribute__((aligned(2))) HV_ANY;
typedef FV __attribute__((aligned(4))) FV_ANY;
typedef IV __attribute__((aligned(4))) IV_ANY;
typedef UV __attribute__((aligned(4))) UV_ANY;
typedef BV __attribute__((aligned(1))) BV_ANY;
#define WHOLE_VECTORS(SPACE, E, V)                                                                                  \
  static inline __attribute__((overloadable)) V load_whole(SPACE const E *p) { return *(SPACE const V##_ANY *)p; }   \
  static inline __attribute__((overloadable)) void store_whole(SPACE E *p, V v) { *(SPACE V##_ANY *)p = v; }
#define WHOLE_VECTORS_OF(E, V) WHOLE_VECTORS(__global, E, V) WHOLE_VECTORS(__local, E, V) WHOLE_VECTORS(__private, E, V)
WHOLE_VECTORS_OF(ushort, HV)
WHOLE_VECTORS_OF(float, FV)
WHOLE_VECTORS_OF(int, IV)
WHOLE_VECTORS_OF(uint, UV)
WHOLE_VECTORS_OF(uchar, BV)
#define LOAD_VECTOR(p) load_whole(p)
#define STORE_VECTOR(p, v) store_whole((p), (v))
#else
#define LOAD_VECTOR(p) CAT(vload, VW)(0, (p))
#define STORE_VECTOR(p, v) CAT(vstore, VW)((v), 0, (p))
#endif
#define LDV_F32(p) LOAD_VECTOR(p)
#define STV_F32(p, v) STORE_VECTOR(p, v)
#define LDV_F16(p) f16_load(p)
#define STV_F16(p, v) STORE_VECTOR((__global ushort *)(p), f16_rounded(v))
#define LDV_BF16(p) AS_FV(TO_UV(LOAD_VECTOR(p)) << 16)
#define STV_BF16(p, v) bf16_store((p), (v))
#define LDV_MASK(p) mask_values(LOAD_VECTOR(p))
#define STV_MASK(p, v) STORE_VECTOR(p, mask_bytes(v))
static inline FV mask_values(BV b) { return CAT(convert_int, VW)(b) != (IV)(0) ? (FV)(1.0f) : (FV)(0.0f); }
static inline BV mask_bytes(FV v) { return CAT(convert_uchar, VW)((v != (FV)(0.0f)) & (IV)(1)); }
#if NVIDIA_CC >= 80
/* Two at a time, with instructions: the driver's vstore_half is several times slower. */
static inline FV f16_values(HV h) {
  FV v;
  float *lanes = (float *)&v;
  const ushort *halves = (const ushort *)&h;
  UNROLL for (int k = 0; k < VW; k++) asm("cvt.f32.f16 %0, %1;" : "=f"(lanes[k]) : "h"(halves[k]));
  return v;
}
static inline HV f16_rounded(FV v) {
  uint pairs[VW / 2];
  const float *lanes = (const float *)&v;
  UNROLL for (int k = 0; k < VW / 2; k++)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs[k]) : "f"(lanes[2 * k + 1]), "f"(lanes[2 * k]));
  return *(const HV *)pairs;
}
#else
static inline FV f16_values(HV h) { return CAT(vload_half, VW)(0, (const half *)&h); }
static inline HV f16_rounded(FV v) {
  HV h;
  CAT(CAT(vstore_half, VW), _rte)(v, 0, (half *)&h);
  return h;
}
#endif
static inline FV f16_load(__global const half *p) { return f16_values(LOAD_VECTOR((__global const ushort *)p)); }
static inline HV bf16_rounded(FV v) {
#if NVIDIA_CC >= 80
  uint pairs[VW / 2];
  const float *lanes = (const float *)&v;
  for (int k = 0; k < VW / 2; k++)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pairs[k]) : "f"(lanes[2 * k + 1]), "f"(lanes[2 * k]));
  return *(const HV *)pairs;
#else
  UV u = AS_UV(v);
  UV r = (u + (UV)(0x7fffu) + ((u >> 16) & (UV)(1u))) >> 16;
  return CAT(convert_ushort, VW)(isnan(v) ? ((u >> 16) | (UV)(64u)) : r);
#endif
}
static inline void bf16_store(__global ushort *p, FV v) { STORE_VECTOR(p, bf16_rounded(v)); }

/* The same for p at a multiple of VW elements. */
#define LDVA_F32(p) (*(__global const FV *)(p))
#define STVA_F32(p, v) (*(__global FV *)(p) = (v))
#if NVIDIA_CC >= 80
#define LDVA_F16(p) f16_values(*(__global const HV *)(p))
#define STVA_F16(p, v) (*(__global HV *)(p) = f16_rounded(v))
#else
#define LDVA_F16(p) CAT(vloada_half, VW)(0, (p))
#define STVA_F16(p, v) CAT(CAT(vstorea_half, VW), _rte)((v), 0, (p))
#endif
#if VW == 8
static inline FV bf16_load_aligned(__global const ushort *p) {
  const uint4 v = *(__global const uint4 *)p, low = v << 16, high = v & 0xffff0000u;
  return as_float8((uint8)(low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w));
}
#define LDVA_BF16(p) bf16_load_aligned(p)
#else
#define LDVA_BF16(p) AS_FV(CAT(convert_uint, VW)(*(__global const HV *)(p)) << 16)
#endif
#define STVA_BF16(p, v) (*(__global HV *)(p) = bf16_rounded(v))
#define LDVA_MASK(p) mask_values(*(__global const BV *)(p))
#define STVA_MASK(p, v) (*(__global BV *)(p) = mask_bytes(v))
#endif

#if DTYPE == 0
typedef float T;
#define LD(p, i) ((p)[i])
#define ST(p, i, v) ((p)[i] = (v))
#define KIND F32
#elif DTYPE == 1
typedef half T;
#define LD(p, i) vload_half((i), (p))
#define ST(p, i, v) vstore_half_rte((v), (i), (p))
#define KIND F16
#elif DTYPE == 5
typedef uchar T;
#define LD(p, i) of_mask((p)[i])
#define ST(p, i, v) ((p)[i] = mask_of(v))
#define KIND MASK
#else
typedef ushort T;
#define LD(p, i) of_bf16((p)[i])
#define ST(p, i, v) ((p)[i] = bf16_of(v))
#define KIND BF16
#endif
#if ALIGNED_VECTORS
#define LDV(p, i) CAT(LDVA_, KIND)((p) + (i))
#define STV(p, i, v) CAT(STVA_, KIND)((p) + (i), (v))
#else
#define LDV(p, i) CAT(LDV_, KIND)((p) + (i))
#define STV(p, i, v) CAT(STV_, KIND)((p) + (i), (v))
#endif

/* Four adjacent elements of T at an address that is a multiple of four elements. */
static inline float4 load4(__global const T *p) {
#if DTYPE == 0
  return *(__global const float4 *)p;
#elif DTYPE == 1
  return vloada_half4(0, p);
#elif DTYPE == 5
  return (float4)(of_mask(p[0]), of_mask(p[1]), of_mask(p[2]), of_mask(p[3]));
#else
  return as_float4(convert_uint4(*(__global const ushort4 *)p) << 16);
#endif
}
static inline void store4(__global T *p, float4 v) {
#if DTYPE == 0
  *(__global float4 *)p = v;
#elif DTYPE == 1 && NVIDIA_CC >= 80
  uint2 pairs;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs.x) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs.y) : "f"(v.w), "f"(v.z));
  *(__global uint2 *)p = pairs;
#elif DTYPE == 1
  vstorea_half4_rte(v, 0, p);
#elif DTYPE == 5
  *(__global uchar4 *)p = (uchar4)(mask_of(v.x), mask_of(v.y), mask_of(v.z), mask_of(v.w));
#else
  *(__global ushort4 *)p = (ushort4)(bf16_of(v.x), bf16_of(v.y), bf16_of(v.z), bf16_of(v.w));
#endif
}

#if OUT == 0
typedef float OUT_T;
#define OUT_V(p, i, v) STV_F32((p) + (i), (v))
#define OUT_1(p, i, v) ((p)[i] = (v))
#elif OUT == 1
typedef half OUT_T;
#define OUT_V(p, i, v) STV_F16((p) + (i), (v))
#define OUT_1(p, i, v) vstore_half_rte((v), (i), (p))
#elif OUT == 2
typedef ushort OUT_T;
#define OUT_V(p, i, v) STV_BF16((p) + (i), (v))
#define OUT_1(p, i, v) ((p)[i] = bf16_of(v))
#elif OUT == 3
typedef int OUT_T;
#define OUT_V(p, i, v) STV_F32((p) + (i), TO_IV(v))
#define OUT_1(p, i, v) ((p)[i] = (int)(v))
#elif OUT == 5
typedef uchar OUT_T;
#define OUT_V(p, i, v) STV_MASK((p) + (i), (v))
#define OUT_1(p, i, v) ((p)[i] = mask_of(v))
#else
typedef uint OUT_T;
#define OUT_V(p, i, v) STV_F32((p) + (i), TO_UV(v))
#define OUT_1(p, i, v) ((p)[i] = (uint)(v))
#endif

/* The first `lanes` lanes of a vector, 0 above: the end of a row. */
static inline FV load_part(__global const T *p, ulong lanes) {
  float part[VW];
  for (uint k = 0; k < VW; k++) part[k] = k < lanes ? LD(p, k) : 0.0f;
  return LDV_F32(part);
}
static inline void store_part(__global T *p, FV v, ulong lanes) {
  float part[VW];
  STV_F32(part, v);
  for (uint k = 0; k < VW; k++)
    if (k < lanes) ST(p, k, part[k]);
}

/* Sum and maximum over the lanes of one vector, always in the same order. */
static inline float sum_lanes(FV v) {
#if VW == 1
  return v;
#elif VW == 2
  return v.x + v.y;
#else
#if VW == 16
  float8 h = v.lo + v.hi;
  float4 q = h.lo + h.hi;
#elif VW == 8
  float4 q = v.lo + v.hi;
#else
  float4 q = v;
#endif
  return (q.x + q.z) + (q.y + q.w);
#endif
}
static inline float max_lanes(FV v) {
#if VW == 1
  return v;
#elif VW == 2
  return fmax(v.x, v.y);
#else
#if VW == 16
  float8 h = fmax(v.lo, v.hi);
  float4 q = fmax(h.lo, h.hi);
#elif VW == 8
  float4 q = fmax(v.lo, v.hi);
#else
  float4 q = v;
#endif
  return fmax(fmax(q.x, q.z), fmax(q.y, q.w));
#endif
}

/* Fetches the cache line at p, for CPUs: PoCL's prefetch() does nothing. */
#if WG == 1 && defined(__clang__) && !defined(NO_PREFETCH)
#define AHEAD(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define AHEAD(p)
#endif

/* The rows of this item in dimension D: a run of consecutive rows on CPUs, whose prefetchers follow addresses; every n-th on other devices. */
#if WG == 1
#define FOR_ROWS(row, rows, D)                                                                             \
  for (ulong row##_per = ((rows) + get_global_size(D) - 1) / get_global_size(D),                           \
             row = get_global_id(D) * row##_per, row##_end = min((ulong)(rows), row + row##_per);          \
       row < row##_end; row++)
#else
#define FOR_ROWS(row, rows, D) for (ulong row = get_global_id(D); row < (rows); row += get_global_size(D))
#endif
