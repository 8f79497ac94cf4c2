/* TQ2_0: 2.1 bits per element: -1, 0 or 1 times a scale (tq2_0.rs).
 *
 * Block    256 elements, 66 bytes: 64 bytes qs, f16 d
 * Element  i = d * (q - 1); q is the two bits of qs[32 * (i / 128) + i % 32] from bit 2 * (i / 32 % 4) on.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 66
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 32, i = at % 32;
  const UV q = SHIFTED(CODES(b + 32 * (g / 4) + i), 2 * (g % 4)) & (UV)(3u);
  return (TO_FV(q) - 1.0f) * F16_AT(b + 64);
}
#endif

#ifdef READS_CODES
#define ZERO 1
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 64); }
#endif
