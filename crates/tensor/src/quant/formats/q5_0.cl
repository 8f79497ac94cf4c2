/* Q5_0: five bits per element, and a scale (q5_0.rs).
 *
 * Block    32 elements, 22 bytes: f16 d, 4 bytes qh, 16 bytes qs
 * Element  i = d * (q - 16); the low four bits of q are the low nibble of qs[i] for i < 16, otherwise the high nibble of
 *          qs[i - 16]; the fifth is bit i of qh, a little-endian word.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 * fifth_bits.cl precedes this file.
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 22
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int i = at % BLOCK;
  return (TO_FV(NIBBLES(b + 6, i) | fifth_bits(b + 2, i)) - 16.0f) * F16_AT(b);
}
#endif

#ifdef READS_CODES
#define ZERO 16
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return PLANE_NIBBLES(b, g, w) | PLANE_FIFTH(b, g, w); }
static inline F scale(PlaneRow b, int g, int h) { return HALF(b.row + (b.k / 2 + b.k / 8) + 2 * g, 0); }
#else
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 6 + 4 * (w % 4)), w / 4 * 4, 15u) | fifth_bits(WORD(b, 2), w); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q5_0 0
#define HALVES_Q5_0 0
static inline Stored stored_Q5_0(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits.x = WORD_AT(row + k / 2 + 4 * u);
  s.scale.x = HALF_AT(row + k / 2 + k / 8 + 2 * u);
  return s;
}
static inline void codes_Q5_0(Stored s, uint4 *first, uint4 *second) { five_bits(s, first, second); }
static inline float3 scales_Q5_0(Stored s, int u) { return one_scale(s, -16.0f); }
#endif
