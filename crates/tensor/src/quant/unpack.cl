/* Elements of a row of quantised blocks as a vector of floats: the formats of quant/, whose bytes are drawn at the head of its files.
 *
 * QUANT  the format's number in GGUF files: 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 10 Q2_K, 11 Q3_K, 12 Q4_K, 13 Q5_K, 14 Q6_K,
 *        20 IQ4_NL, 23 IQ4_XS, 35 TQ2_0, 39 MXFP4.
 *
 * unpack(row, at)  elements at .. at + VW - 1 of the row whose first block `row` points to; VW (4, 8 or 16) divides at. A vector stays
 * within one group of elements that share a scale, whose bits lie in neighbouring bytes.
 */
#ifndef QUANT
#define QUANT 0
#endif
#if QUANT
typedef __global const uchar *BLOCK_BYTES;

#define CODES(p) TO_UV(CAT(vload, VW)(0, (p)))
#if WG == 1
/* On processors vload_half of one element may be a call. Infinities and NaNs, which no scale is, come out as large numbers. */
static inline float f16_at(BLOCK_BYTES p) {
  const uint h = p[0] | (uint)p[1] << 8;
  const float normal = as_float(((h & 0x7fffu) << 13) + 0x38000000u), subnormal = (float)(h & 0x3ffu) * 0x1p-24f;
  const float size = h & 0x7c00u ? normal : subnormal;
  return h & 0x8000u ? -size : size;
}
#define F16_AT(p) f16_at(p)
#else
#define F16_AT(p) vload_half(0, (__global const half *)(p))
#endif
#define SHIFTED(v, bits) ((v) >> (UV)((uint)(bits)))
#define NIBBLES(qs, i) (SHIFTED(CODES((qs) + (i) % 16), (i) / 16 * 4) & (UV)(15u))

#if QUANT == 6 || QUANT == 7
/* Bits i .. i + VW - 1 of four bytes, as 16 or 0. */
static inline UV fifth_bits(BLOCK_BYTES high, int i) {
  const uint bits = (high[0] | (uint)high[1] << 8 | (uint)high[2] << 16 | (uint)high[3] << 24) >> i;
  uint each[VW];
  UNROLL for (int l = 0; l < VW; ++l) each[l] = bits >> l << 4 & 16u;
  return CAT(vload, VW)(0, each);
}
#endif

#if QUANT == 20 || QUANT == 23 || QUANT == 39
#if QUANT == 39
__constant float VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#else
__constant float VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#endif
static inline FV looked_up(UV codes) {
  uint code[VW];
  float value[VW];
  CAT(vstore, VW)(codes, 0, code);
  UNROLL for (int l = 0; l < VW; ++l) value[l] = VALUES[code[l]];
  return LDV_F32(value);
}
#endif

#if QUANT == 12 || QUANT == 13
/* Scale and minimum of group g in twelve bytes of six-bit numbers. */
static inline float2 six_bits(BLOCK_BYTES s, int g) {
  const uint scale = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | s[g - 4] >> 6 << 4;
  const uint low = g < 4 ? s[g + 4] & 63u : (uint)s[g + 4] >> 4 | (uint)(s[g] >> 6) << 4;
  return (float2)((float)scale, (float)low);
}
#endif

static inline FV unpack(BLOCK_BYTES row, ulong at) {
#if QUANT == 2
  BLOCK_BYTES b = row + at / 32 * 18;
  const int i = at % 32;
  return (TO_FV(NIBBLES(b + 2, i)) - 8.0f) * F16_AT(b);
#elif QUANT == 3
  BLOCK_BYTES b = row + at / 32 * 20;
  const int i = at % 32;
  return TO_FV(NIBBLES(b + 4, i)) * F16_AT(b) + F16_AT(b + 2);
#elif QUANT == 6
  BLOCK_BYTES b = row + at / 32 * 22;
  const int i = at % 32;
  return (TO_FV(NIBBLES(b + 6, i) | fifth_bits(b + 2, i)) - 16.0f) * F16_AT(b);
#elif QUANT == 7
  BLOCK_BYTES b = row + at / 32 * 24;
  const int i = at % 32;
  return TO_FV(NIBBLES(b + 8, i) | fifth_bits(b + 4, i)) * F16_AT(b) + F16_AT(b + 2);
#elif QUANT == 8
  BLOCK_BYTES b = row + at / 32 * 34;
  return TO_FV(CAT(vload, VW)(0, (__global const char *)(b + 2 + at % 32))) * F16_AT(b);
#elif QUANT == 10
  BLOCK_BYTES b = row + at / 256 * 84;
  const int g = at % 256 / 16, i = at % 16;
  const UV q = SHIFTED(CODES(b + 16 + 32 * (g / 8) + 16 * (g % 2) + i), 2 * (g / 2 % 4)) & (UV)(3u);
  return (F16_AT(b + 80) * (float)(b[g] & 15)) * TO_FV(q) - F16_AT(b + 82) * (float)(b[g] >> 4);
#elif QUANT == 11
  BLOCK_BYTES b = row + at / 256 * 110;
  const int g = at % 256 / 16, i = at % 16;
  const int scale = (b[96 + g % 8] >> (4 * (g / 8)) & 15) | (b[104 + g % 4] >> (2 * (g / 4)) & 3) << 4;
  const UV low = SHIFTED(CODES(b + 32 + 32 * (g / 8) + 16 * (g % 2) + i), 2 * (g / 2 % 4)) & (UV)(3u);
  const UV high = SHIFTED(CODES(b + 16 * (g % 2) + i), g / 2) & (UV)(1u);
  return (F16_AT(b + 108) * (float)(scale - 32)) * (TO_FV(low | high << (UV)(2u)) - 4.0f);
#elif QUANT == 12
  BLOCK_BYTES b = row + at / 256 * 144;
  const int g = at % 256 / 32, i = at % 32;
  const float2 s = six_bits(b + 4, g);
  const UV q = SHIFTED(CODES(b + 16 + 32 * (g / 2) + i), 4 * (g % 2)) & (UV)(15u);
  return (F16_AT(b) * s.x) * TO_FV(q) - F16_AT(b + 2) * s.y;
#elif QUANT == 13
  BLOCK_BYTES b = row + at / 256 * 176;
  const int g = at % 256 / 32, i = at % 32;
  const float2 s = six_bits(b + 4, g);
  const UV low = SHIFTED(CODES(b + 48 + 32 * (g / 2) + i), 4 * (g % 2)) & (UV)(15u);
  const UV high = SHIFTED(CODES(b + 16 + i), g) & (UV)(1u);
  return (F16_AT(b) * s.x) * TO_FV(low | high << (UV)(4u)) - F16_AT(b + 2) * s.y;
#elif QUANT == 14
  BLOCK_BYTES b = row + at / 256 * 210;
  const int g = at % 256 / 16, i = at % 16, h = g / 8, r = g / 2 % 4, l = 16 * (g % 2) + i;
  const UV low = SHIFTED(CODES(b + 64 * h + 32 * (r % 2) + l), 4 * (r / 2)) & (UV)(15u);
  const UV high = SHIFTED(CODES(b + 128 + 32 * h + l), 2 * r) & (UV)(3u);
  return (F16_AT(b + 208) * (float)(char)b[192 + g]) * (TO_FV(low | high << (UV)(4u)) - 32.0f);
#elif QUANT == 20
  BLOCK_BYTES b = row + at / 32 * 18;
  const int i = at % 32;
  return looked_up(NIBBLES(b + 2, i)) * F16_AT(b);
#elif QUANT == 23
  BLOCK_BYTES b = row + at / 256 * 136;
  const int g = at % 256 / 32, i = at % 32;
  const int scale = (b[4 + g / 2] >> (4 * (g % 2)) & 15) | ((b[2] | b[3] << 8) >> (2 * g) & 3) << 4;
  return looked_up(NIBBLES(b + 8 + 16 * g, i)) * (F16_AT(b) * (float)(scale - 32));
#elif QUANT == 35
  BLOCK_BYTES b = row + at / 256 * 66;
  const int g = at % 256 / 32, i = at % 32;
  const UV q = SHIFTED(CODES(b + 32 * (g / 4) + i), 2 * (g % 4)) & (UV)(3u);
  return (TO_FV(q) - 1.0f) * F16_AT(b + 64);
#elif QUANT == 39
  BLOCK_BYTES b = row + at / 32 * 17;
  const int i = at % 32;
  /* 2^(e - 128), also where that is subnormal. */
  const uint scale = b[0] < 2 ? 0x200000u << b[0] : (uint)(b[0] - 1) << 23;
  return looked_up(NIBBLES(b + 1, i)) * as_float(scale);
#else
#error "QUANT: no such format"
#endif
}
#endif
