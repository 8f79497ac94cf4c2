/* Q5_K: 5.5 bits per element (q5_k.rs).
 *
 * Block    256 elements in 8 groups of 32, 176 bytes: f16 d, f16 dmin, 12 bytes scales, 32 bytes qh, 128 bytes qs
 * Element  i of group g = d * s * q - dmin * m; the low four bits of q are the low (g even) or high nibble of
 *          qs[32 * (g / 2) + i], the fifth is bit g of qh[i]; s and m are the six-bit numbers of the group.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes, scale and low (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 * six_bits.cl precedes this file.
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 176
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 32, i = at % 32;
  const float2 s = six_bits(b + 4, g);
  const UV low = SHIFTED(CODES(b + 48 + 32 * (g / 2) + i), 4 * (g % 2)) & (UV)(15u);
  const UV high = SHIFTED(CODES(b + 16 + i), g) & (UV)(1u);
  return (F16_AT(b) * s.x) * TO_FV(low | high << (UV)(4u)) - F16_AT(b + 2) * s.y;
}
#endif

#ifdef READS_CODES
#define LOW 1
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return PLANE_NIBBLES(b, g, w) | PLANE_FIFTH(b, g, w); }
static inline BLOCK_AT head_of(PlaneRow b, int g) { return b.row + (b.k / 2 + b.k / 8) + 16 * (g / 8); }
static inline F scale(PlaneRow b, int g, int h) {
  BLOCK_AT head = head_of(b, g);
  return HALF(head, 0) * TO_F(six_bits_scale(head, g % 8));
}
static inline F low(PlaneRow b, int g, int h) {
  BLOCK_AT head = head_of(b, g);
  return -(HALF(head, 2) * TO_F(six_bits_low(head, g % 8)));
}
#else
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 48 + 32 * (g / 2) + 4 * w), 4 * (g % 2), 15u) | BITS(WORD(b, 16 + 4 * w), g, 1u) << (U)(4u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0) * TO_F(six_bits_scale(b, g)); }
static inline F low(BLOCK_AT b, int g, int h) { return -(HALF(b, 2) * TO_F(six_bits_low(b, g))); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q5_K 0
#define HALVES_Q5_K 0
static inline Stored stored_Q5_K(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale = WORDS_AT(row + k / 2 + k / 8 + 16 * (u >> 3));
  return s;
}
static inline void codes_Q5_K(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_Q5_K(Stored s, int u) { return six_bit_scales(s, u); }
#endif
