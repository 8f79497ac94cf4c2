/* Codes of quantised blocks as they are multiplied in integers: the formats of quant/, whose bytes are drawn at the head of its files.
 *
 *   element = scale * (code - ZERO) + low        code is an unsigned byte
 *
 * QUANT   the format's number, as in unpack.cl.
 * PANELS  0: a block as a file has it; U and F are a word and a float. 1: the blocks of 16 rows side by side (quant/panels.rs), unit by unit;
 *         U and F have a lane for each row.
 * PLANES  1: rows in planes (quant/planes.rs); b is a row and its length, g counts all groups of the row.
 * DOT     how dot4 multiplies: 0 in plain C; with PANELS by instructions of x86: 1 vpdpbusd of 512 bits (AVX-512 VNNI), 2 of 256 bits
 *         (AVX-VNNI), 3 vpmaddubsw (AVX2), whose sums of two products have 16 bits: codes of eight bits are signed there.
 *
 * Of group g, 32 elements, of block b:
 * codes(b, g, w)  a word of the four codes of elements 4w to 4w + 3
 * scale(b, g, h), low(b, g, h)  of half h of the group where SUB is 16, of all of it (h 0) where SUB is 32; LOW 0: low is 0
 * dot4(sum, codes, x)  sum + the products of four codes and the four signed bytes of x
 *
 * BLOCK, BYTES: elements and bytes of a block.
 */
#ifndef QUANT
#define QUANT 2
#endif
#ifndef PANELS
#define PANELS 0
#endif
#ifndef PLANES
#define PLANES 0
#endif
#ifndef DOT
#define DOT 0
#endif

#if QUANT == 2 || QUANT == 20
#define BYTES 18
#elif QUANT == 3
#define BYTES 20
#elif QUANT == 6
#define BYTES 22
#elif QUANT == 7
#define BYTES 24
#elif QUANT == 8
#define BYTES 34
#elif QUANT == 10
#define BYTES 84
#elif QUANT == 11
#define BYTES 110
#elif QUANT == 12
#define BYTES 144
#elif QUANT == 13
#define BYTES 176
#elif QUANT == 14
#define BYTES 210
#elif QUANT == 23
#define BYTES 136
#elif QUANT == 35
#define BYTES 66
#elif QUANT == 39
#define BYTES 17
#else
#error "QUANT: no such format"
#endif

#if QUANT <= 8 || QUANT == 20 || QUANT == 39
#define BLOCK 32
#else
#define BLOCK 256
#endif

/* What codes begin at. */
#define SIGNED (DOT == 3 && (QUANT == 8 || QUANT == 20 || QUANT == 23))
#if SIGNED
#define ZERO 0
#elif QUANT == 2
#define ZERO 8
#elif QUANT == 6
#define ZERO 16
#elif QUANT == 8 || QUANT == 20 || QUANT == 23
#define ZERO 128
#elif QUANT == 11
#define ZERO 4
#elif QUANT == 14
#define ZERO 32
#elif QUANT == 35
#define ZERO 1
#elif QUANT == 39
#define ZERO 12
#else
#define ZERO 0
#endif
#define LOW (QUANT == 3 || QUANT == 7 || QUANT == 10 || QUANT == 12 || QUANT == 13)
#define SUB (QUANT == 10 || QUANT == 11 || QUANT == 14 ? 16 : 32)
#define HALVES (32 / SUB)

/* Units of a block at byte `at`: four bytes, two, one as numbers; two as an f16. */
typedef __global const uchar *BLOCK_AT;
#if PANELS
typedef uint16 U;
typedef int16 I;
typedef float16 F;
#define TO_F(v) convert_float16(v)
#define AS_I(v) as_int16(v)
#define AS_F(v) as_float16(v)
#define PANEL_ROWS 16
#ifdef __clang__
/* PoCL's vload and vstore move narrow elements one by one. */
typedef uint16 __attribute__((aligned(4))) WORDS_ANY;
typedef ushort16 __attribute__((aligned(2))) PAIRS_ANY;
typedef uchar16 __attribute__((aligned(1))) BYTES_ANY;
#define LANES_OF(type, any, p) (*(__global const any *)(p))
#else
#define LANES_OF(type, any, p) vload16(0, (__global const type *)(p))
#endif
#define WORD(b, at) LANES_OF(uint, WORDS_ANY, (b) + PANEL_ROWS * (at))
#define PAIR(b, at) convert_uint16(LANES_OF(ushort, PAIRS_ANY, (b) + PANEL_ROWS * (at)))
#define BYTE(b, at) convert_uint16(LANES_OF(uchar, BYTES_ANY, (b) + PANEL_ROWS * (at)))
static inline F half_at(BLOCK_AT p) {
  const ushort16 h = LANES_OF(ushort, PAIRS_ANY, p);
  return vload_half16(0, (const half *)&h);
}
#define HALF(b, at) half_at((b) + PANEL_ROWS * (at))
#else
typedef uint U;
typedef int I;
typedef float F;
#define TO_F(v) ((float)(v))
#define AS_I(v) as_int(v)
#define AS_F(v) as_float(v)
#define PANEL_ROWS 1
#if BYTES % 2
#define WORD(b, at) ((b)[at] | (uint)(b)[(at) + 1] << 8 | (uint)(b)[(at) + 2] << 16 | (uint)(b)[(at) + 3] << 24)
#else /* blocks begin at even addresses */
#define WORD(b, at) (((__global const ushort *)((b) + (at)))[0] | (uint)((__global const ushort *)((b) + (at)))[1] << 16)
#endif
#define PAIR(b, at) ((b)[at] | (uint)(b)[(at) + 1] << 8)
#define BYTE(b, at) ((uint)(b)[at])
#define HALF(b, at) vload_half(0, (__global const half *)((b) + (at)))
#endif
/* The bits of `mask` of each byte of a word, from bit `from` on. */
#define BITS(word, from, mask) ((word) >> (U)((uint)(from)) & (U)((mask) * 0x01010101u))

#if QUANT == 20 || QUANT == 23 || QUANT == 39
/* The table's values and ZERO, and the same as four words. */
#if QUANT == 39
__constant uchar VALUE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#define FOUR_WORDS 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u
#else
__constant uchar VALUE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
#define FOUR_WORDS 0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u
#endif
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

#if QUANT == 6 || QUANT == 7
/* Bits 4w to 4w + 3 of `high`, each as 16 in a byte of its own. */
static inline U fifth_bits(U high, int w) {
  const U h = high >> (U)((uint)(4 * w)) & (U)(15u);
  return ((h | h << (U)(7u) | h << (U)(14u) | h << (U)(21u)) & (U)(0x01010101u)) << (U)(4u);
}
#endif

#if PLANES
/* See quant/planes.rs for what lies where. */
typedef struct {
  __global const uchar *row;
  int k;
} PlaneRow;
static inline U plane_word(__global const uchar *p) { return *(__global const uint *)p; }
static inline U codes(PlaneRow b, int g, int w) {
#if QUANT == 8
  return plane_word(b.row + w / 4 * (b.k / 2) + 16 * g + 4 * (w % 4)) ^ 0x80808080u;
#else
  const U low_bits = BITS(plane_word(b.row + 16 * g + 4 * (w % 4)), w / 4 * 4, 15u);
#if QUANT == 6 || QUANT == 7 || QUANT == 13
  return low_bits | BITS(plane_word(b.row + b.k / 2 + 4 * g), w, 1u) << 4;
#elif QUANT == 14
  return low_bits | BITS(plane_word(b.row + b.k / 2 + 8 * g + w / 4 * 4), 2 * (w % 4), 3u) << 4;
#else
  return low_bits;
#endif
#endif
}
#else
static inline U codes(BLOCK_AT b, int g, int w) {
#if QUANT == 2
  return BITS(WORD(b, 2 + 4 * (w % 4)), w / 4 * 4, 15u);
#elif QUANT == 3
  return BITS(WORD(b, 4 + 4 * (w % 4)), w / 4 * 4, 15u);
#elif QUANT == 6
  return BITS(WORD(b, 6 + 4 * (w % 4)), w / 4 * 4, 15u) | fifth_bits(WORD(b, 2), w);
#elif QUANT == 7
  return BITS(WORD(b, 8 + 4 * (w % 4)), w / 4 * 4, 15u) | fifth_bits(WORD(b, 4), w);
#elif QUANT == 8
  return WORD(b, 2 + 4 * w) ^ (U)(SIGNED ? 0u : 0x80808080u);
#elif QUANT == 10
  return BITS(WORD(b, 16 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u);
#elif QUANT == 11
  return BITS(WORD(b, 32 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u) | BITS(WORD(b, 4 * w), g, 1u) << (U)(2u);
#elif QUANT == 12
  return BITS(WORD(b, 16 + 32 * (g / 2) + 4 * w), 4 * (g % 2), 15u);
#elif QUANT == 13
  return BITS(WORD(b, 48 + 32 * (g / 2) + 4 * w), 4 * (g % 2), 15u) | BITS(WORD(b, 16 + 4 * w), g, 1u) << (U)(4u);
#elif QUANT == 14
  return BITS(WORD(b, 64 * (g / 4) + 32 * (g % 2) + 4 * w), 4 * (g % 4 / 2), 15u) |
         BITS(WORD(b, 128 + 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u) << (U)(4u);
#elif QUANT == 20
  return values(BITS(WORD(b, 2 + 4 * (w % 4)), w / 4 * 4, 15u));
#elif QUANT == 23
  return values(BITS(WORD(b, 8 + 16 * g + 4 * (w % 4)), w / 4 * 4, 15u));
#elif QUANT == 35
  return BITS(WORD(b, 32 * (g / 4) + 4 * w), 2 * (g % 4), 3u);
#else
  return values(BITS(WORD(b, 1 + 4 * (w % 4)), w / 4 * 4, 15u));
#endif
}
#endif

#if QUANT == 12 || QUANT == 13
/* Scale and minimum of a group in twelve bytes of six-bit numbers. */
static inline U six_bits_scale(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 4 + g) & (U)(63u) : (BYTE(b, 8 + g) & (U)(15u)) | BYTE(b, g) >> (U)(6u) << (U)(4u);
}
static inline U six_bits_low(BLOCK_AT b, int g) {
  return g < 4 ? BYTE(b, 8 + g) & (U)(63u) : BYTE(b, 8 + g) >> (U)(4u) | BYTE(b, 4 + g) >> (U)(6u) << (U)(4u);
}
#endif

#if PLANES
/* Where a group's scales begin. */
static inline BLOCK_AT plane_scales(PlaneRow b, int g) {
  const int further = b.k / 2 + (QUANT == 6 || QUANT == 7 || QUANT == 13 ? b.k / 8 : 0);
  return b.row + further + (QUANT == 12 || QUANT == 13 ? 16 * (g / 8) : (QUANT == 3 || QUANT == 7 ? 4 : 2) * g);
}
static inline F scale(PlaneRow b, int g, int h) {
#if QUANT == 8
  return HALF(b.row, b.k + 2 * g);
#elif QUANT == 12 || QUANT == 13
  BLOCK_AT head = plane_scales(b, g);
  return HALF(head, 0) * TO_F(six_bits_scale(head, g % 8));
#elif QUANT == 14
  const int at = b.k / 2 + b.k / 4;
  return HALF(b.row, at + b.k / 16 + 2 * (g / 8)) * (float)(char)b.row[at + 2 * g + h];
#else
  return HALF(plane_scales(b, g), 0);
#endif
}
#if LOW
static inline F low(PlaneRow b, int g, int h) {
  BLOCK_AT p = plane_scales(b, g);
#if QUANT == 3 || QUANT == 7
  return HALF(p, 2);
#else
  return -(HALF(p, 2) * TO_F(six_bits_low(p, g % 8)));
#endif
}
#endif
#else
static inline F scale(BLOCK_AT b, int g, int h) {
#if QUANT <= 8 || QUANT == 20
  return HALF(b, 0);
#elif QUANT == 10
  return HALF(b, 80) * TO_F(BYTE(b, 2 * g + h) & (U)(15u));
#elif QUANT == 11
  const int of = 2 * g + h;
  const U low_bits = BYTE(b, 96 + of % 8) >> (U)((uint)(of / 8 * 4)) & (U)(15u);
  const U high_bits = BYTE(b, 104 + of % 4) >> (U)((uint)(of / 4 * 2)) & (U)(3u);
  return HALF(b, 108) * (TO_F(low_bits | high_bits << (U)(4u)) - 32.0f);
#elif QUANT == 12 || QUANT == 13
  return HALF(b, 0) * TO_F(six_bits_scale(b, g));
#elif QUANT == 14
  return HALF(b, 208) * (TO_F(BYTE(b, 192 + 2 * g + h) ^ (U)(128u)) - 128.0f);
#elif QUANT == 23
  const U low_bits = BYTE(b, 4 + g / 2) >> (U)((uint)(g % 2 * 4)) & (U)(15u);
  const U high_bits = PAIR(b, 2) >> (U)((uint)(2 * g)) & (U)(3u);
  return HALF(b, 0) * (TO_F(low_bits | high_bits << (U)(4u)) - 32.0f);
#elif QUANT == 35
  return HALF(b, 64);
#else
  /* 2^(e - 128), also where that is subnormal. */
  const U e = BYTE(b, 0), normal = (e - (U)(1u)) << (U)(23u), subnormal = (U)(0x200000u) << (e & (U)(1u));
#if PANELS
  return AS_F(select(normal, subnormal, e < (U)(2u)));
#else
  return AS_F(e < 2u ? subnormal : normal);
#endif
#endif
}

#if LOW
static inline F low(BLOCK_AT b, int g, int h) {
#if QUANT == 3 || QUANT == 7
  return HALF(b, 2);
#elif QUANT == 10
  return -(HALF(b, 82) * TO_F(BYTE(b, 2 * g + h) >> (U)(4u)));
#else
  return -(HALF(b, 2) * TO_F(six_bits_low(b, g)));
#endif
}
#endif
#endif

#if DOT >= 2
/* The same of half of the rows. */
static inline int8 dot4_half(int8 sum, uint8 codes, int8 x) {
#if DOT == 2
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
  return sum;
#else
  const int8 ones = (int8)(0x00010001);
  int8 pairs, all;
#if SIGNED
  uint8 sizes;
  __asm__("vpabsb %1, %0" : "=x"(sizes) : "x"(codes));
  __asm__("vpsignb %2, %1, %0" : "=x"(x) : "x"(x), "x"(codes));
  codes = sizes;
#endif
  __asm__("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(codes), "x"(x));
  __asm__("vpmaddwd %2, %1, %0" : "=x"(all) : "x"(pairs), "x"(ones));
  return sum + all;
#endif
}
#endif

static inline I dot4(I sum, U codes, int x) {
#if DOT == 1
  const I of = (I)(x);
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(of));
  return sum;
#elif DOT
  const int8 of = (int8)(x);
  return (I)(dot4_half(sum.lo, codes.lo, of), dot4_half(sum.hi, codes.hi, of));
#elif !PANELS && NVIDIA_CC >= 61
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(codes), "r"(x), "r"(sum));
  return r;
#elif !PANELS && defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
  return sum + dot_4x8packed_us_int(codes, as_uint(x));
#else
  sum += AS_I(codes & (U)(255u)) * (I)(x << 24 >> 24);
  sum += AS_I(codes >> (U)(8u) & (U)(255u)) * (I)(x << 16 >> 24);
  sum += AS_I(codes >> (U)(16u) & (U)(255u)) * (I)(x << 8 >> 24);
  return sum + AS_I(codes >> (U)(24u)) * (I)(x >> 24);
#endif
}
