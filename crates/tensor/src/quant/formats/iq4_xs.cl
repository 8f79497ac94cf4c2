/* IQ4_XS: IQ4_NL in super-blocks (iq4_xs.rs).
 *
 * Block    256 elements in 8 groups of 32, 136 bytes: f16 d, 2 bytes scales_h, 4 bytes scales_l, 128 bytes qs
 * Element  i of group g = d * (s - 32) * VALUES[q]; q is the low nibble of qs[16 * g + i] for i < 16, otherwise the high nibble of
 *          qs[16 * g + i - 16]. The low four bits of s are nibble g % 2 of scales_l[g / 2], the others the bits of scales_h, a
 *          little-endian number, from bit 2g on.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl)
 * normal.cl, which has the table, and sixteen.cl precede this file.
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 136
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 32, i = at % 32;
  const int scale = (b[4 + g / 2] >> (4 * (g % 2)) & 15) | ((b[2] | b[3] << 8) >> (2 * g) & 3) << 4;
  return looked_up(NIBBLES(b + 8 + 16 * g, i)) * (F16_AT(b) * (float)(scale - 32));
}
#endif

#ifdef READS_CODES
static inline U codes(BLOCK_AT b, int g, int w) { return values(BITS(WORD(b, 8 + 16 * g + 4 * (w % 4)), w / 4 * 4, 15u)); }
static inline F scale(BLOCK_AT b, int g, int h) {
  const U low_bits = BYTE(b, 4 + g / 2) >> (U)((uint)(g % 2 * 4)) & (U)(15u);
  const U high_bits = PAIR(b, 2) >> (U)((uint)(2 * g)) & (U)(3u);
  return HALF(b, 0) * (TO_F(low_bits | high_bits << (U)(4u)) - 32.0f);
}
#endif
