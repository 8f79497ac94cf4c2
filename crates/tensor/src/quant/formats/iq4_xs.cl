/* IQ4_XS: IQ4_NL in super-blocks (iq4_xs.rs). */
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
