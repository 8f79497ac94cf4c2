/* Q4_K: 4.5 bits per element (q4_k.rs).
 *
 * Block    256 elements in 8 groups of 32, 144 bytes: f16 d, f16 dmin, 12 bytes scales, 128 bytes qs
 * Element  i of group g = d * s * q - dmin * m; q is the low (g even) or high nibble of qs[32 * (g / 2) + i]; s and m are the
 *          six-bit numbers of the group.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes, scale and low (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 * six_bits.cl precedes this file.
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 144
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 32, i = at % 32;
  const float2 s = six_bits(b + 4, g);
  const UV q = SHIFTED(CODES(b + 16 + 32 * (g / 2) + i), 4 * (g % 2)) & (UV)(15u);
  return (F16_AT(b) * s.x) * TO_FV(q) - F16_AT(b + 2) * s.y;
}
#endif

#ifdef READS_CODES
#define LOW 1
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return PLANE_NIBBLES(b, g, w); }
static inline BLOCK_AT head_of(PlaneRow b, int g) { return b.row + b.k / 2 + 16 * (g / 8); }
static inline F scale(PlaneRow b, int g, int h) {
  BLOCK_AT head = head_of(b, g);
  return HALF(head, 0) * TO_F(six_bits_scale(head, g % 8));
}
static inline F low(PlaneRow b, int g, int h) {
  BLOCK_AT head = head_of(b, g);
  return -(HALF(head, 2) * TO_F(six_bits_low(head, g % 8)));
}
#else
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 16 + 32 * (g / 2) + 4 * w), 4 * (g % 2), 15u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0) * TO_F(six_bits_scale(b, g)); }
static inline F low(BLOCK_AT b, int g, int h) { return -(HALF(b, 2) * TO_F(six_bits_low(b, g))); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q4_K 0
#define HALVES_Q4_K 0
static inline Stored stored_Q4_K(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.scale = WORDS_AT(row + k / 2 + 16 * (u >> 3));
  return s;
}
static inline void codes_Q4_K(Stored s, uint4 *first, uint4 *second) { nibbles(s, first, second); }
static inline float3 scales_Q4_K(Stored s, int u) { return six_bit_scales(s, u); }
#endif
