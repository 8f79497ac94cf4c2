/* y = the elements of rows of quantised blocks in panels (panels.rs): see codes.cl. Where their products in integers do not serve.
 *
 * blocks  panels of whole blocks
 * y       T (rows, k)
 * Items   rows / 16, rounded up, times k / 32: each has a group of 32 elements of 16 rows.
 *
 * Ceiling: blocks read and y written once.
 */
__kernel void dequantise(__global const uchar *restrict blocks, __global T *restrict y, ulong rows, ulong k) {
  const ulong groups = k / 32, panel = get_global_id(0) / groups, j = get_global_id(0) % groups;
  if (panel * PANEL_ROWS >= rows) return;
  const int g = j % (BLOCK / 32);
  BLOCK_AT b = blocks + (panel * (k / BLOCK) + j / (BLOCK / 32)) * PANEL_ROWS * BYTES;
  const int count = min((ulong)PANEL_ROWS, rows - panel * PANEL_ROWS);
  for (int w = 0; w < 8; ++w) {
    const int h = w / (8 / HALVES);
    const U four = codes(b, g, w);
    const F by = scale(b, g, h);
    for (int l = 0; l < 4; ++l) {
      F v = (TO_F(four >> (U)((uint)(8 * l)) & (U)(255u)) - (float)ZERO) * by;
#if LOW
      v += low(b, g, h);
#endif
      float each[PANEL_ROWS];
      vstore16(v, 0, each);
      for (int r = 0; r < count; ++r) ST(y, (panel * PANEL_ROWS + r) * k + 32 * j + 4 * w + l, each[r]);
    }
  }
}
