/* Elements of rows in planes by planes.cl: all rows, and rows by index, like those of an embedding table.
 *
 * blocks      rows of k elements, `bytes` bytes apart
 * dequantise  y T (rows, k)
 * gather      y T (n, k) = by * row ids[ids_off + i]; an index outside of the rows gives NaN
 * Items       one per eight elements, so that adjacent items write adjacent 16 bytes of 16-bit elements.
 *
 * Defines: FORMAT, the name of the format.
 *
 * Ceiling: blocks read and y written once.
 */

static inline float4 four(uint codes, float scale, float offset) {
#if CAT(SIGNED_, FORMAT)
  return convert_float4(as_char4(codes)) * scale + offset;
#else
  return convert_float4(as_uchar4(codes)) * scale + offset;
#endif
}

/* Stores elements 8 i .. 8 i + 7 of a row to y, times `by`. */
static inline void put_eight(RowBytes row, int i, int k, __global T *y, float by) {
  uint4 first, second;
  const Stored stored = CAT(stored_, FORMAT)(row, i / 4, k);
  CAT(codes_, FORMAT)(stored, &first, &second);
  const float3 d = CAT(scales_, FORMAT)(stored, i / 4) * by;
  const uint4 half_of = i & 2 ? second : first;
  const uint2 two = i & 1 ? half_of.zw : half_of.xy;
  const float scale = i & 2 ? d.y : d.x;
  const float4 low = four(two.x, scale, d.z), high = four(two.y, scale, d.z);
  STV(y, 8 * i, (float8)(low, high));
}

__kernel void dequantise(__global const uchar *restrict blocks, __global T *restrict y, ulong rows, ulong k, ulong bytes) {
  const ulong n = get_global_id(0);
  const uint each = (uint)(k / 8);
  const ulong row = n < 0xffffffffu ? (uint)n / each : n / each;
  if (row < rows) put_eight(blocks + row * bytes, (int)(n - row * each), (int)k, y + row * k, 1.0f);
}

__kernel void gather(__global const uchar *restrict blocks, __global const uint *restrict ids, __global T *restrict y, ulong ids_off, ulong n,
                     ulong rows, ulong k, ulong bytes, float by) {
  const ulong i = get_global_id(0) / (k / 8), e = get_global_id(0) % (k / 8);
  if (i >= n) return;
  const uint id = ids[ids_off + i];
  put_eight(blocks + min((ulong)id, rows - 1) * bytes, (int)e, (int)k, y + i * k, id < rows ? by : NAN);
}
