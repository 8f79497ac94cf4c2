/* Groups of 32 elements of quantized rows in planes (planes.rs has the layout): codes as bytes, and their scales.
 *
 *   element i of group u = scale of its half * code + offset       codes 0 .. 15 are the first half
 *
 * For a format F:
 * stored_F(row, u, k)                  the stored words of group u of a row of k elements
 * codes_F(stored, &first, &second)     the codes of both halves, four per word
 * scales_F(stored, u)                  scale of the first half, of the second, offset
 * SIGNED_F                             whether the codes are signed
 * HALVES_F                             1: each half has a separate scale
 * The source of the format (formats/), or of several formats, follows this one. READS_PLANES makes it define these.
 *
 * Defines: ROWS_IN, the address space of rows.
 */
#ifndef ROWS_IN
#define ROWS_IN __global
#endif
#define READS_PLANES
typedef const ROWS_IN uchar *RowBytes;

/* Words of a group: codes, those of the second half if stored separately, upper bits of codes, scales. */
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

/* Unpacks sixteen bytes of two codes each. */
static inline void nibbles(Stored s, uint4 *first, uint4 *second) {
  *first = s.codes & 0x0f0f0f0fu;
  *second = s.codes >> 4 & 0x0f0f0f0fu;
}
/* Unpacks nibbles, and fifth bits from a word: bit w of each byte belongs to word w of the first half, bit 4 + w to that of the second. */
static inline void five_bits(Stored s, uint4 *first, uint4 *second) {
  const uint4 at = (uint4)(0, 1, 2, 3);
  nibbles(s, first, second);
  *first |= ((uint4)(s.bits.x) >> at & 0x01010101u) << 4;
  *second |= ((uint4)(s.bits.x) >> (at + 4u) & 0x01010101u) << 4;
}
/* Returns a scale, twice, and an offset in units of it. */
static inline float3 one_scale(Stored s, float offset) {
  const float d = f16_value(s.scale.x);
  return (float3)(d, d, offset * d);
}
/* Returns a scale, twice, and a minimum. */
static inline float3 two_scales(Stored s) {
  const float d = f16_value(s.scale.x & 0xffffu);
  return (float3)(d, d, f16_value(s.scale.x >> 16));
}
/* Returns scale and minimum of group u of a super-block's eight: two f16 and twelve bytes of six-bit numbers. */
static inline float3 six_bit_scales(Stored s, int u) {
  const uint4 h = s.scale;
  const int j = u & 7, by = 8 * (j & 3);
  const uint a = h.y >> by, b = h.z >> by, c = h.w >> by;
  const uint scale = j < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u), least = j < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
  const float d = f16_value(h.x & 0xffffu) * (float)scale;
  return (float3)(d, d, -(f16_value(h.x >> 16) * (float)least));
}
