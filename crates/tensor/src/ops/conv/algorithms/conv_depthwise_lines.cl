/* Depthwise convolutions on GPUs. An item computes a vector of channels of PX adjacent pixels of a line, and reads the pixels of x and the taps
 * that they share once. Sums are f32.
 *
 * y[p, c] = (bias[c] | 0) + sum over i, j of x[p at (i, j), c] * w[i, j, c]; images are stored as (N, H, W, C), pixels and taps are those of
 * conv_vector.cl.
 *
 * x         T, contiguous. w T: tap (i, j) at w_off + i * w_i + j * w_j, its channels adjacent.
 * y         pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w. flags: BIAS 2, bias T (C) is read.
 * TREE      a generated epilogue (epilogue.cl), over rows of pixels and columns of channels.
 * lines     of the result: images by out_h. Items of dimension 0 process every get_global_size(0)-th vector of channels, those of dimension 1 blocks
 *           of PX pixels of a line. One work-item writes each element.
 * Defines: DTYPE, WG, VW, PX; COLUMNS, STEP and APART, which are taps_w, sx and dx.
 * Ceiling: x read and y written once.
 */
#define BIAS 2
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox
/* Pixels of a line of x that PX pixels use. */
#define SPAN ((PX - 1) * STEP + (COLUMNS - 1) * APART + 1)
/* Loads a vector of channels from `at` on, or the remaining channels. */
#define CHANNELS(p, at) ((at) + VW <= (ulong)c ? LDV(p, at) : load_part((p) + (at), c - (at)))

__kernel void conv_depthwise_lines(__global const T *restrict x, __global const T *restrict w, __global const T *restrict bias,
                                   __global T *restrict y, long w_off, long w_i, long w_j, long y_off, long y_n, long y_h, long y_w, long lines,
                                   int c, AXES, int flags TREE_PARAMETERS) {
  w += w_off;
  y += y_off;
  const uint blocks = (out_w + PX - 1) / PX;
  FOR_ROWS(q, lines * blocks, 1) {
    const ulong line = q / blocks, n = line / out_h;
    const int x0 = (int)(q - line * blocks) * PX, y0 = (int)(line - n * out_h);
    for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW) {
      FV sum[PX];
      const FV first = flags & BIAS ? CHANNELS(bias, at) : (FV)(0.0f);
      UNROLL for (int p = 0; p < PX; ++p) sum[p] = first;
      for (int i = 0; i < taps_h; ++i) {
        const int iy = y0 * sy + oy + i * dy_;
        if ((uint)iy >= (uint)in_h) continue;
        __global const T *from = x + (n * in_h + iy) * in_w * c;
        FV seen[SPAN];
        UNROLL for (int k = 0; k < SPAN; ++k) {
          const int ix = x0 * STEP + ox + k;
          seen[k] = (FV)(0.0f);
          if ((uint)ix < (uint)in_w) seen[k] = CHANNELS(from + (long)ix * c, at);
        }
        UNROLL for (int j = 0; j < COLUMNS; ++j) {
          const FV tap = CHANNELS(w + i * w_i + j * w_j, at);
          UNROLL for (int p = 0; p < PX; ++p) sum[p] = fma(seen[p * STEP + j * APART], tap, sum[p]);
        }
      }
      __global T *to = y + n * y_n + y0 * y_h + x0 * y_w;
      UNROLL for (int p = 0; p < PX; ++p) {
        const ulong row = line * out_w + x0 + p;
        if (x0 + p >= out_w) continue;
        if (at + VW <= (ulong)c) STV(to + p * y_w, at, TREE_V(sum[p], row, at, c));
        else {
          float lanes[VW];
          STV_F32(lanes, sum[p]);
          for (int v = 0; at + v < (ulong)c; ++v) ST(to + p * y_w, at + v, TREE_1(lanes[v], row, at + v, c));
        }
      }
    }
  }
}
