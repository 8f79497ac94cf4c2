/* Scale and minimum of a group in twelve bytes of six-bit numbers. */
#ifdef READS_ELEMENTS
static inline float2 six_bits(BLOCK_BYTES s, int g) {
  const uint scale = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | s[g - 4] >> 6 << 4;
  const uint low = g < 4 ? s[g + 4] & 63u : (uint)s[g + 4] >> 4 | (uint)(s[g] >> 6) << 4;
  return (float2)((float)scale, (float)low);
}
#endif

#ifdef READS_CODES
/* Variants for the first 16 bytes of a block, in which two f16 precede the six-bit numbers. */
static inline U six_bits_scale(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 4 + g) & (U)(63u) : (BYTE(b, 8 + g) & (U)(15u)) | BYTE(b, g) >> (U)(6u) << (U)(4u);
}
static inline U six_bits_low(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 8 + g) & (U)(63u) : BYTE(b, 8 + g) >> (U)(4u) | BYTE(b, 4 + g) >> (U)(6u) << (U)(4u);
}
#endif
