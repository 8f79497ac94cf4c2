/* Q5_1: five bits per element, a scale and an offset (q5_1.rs).
 *
 * Block    32 elements, 24 bytes: f16 d, f16 m, 4 bytes qh, 16 bytes qs
 * Element  i = d * q + m; the low four bits of q are the low nibble of qs[i] for i < 16, otherwise the high nibble of
 *          qs[i - 16]; the fifth is bit i of qh, a little-endian word.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes, scale and low (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 * fifth_bits.cl precedes this file.
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 24
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int i = at % BLOCK;
  return TO_FV(NIBBLES(b + 8, i) | fifth_bits(b + 4, i)) * F16_AT(b) + F16_AT(b + 2);
}
#endif

#ifdef READS_CODES
#define LOW 1
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return PLANE_NIBBLES(b, g, w) | PLANE_FIFTH(b, g, w); }
static inline F scale(PlaneRow b, int g, int h) { return HALF(b.row + (b.k / 2 + b.k / 8) + 4 * g, 0); }
static inline F low(PlaneRow b, int g, int h) { return HALF(b.row + (b.k / 2 + b.k / 8) + 4 * g, 2); }
#else
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 8 + 4 * (w % 4)), w / 4 * 4, 15u) | fifth_bits(WORD(b, 4), w); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0); }
static inline F low(BLOCK_AT b, int g, int h) { return HALF(b, 2); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q5_1 0
#define HALVES_Q5_1 0
static inline Stored stored_Q5_1(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale.x = WORD_AT(row + k / 2 + k / 8 + 4 * u);
  return s;
}
static inline void codes_Q5_1(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_Q5_1(Stored s, int u) { return two_scales(s); }
#endif
