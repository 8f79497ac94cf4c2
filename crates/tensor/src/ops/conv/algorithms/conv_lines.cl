/* Copies lines of images for conv_lines_sm90: y[line, u, c] = x[line, u + origin, c], zeros if that column or channel is not in x.
 *
 * x      T (lines, width, c), contiguous.
 * y      T (lines, columns, 8 * eights).
 * Items  one per eight channels of a column; surplus items do nothing.
 * Defines: DTYPE 1 or 2: elements are copied unchanged; WG.
 */
__kernel void conv_lines(__global const ushort *restrict x, __global ushort *restrict y, ulong count, int width, int c, int columns, int eights,
                         int origin) {
  const ulong i = get_global_id(0);
  if (i >= count) return;
  const int first = (int)(i % eights) * 8, column = (int)(i / eights % columns) + origin;
  x += (i / eights / columns * width + max(column, 0)) * c + first;
  ushort8 v = (ushort8)(0);
  if ((uint)column < (uint)width) {
    ushort part[8];
    for (int e = 0; e < 8; ++e) part[e] = first + e < c ? x[e] : 0;
    v = (ushort8)(part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7]);
  }
  vstore8(v, i, y);
}
