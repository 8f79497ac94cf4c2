/* y = the elements of quantized blocks, in order (unpack.cl). A product with many rows reads a matrix that was dequantized once in this way.
 *
 * blocks  bytes of whole blocks
 * y       T (n); n is the number of elements of whole blocks
 * Items   n / VW, each computes VW elements.
 *
 * Ceiling: blocks read and y written once.
 */
__kernel void dequantise(__global const uchar *restrict blocks, __global T *restrict y, ulong n) {
  const ulong at = (ulong)get_global_id(0) * VW;
  if (at < n) STV(y, at, unpack(blocks, at));
}
