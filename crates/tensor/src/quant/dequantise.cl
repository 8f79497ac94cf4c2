/* y = the elements of consecutive quantized blocks: see unpack.cl. Products of many rows read a matrix that was converted once in this way.
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
