/* IQ4_NL: a nibble per element, which is an index in a table, and a scale (iq4_nl.rs). */
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
