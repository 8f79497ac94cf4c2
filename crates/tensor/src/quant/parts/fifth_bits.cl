/* Reads fifth bits of 32 codes from a word: bit i belongs to element i.
 *
 * READS_ELEMENTS  fifth_bits(high, i)  four bytes `high` -> bits i to i + VW - 1, each as 16 or 0 in a separate lane
 * READS_CODES     fifth_bits(high, w)  word `high` -> bits 4w to 4w + 3, each as 16 or 0 in a separate byte
 */
#ifdef READS_ELEMENTS
/* Returns bits i .. i + VW - 1 of four bytes, as 16 or 0. */
static inline UV fifth_bits(BLOCK_BYTES high, int i) {
  const uint bits = (high[0] | (uint)high[1] << 8 | (uint)high[2] << 16 | (uint)high[3] << 24) >> i;
  uint each[VW];
  UNROLL for (int l = 0; l < VW; ++l) each[l] = bits >> l << 4 & 16u;
  return CAT(vload, VW)(0, each);
}
#endif

#ifdef READS_CODES
/* Returns bits 4w to 4w + 3 of `high`, each as 16 in a separate byte. */
static inline U fifth_bits(U high, int w) {
  const U h = high >> (U)((uint)(4 * w)) & (U)(15u);
  return ((h | h << (U)(7u) | h << (U)(14u) | h << (U)(21u)) & (U)(0x01010101u)) << (U)(4u);
}
#endif
