/* bf16x3 emulation: products of f32 operands on tensor cores for bf16, with f32's own accuracy.
 *
 * An f32 has 24 significant bits, a bf16 eight: x = x1 + x2 + x3 exactly, cut off one after the other. The tensor cores multiply
 * bf16 exactly and add in f32, so of the nine products of parts the six largest make up a b to within 2^-22 at worst, 2^-25 on
 * average (x2 y3, x3 y2 and x3 y3 are left out). They are made smallest first: x3 y1, x1 y3, x2 y2, x2 y1, x1 y2, x1 y1. Sums on tensor
 * cores are cut off where f32 units round, so texts sum a few dozen terms there, and f32 units add those up: the error is below that of
 * a product by f32 units alone, and six products of bf16 take less than half of one product's time there.
 *
 * An operand is three planes, its parts. In a plane, eight columns (steps of the sum) of all rows follow the other eight, 16 bytes a row: eight
 * rows are one of the hardware's core matrices, and a plane is an operand of wgmma by rows and by columns without a swizzle.
 *
 * Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019
 * (arXiv:1904.06376); Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
 * performance", IJHPCA 2022 (sums outside).
 */
/* The upper halves of two f32, as they lie in memory: two bf16, the rest cut off. */
INLINE uint upper_pair(float low, float high) { return as_uint(low) >> 16 | as_uint(high) & 0xffff0000u; }
/* What bf16 leaves of x when the rest is cut off. */
INLINE float upper_part(float x) { return as_float(as_uint(x) & 0xffff0000u); }
/* The same of what may be a NaN whose bits all lie in the rest: it stays one. */
INLINE float upper_part_or_nan(float x) { return upper_part(isnan(x) ? as_float(as_uint(x) | 0x400000u) : x); }
/* Eight parts of a row as they lie in a plane. */
INLINE uint4 eight_parts(const float *v) {
  return (uint4)(upper_pair(v[0], v[1]), upper_pair(v[2], v[3]), upper_pair(v[4], v[5]), upper_pair(v[6], v[7]));
}
/* Descriptors, in units of 16 bytes: core matrices so many bytes apart along rows and along columns. */
#define CORES(along_rows, along_columns) ((ulong)((along_rows) >> 4) << 32 | (ulong)((along_columns) >> 4) << 16)
