/* Q8_0: bytes and a scale (q8_0.rs).
 *
 * Block    32 elements, 34 bytes: f16 d, 32 signed bytes qs
 * Element  i = d * qs[i]. Codes are qs[i] + 128, except for DOT 3, where they are qs[i].
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 34
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  return TO_FV(CAT(vload, VW)(0, (__global const char *)(b + 2 + at % BLOCK))) * F16_AT(b);
}
#endif

#ifdef READS_CODES
#define SIGNED (DOT == 3)
#if SIGNED
#define ZERO 0
#else
#define ZERO 128
#endif
#if PLANES
static inline U codes(PlaneRow b, int g, int w) { return plane_word(b.row + w / 4 * (b.k / 2) + 16 * g + 4 * (w % 4)) ^ 0x80808080u; }
static inline F scale(PlaneRow b, int g, int h) { return HALF(b.row, b.k + 2 * g); }
#else
static inline U codes(BLOCK_AT b, int g, int w) { return WORD(b, 2 + 4 * w) ^ (U)(SIGNED ? 0u : 0x80808080u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q8_0 1
#define HALVES_Q8_0 0
static inline Stored stored_Q8_0(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.second = WORDS_AT(row + k / 2 + 16 * u);
  s.scale.x = HALF_AT(row + k + 2 * u);
  return s;
}
static inline void codes_Q8_0(Stored s, uint4 *first, uint4 *second) { *first = s.codes, *second = s.second; }
static inline float3 scales_Q8_0(Stored s, int u) { return one_scale(s, 0.0f); }
#endif
