/* Reads scale and minimum of one of 8 groups from twelve bytes of six-bit numbers (six_bits.rs has the layout).
 *
 * READS_ELEMENTS  six_bits(s, g)  the twelve bytes s -> scale and minimum of group g as floats
 * READS_CODES     six_bits_scale(b, g), six_bits_low(b, g)  block b -> scale, minimum of group g as integers, with a lane per row for PANELS
 */
#ifdef READS_ELEMENTS
static inline float2 six_bits(BLOCK_BYTES s, int g) {
  const uint scale = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | s[g - 4] >> 6 << 4;
  const uint low = g < 4 ? s[g + 4] & 63u : (uint)s[g + 4] >> 4 | (uint)(s[g] >> 6) << 4;
  return (float2)((float)scale, (float)low);
}
#endif

#ifdef READS_CODES
/* Reads them from the first 16 bytes of a block, where two f16 precede the six-bit numbers. */
static inline U six_bits_scale(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 4 + g) & (U)(63u) : (BYTE(b, 8 + g) & (U)(15u)) | BYTE(b, g) >> (U)(6u) << (U)(4u);
}
static inline U six_bits_low(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 8 + g) & (U)(63u) : BYTE(b, 8 + g) >> (U)(4u) | BYTE(b, 4 + g) >> (U)(6u) << (U)(4u);
}
#endif
