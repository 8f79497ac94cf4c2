/* Convolutions with 3 x 3 adjacent taps by Winograd's minimal filtering: tiles of M x M pixels of the result become products of N x N numbers, N
 * = M + 2. Sums over channels become N * N matrix products, which another kernel computes. Sums are f32.
 *
 * Images are stored as (N, H, W, C). Tile t = (n, ty, tx) has rows ty * M + i and columns tx * M + j of the result, within its edges.
 * conv_winograd_input(x, v, ..)       v[k, l, t, c] = (B^T d B)[k, l], d the N x N pixels of x from row ty * M + top, column tx * M + left on.
 * conv_winograd_weights(w, u, ..)     u[k, l, c, o] = (G w[o, c] G^T)[k, l].
 * conv_winograd_output(m, bias, y, ..)  y at the tile's pixels = (bias[o] | 0) + A^T m[., ., t, o] A.
 *
 * x, y      T. v, u, m float, contiguous, of a block of `tiles` tiles from `first` on. w T: tap (i, j) at w_off + o * w_o + c * w_c + i * w_i + j * w_j.
 * y: pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w, its channels adjacent. C and O are multiples of VW.
 * flags     BIAS 2: bias T (O) is read.
 * TREE      a generated epilogue (epilogue.cl), over rows of pixels and columns of O.
 * Items of dimension 0 process every get_global_size(0)-th vector of channels; those of dimension 1 process tiles, or channels C of the weights.
 * Defines: DTYPE, M 2 or 4. Tuned: VW, WG.
 *
 * Design: Lavin and Gray 2015, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308, with the points 0, 1, -1, (2, -2), infinity.
 * Ceiling: memory; v and m are written and read once.
 */
#define BIAS 2
#ifndef M
#define M 4
#endif
#define N (M + 2)

/* Computes B^T d, A^T m and G w of one line. */
static inline void to_points(const FV *d, FV *t) {
#if M == 4
  const FV even = d[4] - 4.0f * d[2], odd = d[3] - 4.0f * d[1], near = d[4] - d[2], far = 2.0f * (d[3] - d[1]);
  t[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
  t[1] = even + odd, t[2] = even - odd;
  t[3] = near + far, t[4] = near - far;
  t[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
#else
  t[0] = d[0] - d[2], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[1] - d[3];
#endif
}

static inline void from_points(const FV *m, FV *y) {
#if M == 4
  const FV a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
  y[0] = m[0] + a + c, y[1] = b + 2.0f * e, y[2] = a + 4.0f * c, y[3] = b + 8.0f * e + m[5];
#else
  y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] - m[3];
#endif
}

static inline void weights_to_points(const FV *w, FV *u) {
#if M == 4
  const FV ends = w[0] + w[2], wide = w[0] * (1.0f / 24.0f) + w[2] * (1.0f / 6.0f), middle = w[1] * (1.0f / 12.0f);
  u[0] = 0.25f * w[0], u[1] = (ends + w[1]) * (-1.0f / 6.0f), u[2] = (ends - w[1]) * (-1.0f / 6.0f);
  u[3] = wide + middle, u[4] = wide - middle, u[5] = w[2];
#else
  const FV ends = 0.5f * (w[0] + w[2]), middle = 0.5f * w[1];
  u[0] = w[0], u[1] = ends + middle, u[2] = ends - middle, u[3] = w[2];
#endif
}

__kernel void conv_winograd_input(__global const T *restrict x, __global float *restrict v, long first, long tiles, int down, int across,
                                  int c, int in_h, int in_w, int top, int left) {
  FOR_ROWS(t, tiles, 1) {
    const long tile = first + t, n = tile / across / down;
    const int y0 = (int)(tile / across % down) * M + top, x0 = (int)(tile % across) * M + left;
    for (ulong at = get_global_id(0) * VW; at < (ulong)c; at += get_global_size(0) * VW) {
      FV d[N], line[N], points[N][N];
      for (int j = 0; j < N; ++j) {
        const int ix = x0 + j;
        UNROLL for (int i = 0; i < N; ++i) {
          const int iy = y0 + i, inside = ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w);
          d[i] = inside ? LDV(x, ((n * in_h + iy) * in_w + ix) * c + at) : (FV)(0.0f);
        }
        to_points(d, line);
        UNROLL for (int k = 0; k < N; ++k) points[k][j] = line[k];
      }
      __global float *to = v + t * c + at;
      for (int k = 0; k < N; ++k) {
        to_points(points[k], line);
        UNROLL for (int l = 0; l < N; ++l) STV_F32(to + (k * N + l) * tiles * c, line[l]);
      }
    }
  }
}

__kernel void conv_winograd_weights(__global const T *restrict w, __global float *restrict u, long w_off, long w_o, long w_c, long w_i,
                                    long w_j, int c, int o) {
  FOR_ROWS(from, (ulong)c, 1) {
    for (ulong at = get_global_id(0) * VW; at < (ulong)o; at += get_global_size(0) * VW) {
      __global const T *taps = w + w_off + (long)at * w_o + (long)from * w_c;
      FV d[3], line[N], points[N][3];
      for (int j = 0; j < 3; ++j) {
        UNROLL for (int i = 0; i < 3; ++i) {
          float lanes[VW];
          for (int e = 0; e < VW; ++e) lanes[e] = LD(taps, e * w_o + i * w_i + j * w_j);
          d[i] = LDV_F32(lanes);
        }
        weights_to_points(d, line);
        UNROLL for (int k = 0; k < N; ++k) points[k][j] = line[k];
      }
      __global float *to = u + from * o + at;
      for (int k = 0; k < N; ++k) {
        weights_to_points(points[k], line);
        UNROLL for (int l = 0; l < N; ++l) STV_F32(to + (long)(k * N + l) * c * o, line[l]);
      }
    }
  }
}

__kernel void conv_winograd_output(__global const float *restrict m, __global const T *restrict bias, __global T *restrict y, long first,
                                   long tiles, int down, int across, int o, int out_h, int out_w, long y_off, long y_n, long y_h,
                                   long y_w, int flags TREE_PARAMETERS) {
  FOR_ROWS(t, tiles, 1) {
    const long tile = first + t, n = tile / across / down;
    const int y0 = (int)(tile / across % down) * M, x0 = (int)(tile % across) * M;
    for (ulong at = get_global_id(0) * VW; at < (ulong)o; at += get_global_size(0) * VW) {
      const FV add = flags & BIAS ? LDV(bias, at) : (FV)(0.0f);
      __global const float *from = m + t * o + at;
      FV d[N], line[M], pixels[M][N];
      for (int l = 0; l < N; ++l) {
        UNROLL for (int k = 0; k < N; ++k) d[k] = LDV_F32(from + (k * N + l) * tiles * o);
        from_points(d, line);
        UNROLL for (int i = 0; i < M; ++i) pixels[i][l] = line[i];
      }
      for (int i = 0; i < M && y0 + i < out_h; ++i) {
        from_points(pixels[i], line);
        for (int j = 0; j < M && x0 + j < out_w; ++j) {
          const long to = y_off + n * y_n + (y0 + i) * y_h + (x0 + j) * y_w;
          STV(y, to + at, TREE_V(line[j] + add, (n * out_h + y0 + i) * out_w + x0 + j, at, o));
        }
      }
    }
  }
}
