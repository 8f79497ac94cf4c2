/* Codes that index a table of 16 values, whose source (normal.cl, e2m1.cl) precedes this file.
 *
 * READS_ELEMENTS  looked_up(codes)  VW codes 0 .. 15 -> their values, floats
 * READS_CODES     values(codes)     four codes per word, one per byte -> their bytes of the table; a vector of words with PANELS
 *
 * Defines: DOT (codes.cl). With DOT above 0, vpshufb looks up 64 bytes (1) or 32 bytes (2, 3) at a time; with 3 and SIGNED, results are signed bytes.
 */
#ifdef READS_ELEMENTS
static inline FV looked_up(UV codes) {
  uint code[VW];
  float value[VW];
  CAT(vstore, VW)(codes, 0, code);
  UNROLL for (int l = 0; l < VW; ++l) value[l] = VALUES[code[l]];
  return LDV_F32(value);
}
#endif

#ifdef READS_CODES
static inline uint four_values(uint codes) {
  return VALUE[codes & 15u] | (uint)VALUE[codes >> 8 & 15u] << 8 | (uint)VALUE[codes >> 16 & 15u] << 16 | (uint)VALUE[codes >> 24] << 24;
}
static inline U values(U codes) {
#if DOT == 1
  const uint16 table = (uint16)(FOUR_WORDS, FOUR_WORDS, FOUR_WORDS, FOUR_WORDS);
  uint16 found;
  __asm__("vpshufb %2, %1, %0" : "=v"(found) : "v"(table), "v"(codes));
  return found;
#elif DOT
  const uint8 table = (uint8)(FOUR_WORDS, FOUR_WORDS);
  uint8 low, high;
  __asm__("vpshufb %2, %1, %0" : "=x"(low) : "x"(table), "x"(codes.lo));
  __asm__("vpshufb %2, %1, %0" : "=x"(high) : "x"(table), "x"(codes.hi));
  return (uint16)(low, high) ^ (SIGNED ? 0x80808080u : 0u);
#elif PANELS
  uint word[PANEL_ROWS];
  vstore16(codes, 0, word);
  for (int r = 0; r < PANEL_ROWS; ++r) word[r] = four_values(word[r]);
  return vload16(0, word);
#else
  return four_values(codes);
#endif
}
#endif
