/* y = the elements of quantised blocks, one after the other: see unpack.cl. A product of many rows reads a matrix that was written so once.
 *
 * blocks  bytes of whole blocks
 * y       T (n); n is a number of whole blocks
 * Items   n / VW, each of VW elements.
 *
 * Ceiling: blocks read and y written once.
 */
__kernel void dequantise(__global const uchar *restrict blocks, __global T *restrict y, ulong n) {
  const ulong at = (ulong)get_global_id(0) * VW;
  if (at < n) STV(y, at, unpack(blocks, at));
}
