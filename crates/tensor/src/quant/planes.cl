/* Groups of 32 elements of quantised rows in planes (planes.rs, which has the table of what lies where): codes as bytes, and what they stand for.
 *
 *   element i of group u = scale of its half * code + offset       codes 0 .. 15 are the first half
 *
 * codes_F(row, u, k, &first, &second)  the codes of both halves, four to a word, of a row of k elements; of Q8_0 and Q6_K signed
 * scales_F(row, u, k)                  scale of the first half, of the second, offset
 * for each format F of FORMATS, a set of bits 1 << F by the formats' numbers in GGUF files: 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 12 Q4_K,
 * 13 Q5_K, 14 Q6_K.
 *
 * Defines: ROWS_IN, the address space of rows.
 */
#ifndef ROWS_IN
#define ROWS_IN __global
#endif
typedef const ROWS_IN uchar *RowBytes;

#define HAS(format) ((FORMATS) >> (format)&1)

static inline float half_at(RowBytes p) { return f16_value(*(const ROWS_IN ushort *)p); }
static inline float2 halves_at(RowBytes p) {
  const uint both = *(const ROWS_IN uint *)p;
  return (float2)(f16_value(both & 0xffffu), f16_value(both >> 16));
}

/* Sixteen bytes of two codes each. */
static inline void nibbles(RowBytes row, int u, uint4 *first, uint4 *second) {
  const uint4 q = *(const ROWS_IN uint4 *)(row + 16 * u);
  *first = q & 0x0f0f0f0fu;
  *second = q >> 4 & 0x0f0f0f0fu;
}
/* Their fifth bits from a word: bit w of each byte belongs to word w of the first half, bit 4 + w to that of the second. */
static inline void fifth_bits(uint bits, uint4 *first, uint4 *second) {
  const uint4 at = (uint4)(0, 1, 2, 3);
  *first |= ((uint4)(bits) >> at & 0x01010101u) << 4;
  *second |= ((uint4)(bits) >> (at + 4u) & 0x01010101u) << 4;
}
static inline void five_bits(RowBytes row, int u, int k, uint4 *first, uint4 *second) {
  nibbles(row, u, first, second);
  fifth_bits(*(const ROWS_IN uint *)(row + k / 2 + 4 * u), first, second);
}
/* Scale and minimum of group u of a super-block's eight: two f16 and twelve bytes of six-bit numbers. */
static inline float3 six_bit_scales(RowBytes head, int u) {
  const uint4 h = *(const ROWS_IN uint4 *)head;
  const int j = u & 7, by = 8 * (j & 3);
  const uint a = h.y >> by, b = h.z >> by, c = h.w >> by;
  const uint scale = j < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u), least = j < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
  const float d = f16_value(h.x & 0xffffu) * (float)scale;
  return (float3)(d, d, -(f16_value(h.x >> 16) * (float)least));
}

#if HAS(2)
static inline void codes_2(RowBytes row, int u, int k, uint4 *first, uint4 *second) { nibbles(row, u, first, second); }
static inline float3 scales_2(RowBytes row, int u, int k) {
  const float d = half_at(row + k / 2 + 2 * u);
  return (float3)(d, d, -8.0f * d);
}
#endif
#if HAS(3)
static inline void codes_3(RowBytes row, int u, int k, uint4 *first, uint4 *second) { nibbles(row, u, first, second); }
static inline float3 scales_3(RowBytes row, int u, int k) {
  const float2 d = halves_at(row + k / 2 + 4 * u);
  return (float3)(d.x, d.x, d.y);
}
#endif
#if HAS(6)
static inline void codes_6(RowBytes row, int u, int k, uint4 *first, uint4 *second) { five_bits(row, u, k, first, second); }
static inline float3 scales_6(RowBytes row, int u, int k) {
  const float d = half_at(row + k / 2 + k / 8 + 2 * u);
  return (float3)(d, d, -16.0f * d);
}
#endif
#if HAS(7)
static inline void codes_7(RowBytes row, int u, int k, uint4 *first, uint4 *second) { five_bits(row, u, k, first, second); }
static inline float3 scales_7(RowBytes row, int u, int k) {
  const float2 d = halves_at(row + k / 2 + k / 8 + 4 * u);
  return (float3)(d.x, d.x, d.y);
}
#endif
#if HAS(8)
static inline void codes_8(RowBytes row, int u, int k, uint4 *first, uint4 *second) {
  *first = *(const ROWS_IN uint4 *)(row + 16 * u);
  *second = *(const ROWS_IN uint4 *)(row + k / 2 + 16 * u);
}
static inline float3 scales_8(RowBytes row, int u, int k) {
  const float d = half_at(row + k + 2 * u);
  return (float3)(d, d, 0.0f);
}
#endif
#if HAS(12)
static inline void codes_12(RowBytes row, int u, int k, uint4 *first, uint4 *second) { nibbles(row, u, first, second); }
static inline float3 scales_12(RowBytes row, int u, int k) { return six_bit_scales(row + k / 2 + 16 * (u >> 3), u); }
#endif
#if HAS(13)
static inline void codes_13(RowBytes row, int u, int k, uint4 *first, uint4 *second) { five_bits(row, u, k, first, second); }
static inline float3 scales_13(RowBytes row, int u, int k) { return six_bit_scales(row + k / 2 + k / 8 + 16 * (u >> 3), u); }
#endif
#if HAS(14)
/* Bytes 0 .. 63 less 32, as signed bytes. */
static inline uint4 less_32(uint4 q) { return ((q | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }
static inline void codes_14(RowBytes row, int u, int k, uint4 *first, uint4 *second) {
  nibbles(row, u, first, second);
  const uint2 bits = *(const ROWS_IN uint2 *)(row + k / 2 + 8 * u);
  const uint4 at = (uint4)(0, 2, 4, 6);
  *first = less_32(*first | ((uint4)(bits.x) >> at & 0x03030303u) << 4);
  *second = less_32(*second | ((uint4)(bits.y) >> at & 0x03030303u) << 4);
}
static inline float3 scales_14(RowBytes row, int u, int k) {
  const char2 scale = *(const ROWS_IN char2 *)(row + k / 2 + k / 4 + 2 * u);
  const float d = half_at(row + k / 2 + k / 4 + k / 16 + 2 * (u >> 3));
  return (float3)(d * (float)scale.x, d * (float)scale.y, 0.0f);
}
#endif
