/* Elements of a row of quantized blocks as a vector of floats. The source of a format (formats/) follows this one and defines
 *
 * unpack(row, at)  elements at .. at + VW - 1 of the row whose first block `row` points to; VW (4, 8 or 16) divides at. A vector is
 * within one group of elements that share a scale, and whose bits are in adjacent bytes.
 *
 * QUANT            1 if there are blocks; FORMAT is then the format's name.
 * BLOCK, BYTES     from the format's source: elements and bytes of a block.
 * READS_ELEMENTS   makes the format's source define unpack.
 */
#ifndef QUANT
#define QUANT 0
#endif
#if QUANT
#define READS_ELEMENTS
typedef __global const uchar *BLOCK_BYTES;

#define CODES(p) TO_UV(CAT(vload, VW)(0, (p)))
#if WG == 1
/* On CPUs, vload_half of one element may be a call. A scale is never infinite or NaN; these would become large numbers. */
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
#endif
