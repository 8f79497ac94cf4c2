/* Copies up to two matrices of 16-bit elements so that each of their lines starts at a multiple of 16 bytes, as tensor maps require
 * (matmul_wgmma_sm90.cl). One launch copies both, because a launch costs as much time as 8 MB.
 *
 * x, y        ushort: line l starts at element x0 + l * x_stride and has x_length elements; likewise y.
 * to_x, to_y  ushort (lines, length rounded up to 8). The padding after a line holds the elements that follow it in memory.
 * x_chunks    chunks of 8 elements to copy: the lines times the chunks per line; 0 copies nothing.
 * Groups      256 items each; a work-item per chunk of x, then of y.
 *
 * Ceiling: reads and writes each matrix once, 4.8 TB/s on an H200.
 */
static inline void even_chunk(__global const ushort *x, ulong start, ulong stride, uint length, uint chunk, __global ushort *to) {
  const uint chunks = (length + 7) / 8, line = chunk / chunks, at = (chunk - line * chunks) * 8;
  const ulong from = start + line * stride + at;
  const int odd = (int)(from & 1), left = (int)min(length - at, 8u);
  /* Words of two elements. If the chunk starts at an odd element, the first word also holds the element before it. */
  __global const uint *words = (__global const uint *)x + from / 2;
  uint w[5];
  for (int i = 0; i < 5; ++i) {
    const int element = 2 * i - odd;
    w[i] = element + 1 < left ? words[i] : element < left ? ((__global const ushort *)(words + i))[0] : 0u;
  }
  uint v[4];
  for (int i = 0; i < 4; ++i) v[i] = odd ? w[i] >> 16 | w[i + 1] << 16 : w[i];
  *(__global uint4 *)(to + (ulong)chunk * 8) = (uint4)(v[0], v[1], v[2], v[3]);
}

__kernel void aligned_lines(__global const ushort *restrict x, __global const ushort *restrict y, __global ushort *restrict to_x,
                         __global ushort *restrict to_y, ulong x0, ulong y0, ulong x_stride, ulong y_stride, uint x_length,
                         uint y_length, uint x_chunks, uint y_chunks) {
  const uint i = get_global_id(0);
  if (i < x_chunks) even_chunk(x, x0, x_stride, x_length, i, to_x);
  else if (i - x_chunks < y_chunks) even_chunk(y, y0, y_stride, y_length, i - x_chunks, to_y);
}
