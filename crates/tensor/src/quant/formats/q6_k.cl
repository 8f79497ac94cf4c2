/* Q6_K: 6.6 bits per element (q6_k.rs).
 *
 * Block    256 elements in 16 groups of 16, 210 bytes: 128 bytes ql, 64 bytes qh, 16 signed bytes scales, f16 d
 * Element  i of group g = d * scales[g] * (q - 32), with h = g / 8, r = g / 2 % 4, l = 16 * (g % 2) + i. The low four bits of q
 *          are the low (r < 2) or high nibble of ql[64 * h + 32 * (r % 2) + l], the others bits 2r and 2r + 1 of qh[32 * h + l].
 *
 * READS_ELEMENTS  defines unpack (unpack.cl)
 * READS_CODES     defines codes and scale (codes.cl); with PLANES, for rows in planes
 * READS_PLANES    defines the stored data, codes and scales of a group (planes.cl)
 */
#ifndef READS_PLANES
#define BLOCK 256
#define BYTES 210
#endif

#ifdef READS_ELEMENTS
static inline FV unpack(BLOCK_BYTES row, ulong at) {
  BLOCK_BYTES b = row + at / BLOCK * BYTES;
  const int g = at % BLOCK / 16, i = at % 16, h = g / 8, r = g / 2 % 4, l = 16 * (g % 2) + i;
  const UV low = SHIFTED(CODES(b + 64 * h + 32 * (r % 2) + l), 4 * (r / 2)) & (UV)(15u);
  const UV high = SHIFTED(CODES(b + 128 + 32 * h + l), 2 * r) & (UV)(3u);
  return (F16_AT(b + 208) * (float)(char)b[192 + g]) * (TO_FV(low | high << (UV)(4u)) - 32.0f);
}
#endif

#ifdef READS_CODES
#define ZERO 32
#define SUB 16
#if PLANES
static inline U codes(PlaneRow b, int g, int w) {
  return PLANE_NIBBLES(b, g, w) | BITS(plane_word(b.row + b.k / 2 + 8 * g + w / 4 * 4), 2 * (w % 4), 3u) << 4;
}
static inline F scale(PlaneRow b, int g, int h) {
  const int at = b.k / 2 + b.k / 4;
  return HALF(b.row, at + b.k / 16 + 2 * (g / 8)) * (float)(char)b.row[at + 2 * g + h];
}
#else
static inline U codes(BLOCK_AT b, int g, int w) {
  return BITS(WORD(b, 64 * (g / 4) + 32 * (g % 2) + 4 * w), 4 * (g % 4 / 2), 15u) |
         BITS(WORD(b, 128 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u) << (U)(4u);
}
static inline F scale(BLOCK_AT b, int g, int h) { return HALF(b, 208) * (TO_F(BYTE(b, 192 + 2 * g + h) ^ (U)(128u)) - 128.0f); }
#endif
#endif

#ifdef READS_PLANES
#define SIGNED_Q6_K 1
#define HALVES_Q6_K 1
/* Subtracts 32 from bytes 0 .. 63 and returns signed bytes. */
static inline uint4 less_32(uint4 q) { return ((q | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }
static inline Stored stored_Q6_K(RowBytes row, int u, int k) {
  Stored s = stored_codes(row, u);
  s.bits = *(const ROWS_IN uint2 *)(row + k / 2 + 8 * u);
  s.scale.x = HALF_AT(row + k / 2 + k / 4 + 2 * u);
  s.scale.y = HALF_AT(row + k / 2 + k / 4 + k / 16 + 2 * (u >> 3));
  return s;
}
static inline void codes_Q6_K(Stored s, uint4 *first, uint4 *second) {
  const uint4 at = (uint4)(0, 2, 4, 6);
  nibbles(s, first, second);
  *first = less_32(*first | ((uint4)(s.bits.x) >> at & 0x03030303u) << 4);
  *second = less_32(*second | ((uint4)(s.bits.y) >> at & 0x03030303u) << 4);
}
static inline float3 scales_Q6_K(Stored s, int u) {
  const char2 scale = as_char2((ushort)s.scale.x);
  const float d = f16_value(s.scale.y);
  return (float3)(d * (float)scale.x, d * (float)scale.y, 0.0f);
}
#endif
