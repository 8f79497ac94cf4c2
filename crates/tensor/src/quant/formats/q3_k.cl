/* Q3_K: 3.4 bits per element (q3_k.rs).
 *
 * Block    256 elements in 16 groups of 16, 110 bytes: 32 bytes hmask, 64 bytes qs, 12 bytes scales, f16 d
 * Element  i of group g = d * (s - 32) * (q - 4). The low two bits of q are those of qs[32 * (g / 8) + 16 * (g % 2) + i] from
 *          bit 2 * (g / 2 % 4) on, the third is bit g / 2 of hmask[16 * (g % 2) + i]. The low four bits of s are the low (g < 8)
 *          or high nibble of scales[g % 8], the others the bits of scales[8 + g % 4] from bit 2 * (g / 4) on.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 110
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 16, i = at % 16;
  const int scale = (b[96 + g % 8] >> (4 * (g / 8)) & 15) | (b[104 + g % 4] >> (2 * (g / 4)) & 3) << 4;
  const UV low = SHIFTED(CODES(b + 32 + 32 * (g / 8) + 16 * (g % 2) + i), 2 * (g / 2 % 4)) & (UV)(3u);
  const UV high = SHIFTED(CODES(b + 16 * (g % 2) + i), g / 2) & (UV)(1u);
  return (F16_AT(b + 108) * (float)(scale - 32)) * (TO_FV(low | high << (UV)(2u)) - 4.0f);
}
#endif

#ifdef READS_CODES
#define ZERO 4
#define SUB 16
static inline U codes(BLOCK_AT b, int g, int w) { return BITS(WORD(b, 32 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u) | BITS(WORD(b, 4 * w), g, 1u) << (U)(2u); }
static inline F scale(BLOCK_AT b, int g, int h) {
  const int of = 2 * g + h;
  const U low_bits = BYTE(b, 96 + of % 8) >> (U)((uint)(of / 8 * 4)) & (U)(15u);
  const U high_bits = BYTE(b, 104 + of % 4) >> (U)((uint)(of / 4 * 2)) & (U)(3u);
  return HALF(b, 108) * (TO_F(low_bits | high_bits << (U)(4u)) - 32.0f);
}
#endif
