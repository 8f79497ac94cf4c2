/* Q2_K: 2.6 bits per element (q2_k.rs).
 *
 * Block    256 elements in 16 groups of 16, 84 bytes: 16 bytes scales, 64 bytes qs, f16 d, f16 dmin
 * Element  i of group g = d * s * q - dmin * m; s is the low and m the high nibble of scales[g]; q is the two bits of
 *          qs[32 * (g / 8) + 16 * (g % 2) + i] from bit 2 * (g / 2 % 4) on.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes, scale and low (codes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 84
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 16, i = at % 16;
  const UV q = SHIFTED(CODES(b + 16 + 32 * (g / 8) + 16 * (g % 2) + i), 2 * (g / 2 % 4)) & (UV)(3u);
  return (F16_AT(b + 80) * (float)(b[g] & 15)) * TO_FV(q) - F16_AT(b + 82) * (float)(b[g] >> 4);
}
#endif

#ifdef READS_CODES
#define SUB 16
#define LOW 1
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 16 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 80) * TO_F(BYTE(b, 2 * g + h) & (U)(15u)); }
static inline F low(BLOCK_AT b, int g, int h) { return -(HALF(b, 82) * TO_F(BYTE(b, 2 * g + h) >> (U)(4u))); }
#endif
