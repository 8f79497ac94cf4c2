/* Q4_0: a nibble per element, and a scale (q4_0.rs).
 *
 * Block    32 elements, 18 bytes: f16 d, 16 bytes qs
 * Element  i = d * (q - 8); q is the low nibble of qs[i] for i < 16, otherwise the high nibble of qs[i - 16].
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 18
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int i = at % BLOCK;
  return (TO_FV(NIBBLES(b + 2, i)) - 8.0f) * F16_AT(b);
}
#endif

#ifdef READS_CODES
#define ZERO 8
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return PLANE_NIBBLES(b, g, w); }
static inline F scale(PlaneRow b, int g, int h) { return HALF(b.row + b.k / 2 + 2 * g, 0); }
#else
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 2 + 4 * (w % 4)), w / 4 * 4, 15u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q4_0 0
#define HALVES_Q4_0 0
static inline Stored stored_Q4_0(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.scale.x = HALF_AT(row + k / 2 + 2 * u);
  return s;
}
static inline void codes_Q4_0(Stored s, uint4 *first, uint4 *second) { nibbles(s, first, second); }
static inline float3 scales_Q4_0(Stored s, int u) { return one_scale(s, -8.0f); }
#endif
