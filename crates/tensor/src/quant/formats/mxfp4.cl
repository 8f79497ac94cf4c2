/* MXFP4: a nibble per element, and a power of two (mxfp4.rs).
 *
 * Block    32 elements, 17 bytes: byte e, 16 bytes qs
 * Element  i = 2^(e - 128) * VALUES[q]; q is the low nibble of qs[i] for i < 16, otherwise the high nibble of qs[i - 16]. The table has
 *          twice the values.
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl)
 * e2m1.cl, which has the table, and sixteen.cl precede this file.
 */
#ifndef READS_PLANES
#define BLOCK 32
#define BYTES 17
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int i = at % BLOCK;
  /* 2^(e - 128), also if this is subnormal. */
  const uint scale = b[0] < 2 ? 0x200000u << b[0] : (uint)(b[0] - 1) << 23;
  return looked_up(NIBBLES(b + 1, i)) * as_float(scale);
}
#endif

#ifdef READS_CODES
static inline U codes(BLOCK_AT b, int g, int w) { return values(BITS(ODD_WORD(b, 1 + 4 * (w % 4)), w / 4 * 4, 15u)); }
static inline F scale(BLOCK_AT b, int g, int h) {
  /* 2^(e - 128), also if this is subnormal. */
  const U e = BYTE(b, 0), normal = (e - (U)(1u)) << (U)(23u), subnormal = (U)(0x200000u) << (e & (U)(1u));
#if PANELS
  return AS_F(select(normal, subnormal, e < (U)(2u)));
#else
  return AS_F(e < 2u ? subnormal : normal);
#endif
}
#endif
