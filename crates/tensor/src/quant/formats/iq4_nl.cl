/* IQ4_NL: a nibble per element, which indexes a table, and a scale (iq4_nl.rs).
 *
 * Block    32 elements, 18 bytes: f16 d, 16 bytes qs
 * Element  i = d * VALUES[q]; q is the low nibble of qs[i] for i < 16, otherwise the high nibble of qs[i - 16].
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl)
 * normal.cl, which has the table, and sixteen.cl precede this file.
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 18
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int i = at % BLOCK;
  return looked_up(NIBBLES(b + 2, i)) * F16_AT(b);
}
#endif

#ifdef READS_CODES
static inline U codes(BLOCK_AT b, int g, int w) { return values(BITS(WORD(b, 2 + 4 * (w % 4)), w / 4 * 4, 15u)); }
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 0); }
#endif
