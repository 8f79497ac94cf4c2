/* bf16x3 emulation: products of f32 operands on tensor cores for bf16, with f32's accuracy.
 *
 * An f32 has 24 significant bits, a bf16 eight: x = x1 + x2 + x3 exactly, truncated one after the other. The tensor cores multiply bf16 exactly
 * and add in f32. The six largest of the nine products of parts give a b to within 2^-22 at worst, 2^-25 on average (x2 y3, x3 y2 and x3 y3 are
 * left out). They are computed smallest first: x3 y1, x1 y3, x2 y2, x2 y1, x1 y2, x1 y1. Tensor cores truncate sums while f32 units round them.
 * Kernels therefore sum a few dozen terms there, and f32 units add these sums. The error is below that of a product by f32 units alone, and six
 * bf16 products take less than half of the time of one f32 product.
 *
 * An operand is three planes, its parts. A plane consists of groups of eight columns (steps of the sum) of all rows, 16 bytes per row: eight
 * rows are one of the hardware's core matrices, and a plane is an operand of wgmma by rows and by columns without a swizzle.
 *
 * Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019
 * (arXiv:1904.06376); Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
 * performance", IJHPCA 2022 (sums outside).
 */
/* Returns the upper halves of two f32 in memory order: two bf16 by truncation. */
INLINE uint upper_pair(float low, float high) { return as_uint(low) >> 16 | as_uint(high) & 0xffff0000u; }
/* Truncates x to bf16. */
INLINE float upper_part(float x) { return as_float(as_uint(x) & 0xffff0000u); }
/* Does the same for an x that may be a NaN with all its bits in the lower half: it stays a NaN. */
INLINE float upper_part_or_nan(float x) { return upper_part(isnan(x) ? as_float(as_uint(x) | 0x400000u) : x); }
/* Packs eight parts of a row in the order of a plane. */
INLINE uint4 eight_parts(const float *v) {
  return (uint4)(upper_pair(v[0], v[1]), upper_pair(v[2], v[3]), upper_pair(v[4], v[5]), upper_pair(v[6], v[7]));
}
/* Descriptors in units of 16 bytes: distances in bytes between core matrices along rows and along columns. */
#define CORES(along_rows, along_columns) ((ulong)((along_rows) >> 4) << 32 | (ulong)((along_columns) >> 4) << 16)
