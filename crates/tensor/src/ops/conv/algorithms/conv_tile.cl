/* Convolutions for GPUs: implicit products by tiles in local memory; the matrix of patches is never stored. Sums are f32.
 *
 * Images are stored as (N, H, W, C); pixels, taps and groups are those of conv_vector.cl.
 * conv_tile(x, w, bias, y, ..)           y[p, g, o] = (bias[g, o] | 0) + sum over i, j, c of x[p at (i, j), g, c] * w[g, o, c, i, j].
 *     A tile is BM pixels by BN channels of O; the sum goes over k = (i, j, c), c fastest, BK at a time.
 * conv_tile_weights(x, dy, part, ..)     part[s, g, i, j, c, o] = sum over the pixels of part s of x[p at (i, j), g, c] * dy[p, g, o].
 *     A tile is BM rows k by BN channels of O; the sum goes over pixels, BK at a time.
 *
 * x, dy     T, contiguous. w T, any strides. y: pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w, its channels adjacent.
 * flags     BIAS 2: bias T (G * O) is read.
 * TREE      a generated epilogue (epilogue.cl), over rows of pixels and columns of G * O.
 * Groups (rows of tiles, columns of tiles, G or G * parts) of WG = 256 items; an item has 4 by 4 sums: rows item / 16 + 16 a, columns item % 16
 * + 16 b, so that adjacent items read adjacent elements of local memory and write adjacent elements of y.
 * Defines: DTYPE.
 *
 * Design: implicit GEMM (Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning", arXiv:1410.0759).
 * Ceiling: f32 multiply-adds.
 */
#define BIAS 2
#define BM 64
#define BN 64
#define BK 16
#define ITEMS 256
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox

/* Computes acc += as^T bs. */
#define MULTIPLY                                                                              \
  for (int u = 0; u < BK; ++u) {                                                              \
    float va[4], vb[4];                                                                       \
    UNROLL for (int e = 0; e < 4; ++e) va[e] = as[u][row + 16 * e], vb[e] = bs[u][column + 16 * e]; \
    UNROLL for (int e = 0; e < 4; ++e) {                                                      \
      UNROLL for (int f = 0; f < 4; ++f) acc[e][f] = fma(va[e], vb[f], acc[e][f]);            \
    }                                                                                         \
  }

__kernel void conv_tile(__global const T *restrict x, __global const T *restrict w, __global const T *restrict bias,
                        __global T *restrict y, long w_off, long w_g, long w_o, long w_c, long w_i, long w_j, long y_off, long y_n,
                        long y_h, long y_w, long pixels, int groups, int o, int c, AXES, int flags TREE_PARAMETERS) {
  __local float as[BK][BM + 1], bs[BK][BN + 1];
  const int item = get_local_id(0), row = item / 16, column = item % 16, g = get_group_id(2), channels = groups * c;
  const long p0 = (long)get_group_id(0) * BM;
  const int o0 = get_group_id(1) * BN, k_end = taps_h * taps_w * c;
  x += g * c;
  w += w_off + g * w_g;
  /* An item reads step `column` of each slice, for pixels and channels row, row + 16, … */
  int pixel_y[4], pixel_x[4];
  long pixel_at[4];
  UNROLL for (int e = 0; e < 4; ++e) {
    const long p = p0 + row + 16 * e;
    pixel_y[e] = p < pixels ? (int)(p / out_w % out_h) * sy + oy : -(1 << 30);
    pixel_x[e] = (int)(p % out_w) * sx + ox;
    pixel_at[e] = p / out_w / out_h * in_h * in_w * channels;
  }
  float acc[4][4];
  UNROLL for (int e = 0; e < 4; ++e) {
    UNROLL for (int f = 0; f < 4; ++f) acc[e][f] = 0.0f;
  }
  for (int k0 = 0; k0 < k_end; k0 += BK) {
    const int k = k0 + column, tap = k / c, at_c = k % c, i = tap / taps_w, j = tap % taps_w;
    UNROLL for (int e = 0; e < 4; ++e) {
      const int iy = pixel_y[e] + i * dy_, ix = pixel_x[e] + j * dx_, to_o = o0 + row + 16 * e;
      const int inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w) & (k < k_end);
      as[column][row + 16 * e] = inside ? LD(x, pixel_at[e] + ((long)iy * in_w + ix) * channels + at_c) : 0.0f;
      bs[column][row + 16 * e] = k < k_end && to_o < o ? LD(w, to_o * w_o + at_c * w_c + i * w_i + j * w_j) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    MULTIPLY
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  y += y_off + g * o;
  UNROLL for (int e = 0; e < 4; ++e) {
    const long p = p0 + row + 16 * e;
    if (p < pixels) {
      __global T *to = y + p / out_w / out_h * y_n + p / out_w % out_h * y_h + p % out_w * y_w;
      UNROLL for (int f = 0; f < 4; ++f) {
        const int to_o = o0 + column + 16 * f;
        const float sum = acc[e][f] + (flags & BIAS && to_o < o ? LD(bias, g * o + to_o) : 0.0f);
        if (to_o < o) ST(to, to_o, TREE_1(sum, p, g * o + to_o, groups * o));
      }
    }
  }
}

__kernel void conv_tile_weights(__global const T *restrict x, __global const T *restrict dy, __global float *restrict part,
                                long pixels, int groups, int o, int c, AXES, long each_part, int parts) {
  __local float as[BK][BM + 1], bs[BK][BN + 1];
  const int item = get_local_id(0), row = item / 16, column = item % 16, channels = groups * c;
  const int g = get_group_id(2) / parts, s = get_group_id(2) % parts;
  const int k0 = get_group_id(0) * BM, o0 = get_group_id(1) * BN, k_end = taps_h * taps_w * c;
  const long p0 = s * each_part, p1 = min(pixels, p0 + each_part);
  x += g * c;
  /* An item reads line item % 64 of each slice, for pixels item / 64 and every fourth after it. */
  const int line = item % BM, k = k0 + line, tap = k / c, at_c = k % c;
  const int i = tap / taps_w * dy_ + oy, j = tap % taps_w * dx_ + ox;
  float acc[4][4];
  UNROLL for (int e = 0; e < 4; ++e) {
    UNROLL for (int f = 0; f < 4; ++f) acc[e][f] = 0.0f;
  }
  for (long start = p0; start < p1; start += BK) {
    UNROLL for (int e = 0; e < BK / 4; ++e) {
      const int step = item / BM + 4 * e;
      const long p = start + step;
      const int iy = (int)(p / out_w % out_h) * sy + i, ix = (int)(p % out_w) * sx + j;
      const int inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w) & (p < p1) & (k < k_end);
      const long at = p / out_w / out_h * in_h * in_w * channels;
      as[step][line] = inside ? LD(x, at + ((long)iy * in_w + ix) * channels + at_c) : 0.0f;
      bs[step][line] = p < p1 && o0 + line < o ? LD(dy, p * groups * o + g * o + o0 + line) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    MULTIPLY
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  part += (long)(s * groups + g) * k_end * o;
  UNROLL for (int e = 0; e < 4; ++e) {
    const int to_k = k0 + row + 16 * e;
    UNROLL for (int f = 0; f < 4; ++f) {
      const int to_o = o0 + column + 16 * f;
      if (to_k < k_end && to_o < o) part[(long)to_k * o + to_o] = acc[e][f];
    }
  }
}
