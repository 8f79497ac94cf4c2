/* Elements of rows of quantized blocks by codes.cl: all rows, if they are in panels (panels.rs) and integer products do not apply, and rows by
 * index, like those of an embedding table.
 *
 * blocks      rows, or panels, of whole blocks; k elements per row, groups of 32
 * dequantise  y T (rows, k): items rows / PANEL_ROWS, rounded up, times k / 32; each converts a group of all rows of a panel
 * gather      y T (n, k) = by * row ids[ids_off + i]; an index outside of the rows gives NaN: items n * k / 32
 *
 * Ceiling: blocks read and y written once.
 */
#if PANELS
#define EACH(each, v) vstore16(v, 0, each)
#else
#define EACH(each, v) ((each)[0] = (v))
#endif

/* Returns element 4w + l of group g of a block, for all rows of its panel. */
static inline F element(BLOCK_AT b, int g, int w, int l) {
  const int h = w / (8 / HALVES);
  const F code = TO_F(codes(b, g, w) >> (U)((uint)(8 * l)) & (U)(255u)) - (float)ZERO;
#if LOW
  return code * scale(b, g, h) + low(b, g, h);
#else
  return code * scale(b, g, h);
#endif
}

/* Returns the block with group j of the rows of a panel. */
static inline BLOCK_AT block_of(__global const uchar *blocks, ulong panel, ulong j, ulong k) {
  return blocks + (panel * (k / BLOCK) + j / (BLOCK / 32)) * PANEL_ROWS * BYTES;
}

__kernel void dequantise(__global const uchar *restrict blocks, __global T *restrict y, ulong rows, ulong k) {
  const ulong groups = k / 32, panel = get_global_id(0) / groups, j = get_global_id(0) % groups;
  if (panel * PANEL_ROWS >= rows) return;
  BLOCK_AT b = block_of(blocks, panel, j, k);
  const int count = min((ulong)PANEL_ROWS, rows - panel * PANEL_ROWS);
  for (int i = 0; i < 32; ++i) {
    float each[PANEL_ROWS];
    EACH(each, element(b, j % (BLOCK / 32), i / 4, i % 4));
    for (int r = 0; r < count; ++r) ST(y, (panel * PANEL_ROWS + r) * k + 32 * j + i, each[r]);
  }
}

__kernel void gather(__global const uchar *restrict blocks, __global const uint *restrict ids, __global T *restrict y, ulong ids_off, ulong n,
                     ulong rows, ulong k, float by) {
  const ulong groups = k / 32, i = get_global_id(0) / groups, j = get_global_id(0) % groups;
  if (i >= n) return;
  const uint id = ids[ids_off + i];
  BLOCK_AT b = block_of(blocks, min((ulong)id, rows - 1) / PANEL_ROWS, j, k);
  for (int e = 0; e < 32; ++e) {
    float each[PANEL_ROWS];
    EACH(each, element(b, j % (BLOCK / 32), e / 4, e % 4));
    ST(y, i * k + 32 * j + e, id < rows ? by * each[id % PANEL_ROWS] : NAN);
  }
}
