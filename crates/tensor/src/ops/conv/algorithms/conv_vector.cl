/* Convolutions on CPUs as implicit products; the matrix of patches is never stored. Sums are f32.
 *
 * Images are stored as (N, H, W, C). Pixel p = (n, y, x) of the result and tap (i, j) use row y * sy + i * dy + oy and column x * sx + j * dx +
 * ox of the input, which is 0 outside of the image. G groups of channels have C and O channels each.
 *
 * conv_pack(w, panels, ..)            w T, any strides -> panels (G, ceil(O / NR), I * J * C, NR) float, 0 past O; then C zeros
 *                                     that conv_vector reads for taps outside of the image.
 * conv_vector(x, panels, bias, y, ..) y[p, g, o] = (bias[g, o] | 0) + sum over i, j, c of x[p at (i, j), g, c] * w[g, o, c, i, j].
 *     One work-item is a work-group and owns `block` pixels and `wide` panels of a group. The register tile is MR pixels by NV vectors of
 *     O. Rows of A are read in place: for each tap through MR pointers to C adjacent elements, or to zeros.
 * conv_vector_weights(x, dy, zeros, part, ..)
 *     part[s, g, i, j, c, o] = sum over the pixels of part s of x[p at (i, j), g, c] * dy[p, g, o].
 *     A work-group owns a panel of O, `block` rows (i, j, c) and one part of the pixels. KC pixels of dy at a time are copied into a panel.
 *     Rows of A are read in place if WR channels of one tap are adjacent, otherwise they are copied.
 *
 * x, dy     T, contiguous. y: pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w, its channels adjacent. zeros: T (C).
 * flags     BIAS 2: bias T (G * O) is read.
 * TREE      a generated epilogue (epilogue.cl), over rows of pixels and columns of G * O.
 * Defines: DTYPE, VW (native vector), MR and NV of matmul_panels.cl; WR rows of the register tile of weights.
 * The order of a sum is that of (i, j, c), or of the pixels of a part, for all block sizes: the bits are the same for any number of groups.
 *
 * Design: "The Indirect Convolution Algorithm" (Dukhan 2019, arXiv:1907.02129), with packed weights as in XNNPACK; panels of Goto and van de
 * Geijn 2008.
 * Ceiling: f32 multiply-adds of all cores.
 */
#define BIAS 2
#ifndef WR
#define WR 4
#endif
#define PIXELS 256 /* of a block of conv_vector_weights */

/* One spatial axis: input size, output size, taps, step, dilation, origin. */
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox

__kernel void conv_pack(__global const T *restrict w, __global float *restrict panels, long w_off, long w_g, long w_o, long w_c,
                        long w_i, long w_j, int groups, int o, int c, int taps_h, int taps_w) {
  const int each = (o + NR - 1) / NR, panel = get_group_id(0), g = panel / each, o0 = panel % each * NR;
  const int left = min(NR, o - o0);
  const long k = (long)taps_h * taps_w * c;
  __global float *to = panels + panel * k * NR;
  w += w_off + g * w_g + o0 * w_o;
  for (int at = 0; at < c; ++at)
    for (int i = 0; i < taps_h; ++i)
      for (int j = 0; j < taps_w; ++j) {
        __global const T *from = w + at * w_c + i * w_i + j * w_j;
        __global float *row = to + ((long)(i * taps_w + j) * c + at) * NR;
        for (int v = 0; v < NR; ++v) row[v] = v < left ? LD(from, v * w_o) : 0.0f;
      }
  if (panel == 0) {
    to = panels + (long)groups * each * k * NR;
    for (int at = 0; at < c; ++at) to[at] = 0.0f;
  }
}

#define TAP_AT(x, u) LD(row[x], u)
#define TAP_NEXT(u) UNROLL for (int x = 0; x < MR; ++x) row[x] += (u)

__kernel void conv_vector(__global const T *restrict x, __global const float *restrict panels, __global const T *restrict bias,
                          __global T *restrict y, long y_off, long y_n, long y_h, long y_w, long pixels, int groups, int o, int c,
                          AXES, long block, int wide, int flags TREE_PARAMETERS) {
  const int each = (o + NR - 1) / NR, g = get_group_id(2), channels = groups * c;
  const long k = (long)taps_h * taps_w * c;
  __global const T *zeros = (__global const T *)(panels + (long)groups * each * k * NR);
  const long p0 = get_group_id(0) * block, p1 = min(pixels, p0 + block);
  const int first = get_group_id(1) * wide, last = min(each, first + wide);
  x += g * c;
  y += y_off + g * o;
  bias += g * o;
  for (int panel = first; panel < last; ++panel) {
    __global const float *weights = panels + (g * each + panel) * k * NR;
    const int o0 = panel * NR, cols = min(NR, o - o0);
    int at_x = p0 % out_w, at_y = p0 / out_w % out_h;
    long at_n = p0 / out_w / out_h;
    for (long p = p0; p < p1; p += MR) {
      const int rows = min((long)MR, p1 - p);
      int row_y[MR], row_x[MR];
      long from[MR], to[MR];
      for (int r = 0; r < MR; ++r) {
        row_y[r] = r < rows ? at_y * sy + oy : -(1 << 30);
        row_x[r] = at_x * sx + ox;
        from[r] = at_n * in_h * in_w * channels;
        to[r] = at_n * y_n + at_y * y_h + at_x * y_w;
        if (++at_x == out_w) {
          at_x = 0;
          if (++at_y == out_h) at_y = 0, ++at_n;
        }
      }
      FV acc[MR][NV];
      UNROLL for (int r = 0; r < MR; ++r) {
        UNROLL for (int v = 0; v < NV; ++v) acc[r][v] = (FV)(0.0f);
      }
      __global const float *pb = weights;
      for (int i = 0; i < taps_h; ++i)
        for (int j = 0; j < taps_w; ++j) {
          __global const T *row[MR];
          UNROLL for (int r = 0; r < MR; ++r) {
            const int iy = row_y[r] + i * dy_, ix = row_x[r] + j * dx_;
            const int inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w);
            row[r] = inside ? x + from[r] + ((long)iy * in_w + ix) * channels : zeros;
          }
          const int kc = c;
          SUM_OVER_K(TAP_AT, TAP_NEXT)
        }
      if (cols == NR) {
        UNROLL for (int v = 0; v < NV; ++v) {
          const FV add = flags & BIAS ? LDV(bias, o0 + v * VW) : (FV)(0.0f);
          UNROLL for (int r = 0; r < MR; ++r) {
            if (r < rows) STV(y, to[r] + o0 + v * VW, TREE_V(acc[r][v] + add, p + r, g * o + o0 + v * VW, groups * o));
          }
        }
      } else {
        float tile[MR * NR];
        UNROLL for (int r = 0; r < MR; ++r) {
          UNROLL for (int v = 0; v < NV; ++v) SVEC(acc[r][v], tile + r * NR + v * VW);
        }
        for (int r = 0; r < rows; ++r)
          for (int v = 0; v < cols; ++v) {
            const float sum = tile[r * NR + v] + (flags & BIAS ? LD(bias, o0 + v) : 0.0f);
            ST(y, to[r] + o0 + v, TREE_1(sum, p + r, g * o + o0 + v, groups * o));
          }
      }
    }
  }
}

/* Computes acc += A(0..WR) B over kc steps of a panel of B. */
#define WEIGHT_STEP(A_AT)                                                         \
  for (int u = 0; u < kc; ++u) {                                                  \
    FV b_[NV];                                                                    \
    UNROLL for (int v = 0; v < NV; ++v) b_[v] = LVEC(lb + u * NR + v * VW);       \
    UNROLL for (int r = 0; r < WR; ++r) {                                         \
      const FV a_ = (FV)(A_AT(r, u));                                             \
      UNROLL for (int v = 0; v < NV; ++v) acc[r][v] = fma(a_, b_[v], acc[r][v]);  \
    }                                                                             \
  }
#define DIRECT_AT(r, u) LD(row[u], c0 + r)
#define COPIED_AT(r, u) la[(u) * WR + (r)]

__kernel void conv_vector_weights(__global const T *restrict x, __global const T *restrict dy, __global const T *restrict zeros,
                                  __global float *restrict part, long pixels, int groups, int o, int c, AXES, long each_part,
                                  int parts, int block) {
  __local float lb[PIXELS * NR] __attribute__((aligned(64)));
  __local float la[PIXELS * WR] __attribute__((aligned(64)));
  int pixel_y[PIXELS], pixel_x[PIXELS];
  long pixel_at[PIXELS];
  __global const T *row[PIXELS];
  const int g = get_group_id(2) / parts, s = get_group_id(2) % parts, channels = groups * c;
  const int o0 = get_group_id(1) * NR, cols = min(NR, o - o0), lines = taps_h * taps_w * c;
  const int r0 = get_group_id(0) * block, r1 = min(lines, r0 + block), neighbours = c % WR == 0;
  const long p0 = s * each_part, p1 = min(pixels, p0 + each_part);
  x += g * c;
  dy += g * o + o0;
  part += ((long)(s * groups + g) * lines) * o + o0;
  int at_x = p0 % out_w, at_y = p0 / out_w % out_h;
  long at_n = p0 / out_w / out_h;
  for (long p = p0; p < p1; p += PIXELS) {
    const int kc = min((long)PIXELS, p1 - p);
    for (int u = 0; u < kc; ++u) {
      pixel_y[u] = at_y * sy + oy;
      pixel_x[u] = at_x * sx + ox;
      pixel_at[u] = at_n * in_h * in_w * channels;
      if (++at_x == out_w) {
        at_x = 0;
        if (++at_y == out_h) at_y = 0, ++at_n;
      }
      __global const T *from = dy + (p + u) * groups * o;
      if (cols == NR) {
        UNROLL for (int v = 0; v < NV; ++v) SVEC(LDV(from, v * VW), lb + u * NR + v * VW);
      } else {
        for (int v = 0; v < NR; ++v) lb[u * NR + v] = v < cols ? LD(from, v) : 0.0f;
      }
    }
    int pointed = -1;
    for (int line = r0; line < r1; line += WR) {
      FV acc[WR][NV];
      UNROLL for (int r = 0; r < WR; ++r) {
        UNROLL for (int v = 0; v < NV; ++v) acc[r][v] = (FV)(0.0f);
      }
      if (neighbours) {
        const int tap = line / c, i = tap / taps_w * dy_, j = tap % taps_w * dx_, c0 = line % c;
        /* The pointers of a tap serve all of its channels: computing them takes about as long as a tile of eight channels. */
        if (tap != pointed) {
          for (int u = 0; u < kc; ++u) {
            const int iy = pixel_y[u] + i, ix = pixel_x[u] + j;
            const int inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w);
            row[u] = inside ? x + pixel_at[u] + ((long)iy * in_w + ix) * channels : zeros;
          }
          pointed = tap;
        }
        WEIGHT_STEP(DIRECT_AT)
      } else {
        for (int r = 0; r < WR; ++r) {
          const int tap = (line + r) / c, i = tap / taps_w * dy_, j = tap % taps_w * dx_, c0 = (line + r) % c;
          for (int u = 0; u < kc; ++u) {
            const int iy = pixel_y[u] + i, ix = pixel_x[u] + j;
            const int inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w) & (line + r < lines);
            la[u * WR + r] = inside ? LD(x, pixel_at[u] + ((long)iy * in_w + ix) * channels + c0) : 0.0f;
          }
        }
        WEIGHT_STEP(COPIED_AT)
      }
      UNROLL for (int r = 0; r < WR; ++r) {
        if (line + r < r1) {
          __global float *to = part + (long)(line + r) * o;
          if (cols == NR) {
            UNROLL for (int v = 0; v < NV; ++v) {
              const FV before = p > p0 ? LVEC(to + v * VW) : (FV)(0.0f);
              SVEC(acc[r][v] + before, to + v * VW);
            }
          } else {
            float tile[NR];
            UNROLL for (int v = 0; v < NV; ++v) SVEC(acc[r][v], tile + v * VW);
            for (int v = 0; v < cols; ++v) to[v] = tile[v] + (p > p0 ? to[v] : 0.0f);
          }
        }
      }
    }
  }
}
