/* Codes of quantized blocks for integer products.
 *
 *   element = scale * (code - ZERO) + low        code is an unsigned byte
 *
 * PANELS  0: a block as in a file; U and F are a word and a float. 1: interleaved blocks of 16 rows (quant/panels.rs), unit by unit;
 *         U and F have a lane for each row.
 * PLANES  1: rows in planes (quant/planes.rs); b is a row and its length, g counts all groups of the row.
 * DOT     how dot4 multiplies: 0 in plain C; with PANELS by x86 instructions: 1 vpdpbusd of 512 bits (AVX-512 VNNI), 2 of 256 bits
 *         (AVX-VNNI), 3 vpmaddubsw (AVX2), whose sums of two products have 16 bits, so 8-bit codes are signed.
 *
 * The source of a format (formats/) follows this one, and codes_dot.cl follows that source. For group g, 32 elements, of block b it defines
 * codes(b, g, w)  a word of the four codes of elements 4w to 4w + 3
 * scale(b, g, h), low(b, g, h)  those of half h of the group if SUB is 16, and of the whole group (h 0) if SUB is 32; LOW 0: low is 0
 * BLOCK, BYTES  elements and bytes of a block
 * ZERO, SUB, LOW  unless they are 0, 32 and 0; SIGNED 1: codes are signed bytes if DOT is 3
 * READS_CODES makes the source define these. With PLANES it defines codes, scale and low of rows in planes.
 */
#ifndef PANELS
#define PANELS 0
#endif
#ifndef PLANES
#define PLANES 0
#endif
#ifndef DOT
#define DOT 0
#endif

#define READS_CODES
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
#define ODD_WORD(b, at) WORD(b, at)
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
/* WORD requires blocks at even addresses; ODD_WORD is for blocks with an odd number of bytes. */
#define WORD(b, at) (((__global const ushort *)((b) + (at)))[0] | (uint)((__global const ushort *)((b) + (at)))[1] << 16)
#define ODD_WORD(b, at) ((b)[at] | (uint)(b)[(at) + 1] << 8 | (uint)(b)[(at) + 2] << 16 | (uint)(b)[(at) + 3] << 24)
#define PAIR(b, at) ((b)[at] | (uint)(b)[(at) + 1] << 8)
#define BYTE(b, at) ((uint)(b)[at])
#define HALF(b, at) vload_half(0, (__global const half *)((b) + (at)))
#endif
/* The bits of `mask` of each byte of a word, from bit `from` on. */
#define BITS(word, from, mask) ((word) >> (U)((uint)(from)) & (U)((mask) * 0x01010101u))

#if PLANES
/* See planes.rs for the layout. */
typedef struct {
  __global const uchar *row;
  int k;
} PlaneRow;
static inline U plane_word(__global const uchar *p) { return *(__global const uint *)p; }
/* The low four bits and the fifth bit of codes. */
#define PLANE_NIBBLES(b, g, w) BITS(plane_word((b).row + 16 * (g) + 4 * ((w) % 4)), (w) / 4 * 4, 15u)
#define PLANE_FIFTH(b, g, w) (BITS(plane_word((b).row + (b).k / 2 + 4 * (g)), w, 1u) << 4)
#endif
