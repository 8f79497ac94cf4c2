/* Groups of 32 elements of quantised rows in planes (planes.rs, which has the table of what lies where): codes as bytes, and what they stand for.
 *
 *   element i of group u = scale of its half * code + offset       codes 0 .. 15 are the first half
 *
 * stored_F(row, u, k)                  what a row of k elements stores of group u, as it lies there
 * codes_F(stored, &first, &second)     the codes of both halves, four to a word; of Q8_0 and Q6_K signed
 * scales_F(stored, u)                  scale of the first half, of the second, offset
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

/* Words of a group: codes, those of the second half where they lie elsewhere, bits above four, scales. */
typedef struct {
  uint4 codes, second;
  uint2 bits;
  uint4 scale;
} Stored;

#define WORD_AT(p) (*(const ROWS_IN uint *)(p))
#define HALF_AT(p) (*(const ROWS_IN ushort *)(p))
#define WORDS_AT(p) (*(const ROWS_IN uint4 *)(p))
static inline Stored stored_codes(RowBytes row, int u) {
  Stored s;
  s.codes = WORDS_AT(row + 16 * u);
  return s;
}

/* Sixteen bytes of two codes each. */
static inline void nibbles(Stored s, uint4 *first, uint4 *second) {
  *first = s.codes & 0x0f0f0f0fu;
  *second = s.codes >> 4 & 0x0f0f0f0fu;
}
/* And their fifth bits from a word: bit w of each byte belongs to word w of the first half, bit 4 + w to that of the second. */
static inline void five_bits(Stored s, uint4 *first, uint4 *second) {
  const uint4 at = (uint4)(0, 1, 2, 3);
  nibbles(s, first, second);
  *first |= ((uint4)(s.bits.x) >> at & 0x01010101u) << 4;
  *second |= ((uint4)(s.bits.x) >> (at + 4u) & 0x01010101u) << 4;
}
/* A scale, and an offset of so many of it. */
static inline float3 one_scale(Stored s, float offset) {
  const float d = f16_value(s.scale.x);
  return (float3)(d, d, offset * d);
}
/* A scale and a minimum. */
static inline float3 two_scales(Stored s) {
  const float d = f16_value(s.scale.x & 0xffffu);
  return (float3)(d, d, f16_value(s.scale.x >> 16));
}
/* Scale and minimum of group u of a super-block's eight: two f16 and twelve bytes of six-bit numbers. */
static inline float3 six_bit_scales(Stored s, int u) {
  const uint4 h = s.scale;
  const int j = u & 7, by = 8 * (j & 3);
  const uint a = h.y >> by, b = h.z >> by, c = h.w >> by;
  const uint scale = j < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u), least = j < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
  const float d = f16_value(h.x & 0xffffu) * (float)scale;
  return (float3)(d, d, -(f16_value(h.x >> 16) * (float)least));
}

#if HAS(2)
static inline Stored stored_2(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.scale.x = HALF_AT(row + k / 2 + 2 * u);
  return s;
}
static inline void codes_2(Stored s, uint4 *first, uint4 *second) { nibbles(s, first, second); }
static inline float3 scales_2(Stored s, int u) { return one_scale(s, -8.0f); }
#endif
#if HAS(3)
static inline Stored stored_3(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.scale.x = WORD_AT(row + k / 2 + 4 * u);
  return s;
}
static inline void codes_3(Stored s, uint4 *first, uint4 *second) { nibbles(s, first, second); }
static inline float3 scales_3(Stored s, int u) { return two_scales(s); }
#endif
#if HAS(6)
static inline Stored stored_6(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale.x = HALF_AT(row + k / 2 + k / 8 + 2 * u);
  return s;
}
static inline void codes_6(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_6(Stored s, int u) { return one_scale(s, -16.0f); }
#endif
#if HAS(7)
static inline Stored stored_7(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale.x = WORD_AT(row + k / 2 + k / 8 + 4 * u);
  return s;
}
static inline void codes_7(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_7(Stored s, int u) { return two_scales(s); }
#endif
#if HAS(8)
static inline Stored stored_8(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.second = WORDS_AT(row + k / 2 + 16 * u);
  s.scale.x = HALF_AT(row + k + 2 * u);
  return s;
}
static inline void codes_8(Stored s, uint4 *first, uint4 *second) { *first = s.codes, *second = s.second; }
static inline float3 scales_8(Stored s, int u) { return one_scale(s, 0.0f); }
#endif
#if HAS(12)
static inline Stored stored_12(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.scale = WORDS_AT(row + k / 2 + 16 * (u >> 3));
  return s;
}
static inline void codes_12(Stored s, uint4 *first, uint4 *second) { nibbles(s, first, second); }
static inline float3 scales_12(Stored s, int u) { return six_bit_scales(s, u); }
#endif
#if HAS(13)
static inline Stored stored_13(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale = WORDS_AT(row + k / 2 + k / 8 + 16 * (u >> 3));
  return s;
}
static inline void codes_13(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_13(Stored s, int u) { return six_bit_scales(s, u); }
#endif
#if HAS(14)
/* Bytes 0 .. 63 less 32, as signed bytes. */
static inline uint4 less_32(uint4 q) { return ((q | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }
static inline Stored stored_14(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits = *(const ROWS_IN uint2 *)(row + k / 2 + 8 * u);
  s.scale.x = HALF_AT(row + k / 2 + k / 4 + 2 * u);
  s.scale.y = HALF_AT(row + k / 2 + k / 4 + k / 16 + 2 * (u >> 3));
  return s;
}
static inline void codes_14(Stored s, uint4 *first, uint4 *second) {
  const uint4 at = (uint4)(0, 2, 4, 6);
  nibbles(s, first, second);
  *first = less_32(*first | ((uint4)(s.bits.x) >> at & 0x03030303u) << 4);
  *second = less_32(*second | ((uint4)(s.bits.y) >> at & 0x03030303u) << 4);
}
static inline float3 scales_14(Stored s, int u) {
  const char2 scale = as_char2((ushort)s.scale.x);
  const float d = f16_value(s.scale.y);
  return (float3)(d * (float)scale.x, d * (float)scale.y, 0.0f);
}
#endif
