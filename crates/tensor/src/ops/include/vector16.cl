/* Vectors of VW elements of type T as 16 bytes of memory. VW is 4 for f32, and 8 for f16 and bf16. The functions vload and vstore guarantee only
 * the alignment of an element, and a driver then moves elements one by one.
 *
 * unpack(v)  16 bytes, a uint4 -> VW floats
 * pack(v)    VW floats -> 16 bytes, rounded to T
 *
 * Defines: DTYPE, VW. NVIDIA 1 rounds to bf16 by one instruction (sm_80) [default: 0]. With another VW, the file defines no function.
 */
#ifndef NVIDIA
#define NVIDIA 0
#endif
#if VW == (DTYPE == 0 ? 4 : 8)
static inline FV unpack(uint4 v) {
#if DTYPE == 0
  return as_float4(v);
#elif DTYPE == 1
  return f16_values(as_ushort8(v));
#else
  const uint4 low = v << 16, high = v & 0xffff0000u;
  return as_float8((uint8)(low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w));
#endif
}

#if DTYPE == 2
static inline uint pair(float low, float high) {
#if NVIDIA
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
#else
  return (uint)bf16_of(low) | (uint)bf16_of(high) << 16;
#endif
}
#endif

static inline uint4 pack(FV v) {
#if DTYPE == 0
  return as_uint4(v);
#elif DTYPE == 1
  return as_uint4(f16_rounded(v));
#else
  return (uint4)(pair(v.s0, v.s1), pair(v.s2, v.s3), pair(v.s4, v.s5), pair(v.s6, v.s7));
#endif
}
#endif
