/* Gradients of depthwise weights on GPUs. A group has LANES adjacent vectors of channels. The pixels of a part are divided between its WG /
 * LANES lines of items, which add their sums in local memory at the end. Sums are f32.
 *
 * part[s, c, i, j] = sum over the pixels of part s of x[p at (i, j), c] * dy[p, c]; images are stored as (N, H, W, C), pixels and taps are those
 * of conv_vector.cl.
 *
 * x, dy     T, contiguous.
 * Groups (vectors of channels / LANES, parts, taps_h / ROWS) of (LANES, WG / LANES) items. An item has ROWS by COLUMNS sums of VW channels:
 * those of ROWS rows of taps with all of their COLUMNS columns. One work-item writes each element, and the sizes determine the order of sums.
 * Defines: DTYPE, WG, VW; LANES, a power of two; ROWS; COLUMNS, which is taps_w.
 * Ceiling: x and dy read once for each ROWS rows of taps; adjacent taps find x in the first-level cache.
 */
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox
#define LINES (WG / LANES)
/* Loads a vector of channels from `at` on, or the remaining channels. */
#define CHANNELS(p, at) ((at) + VW <= (ulong)c ? LDV(p, at) : load_part((p) + (at), c - (at)))

__kernel void conv_depthwise_weights(__global const T *restrict x, __global const T *restrict dy, __global float *restrict part,
                                     uint pixels, int c, AXES, uint each_part) {
  __local float shared[WG * VW];
  const int lane = get_local_id(0), line = get_local_id(1), row0 = get_group_id(2) * ROWS, taps = taps_h * taps_w;
  const ulong at = ((ulong)get_group_id(0) * LANES + lane) * VW, s = get_group_id(1);
  const uint p0 = s * each_part, p1 = at < (ulong)c ? (uint)min((ulong)pixels, (ulong)p0 + each_part) : 0;
  FV sum[ROWS][COLUMNS];
  UNROLL for (int i = 0; i < ROWS; ++i) {
    UNROLL for (int j = 0; j < COLUMNS; ++j) sum[i][j] = (FV)(0.0f);
  }
  for (uint p = p0 + line; p < p1; p += LINES) {
    const uint row = p / (uint)out_w, image = row / (uint)out_h;
    const int y = (int)(row - image * out_h) * sy + oy, left = (int)(p - row * out_w) * sx + ox;
    const FV d = CHANNELS(dy + (ulong)p * c, at);
    UNROLL for (int i = 0; i < ROWS; ++i) {
      const int iy = y + (row0 + i) * dy_;
      if ((uint)iy >= (uint)in_h) continue;
      __global const T *from = x + ((ulong)image * in_h + iy) * in_w * c;
      UNROLL for (int j = 0; j < COLUMNS; ++j) {
        const int ix = left + j * dx_;
        if ((uint)ix < (uint)in_w) sum[i][j] = fma(CHANNELS(from + (long)ix * c, at), d, sum[i][j]);
      }
    }
  }
  /* The lines' sums are added in a tree, one tap at a time. */
  UNROLL for (int i = 0; i < ROWS; ++i) {
    UNROLL for (int j = 0; j < COLUMNS; ++j) {
      STV_F32(shared + (line * LANES + lane) * VW, sum[i][j]);
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int lines = LINES / 2; lines > 0; lines /= 2) {
        if (line < lines) {
          UNROLL for (int v = 0; v < VW; ++v) shared[(line * LANES + lane) * VW + v] += shared[((line + lines) * LANES + lane) * VW + v];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
      if (line == 0) {
        for (int v = 0; v < VW && at + v < (ulong)c; ++v) {
          part[((ulong)s * c + at + v) * taps + (row0 + i) * taps_w + j] = shared[lane * VW + v];
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
}
