/* Depthwise convolutions: every channel has its own filter. Sums are f32.
 *
 * Images are stored as (N, H, W, C); pixels and taps are those of conv_vector.cl.
 * conv_depthwise(x, w, bias, y, ..)           y[p, c] = (bias[c] | 0) + sum over i, j of x[p at (i, j), c] * w[i, j, c].
 * conv_depthwise_weights(x, dy, part, ..)     part[s, c, i, j] = sum over the pixels of part s of x[p at (i, j), c] * dy[p, c].
 *
 * x, dy     T, contiguous. w T: tap (i, j) at w_off + i * w_i + j * w_j, its channels adjacent.
 * y: pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w. flags: BIAS 2, bias T (C) is read.
 * TREE: a generated epilogue (epilogue.cl), over rows of pixels and columns of channels.
 * Items of dimension 0 process every get_global_size(0)-th vector of channels. Items of dimension 1 process pixels in conv_depthwise, and (part,
 * tap) in conv_depthwise_weights. One work-item writes each element. Tuned: VW, WG.
 * Ceiling: x read and y written once.
 */
#define BIAS 2
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox
/* Loads a vector of channels from `at` on, or the remaining channels. */
#define CHANNELS(p, at) ((at) + VW <= (ulong)c ? LDV(p, at) : load_part((p) + (at), c - (at)))

__kernel void conv_depthwise(__global const T *restrict x, __global const T *restrict w, __global const T *restrict bias,
                             __global T *restrict y, long w_off, long w_i, long w_j, long y_off, long y_n, long y_h, long y_w,
                             long pixels, int c, AXES, int flags TREE_PARAMETERS) {
  w += w_off;
  y += y_off;
  FOR_ROWS(p, pixels, 1) {
    const int at_x = p % out_w, at_y = p / out_w % out_h;
    const long n = p / out_w / out_h;
    __global T *to = y + n * y_n + at_y * y_h + at_x * y_w;
    for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW) {
      FV sum = flags & BIAS ? CHANNELS(bias, at) : (FV)(0.0f);
      for (int i = 0; i < taps_h; ++i) {
        const int iy = at_y * sy + oy + i * dy_;
        if ((uint)iy >= (uint)in_h) continue;
        for (int j = 0; j < taps_w; ++j) {
          const int ix = at_x * sx + ox + j * dx_;
          if ((uint)ix >= (uint)in_w) continue;
          __global const T *from = x + ((n * in_h + iy) * in_w + ix) * c;
          sum = fma(CHANNELS(from, at), CHANNELS(w + i * w_i + j * w_j, at), sum);
        }
      }
      if (at + VW <= (ulong)c) STV(to, at, TREE_V(sum, p, at, c));
      else {
        float lanes[VW];
        STV_F32(lanes, sum);
        for (int v = 0; at + v < (ulong)c; ++v) ST(to, at + v, TREE_1(lanes[v], p, at + v, c));
      }
    }
  }
}

__kernel void conv_depthwise_weights(__global const T *restrict x, __global const T *restrict dy, __global float *restrict part,
                                     long pixels, int c, AXES, long each_part, int parts) {
  const int taps = taps_h * taps_w;
  FOR_ROWS(line, (ulong)parts * taps, 1) {
    const int s = line / taps, tap = line % taps, i = tap / taps_w * dy_ + oy, j = tap % taps_w * dx_ + ox;
    const long p0 = s * each_part, p1 = min(pixels, p0 + each_part);
    for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW) {
      FV sum = (FV)(0.0f);
      int at_x = p0 % out_w, at_y = p0 / out_w % out_h;
      long n = p0 / out_w / out_h;
      for (long p = p0; p < p1; ++p) {
        const int iy = at_y * sy + i, ix = at_x * sx + j;
        if (((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w))
          sum = fma(CHANNELS(x + ((n * in_h + iy) * in_w + ix) * c, at), CHANNELS(dy + p * c, at), sum);
        if (++at_x == out_w) {
          at_x = 0;
          if (++at_y == out_h) at_y = 0, ++n;
        }
      }
      float lanes[VW];
      STV_F32(lanes, sum);
      for (int v = 0; v < VW && at + v < (ulong)c; ++v) part[((ulong)s * c + at + v) * taps + tap] = lanes[v];
    }
  }
}
