/* Convolutions for GPUs as implicit products with TM by TN registers per work-item; the matrix of patches is never stored. Sums are f32.
 *
 * Images are stored as (N, H, W, C); pixels, taps and groups are those of conv_vector.cl.
 * conv_gemm(x, w, bias, y, ..)           y[p, g, o] = (bias[g, o] | 0) + sum over k of x[p at k, g] * w[g, k, o], with k = (i, j, c), c fastest.
 * conv_gemm_weights(x, dy, part, ..)     part[s, g, k, o] = sum over the pixels p of part s of x[p at k, g] * dy[p, g, o].
 *
 * A group owns a tile of BM rows (pixels, or k) by BN channels of O. BK steps of the sum at a time go through two local buffers: while one is
 * multiplied, the next is loaded from memory to registers. Taps outside of the image read zeros.
 *
 * x, dy     T, contiguous, fewer than 2^31 elements. w T (G, taps, C, O), contiguous. y: pixel (n, y, x) at y_off + n * y_n + y * y_h + x * y_w,
 *           its channels adjacent.
 * flags     BIAS 2: bias T (G * O) is read.
 * TREE      a generated epilogue (epilogue.cl), over rows of pixels and columns of G * O.
 * Groups (tiles, columns fastest, so that concurrent groups share pixels in the cache; 1; G or G * parts) of (BM / TM) (BN / TN) items.
 * Defines: DTYPE; BM, BN, TM, TN multiples of 4; BK; VA 4 if four channels of x can be read at once, otherwise 1; VB the same for O.
 *
 * Design: implicit GEMM (Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning", arXiv:1410.0759) in the form of matmul_tile.cl.
 * Ceiling: f32 multiply-adds.
 */
#define BIAS 2
#ifndef BM
#define BM 128
#endif
#ifndef BN
#define BN 128
#endif
#ifndef BK
#define BK 16
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef VA
#define VA 1
#endif
#ifndef VB
#define VB 1
#endif
#define TX (BN / TN)
#define TY (BM / TM)
#define ITEMS (TX * TY)
#define AXES int in_h, int in_w, int out_h, int out_w, int taps_h, int taps_w, int sy, int sx, int dy_, int dx_, int oy, int ox

#if VA == 4
typedef float4 VecA;
#define READ_A(p) load4(p)
#define NO_A ((float4)(0.0f))
#else
typedef float VecA;
#define READ_A(p) LD(p, 0)
#define NO_A 0.0f
#endif
#if VB == 4
typedef float4 VecB;
#define READ_B(p) load4(p)
#define NO_B ((float4)(0.0f))
#else
typedef float VecB;
#define READ_B(p) LD(p, 0)
#define NO_B 0.0f
#endif
/* Vectors of a slice that an item loads. */
#define COUNT_A (BM * BK / VA / ITEMS)
#define COUNT_B (BN * BK / VB / ITEMS)

/* Rows of B, (k, O): line of the slice, column of the tile. */
#define STEP_B(i) ((item + (i) * ITEMS) / (BN / VB))
#define LINE_B (item % (BN / VB) * VB)
#define KEEP_B(s)                                                                                             \
  UNROLL for (int i = 0; i < COUNT_B; ++i) *(__local VecB *)(bs[s] + STEP_B(i) * BN + LINE_B) = next_b[i];

/* 32 adjacent items own 4 x 8 positions. A read then has few distinct addresses, which local memory broadcasts. */
#define PLACES                                                                                                \
  const int item = get_local_id(0);                                                                           \
  const int ty = item / 32 / (TX / 8) * 4 + item % 32 / 8, tx = item / 32 % (TX / 8) * 8 + item % 8;          \
  float4 acc[TM][TN / 4];                                                                                     \
  UNROLL for (int i = 0; i < TM; ++i) {                                                                       \
    UNROLL for (int j = 0; j < TN / 4; ++j) acc[i][j] = (float4)(0.0f);                                       \
  }
#define ROW(i) (((i) / 4 * TY + ty) * 4 + (i) % 4)
#define COLUMN(j) (((j) * TX + tx) * 4)

/* Computes acc += as[s]^T bs[s]. */
#define MULTIPLY(s)                                                                                           \
  UNROLL for (int u = 0; u < BK; ++u) {                                                                       \
    float4 va[TM / 4], vb[TN / 4];                                                                            \
    UNROLL for (int i = 0; i < TM / 4; ++i) va[i] = *(__local const float4 *)(as[s] + u * LDA + (i * TY + ty) * 4); \
    UNROLL for (int j = 0; j < TN / 4; ++j) vb[j] = *(__local const float4 *)(bs[s] + u * BN + COLUMN(j));    \
    UNROLL for (int i = 0; i < TM / 4; ++i) {                                                                 \
      UNROLL for (int j = 0; j < TN / 4; ++j) {                                                               \
        acc[i * 4][j] = fma((float4)(va[i].x), vb[j], acc[i * 4][j]);                                         \
        acc[i * 4 + 1][j] = fma((float4)(va[i].y), vb[j], acc[i * 4 + 1][j]);                                 \
        acc[i * 4 + 2][j] = fma((float4)(va[i].z), vb[j], acc[i * 4 + 2][j]);                                 \
        acc[i * 4 + 3][j] = fma((float4)(va[i].w), vb[j], acc[i * 4 + 3][j]);                                 \
      }                                                                                                       \
    }                                                                                                         \
  }

#define LDA (BM + 4)
/* Rows of A are pixels, and adjacent steps of k are adjacent in memory: vectors along k are stored transposed. */
#define STEP_A (item % (BK / VA) * VA)
#define LINE_A(i) ((item + (i) * ITEMS) / (BK / VA))
#define FETCH(k_at)                                                                                           \
  {                                                                                                           \
    const int di = tap_i * dy_, dj = tap_j * dx_, some = (k_at) + STEP_A < k_end;                             \
    UNROLL for (int i = 0; i < COUNT_A; ++i) {                                                                \
      const int4 pixel = pixel_of[LINE_A(i)];                                                                 \
      const int iy = pixel.y + di, ix = pixel.z + dj;                                                         \
      const int inside = some & ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w);                            \
      next_a[i] = inside ? READ_A(x + (pixel.x + (iy * in_w + ix) * channels + at_c)) : NO_A;                 \
    }                                                                                                         \
    UNROLL for (int i = 0; i < COUNT_B; ++i) {                                                                \
      const int step = (k_at) + STEP_B(i);                                                                    \
      next_b[i] = step < k_end && LINE_B < left ? READ_B(w + (long)step * o + LINE_B) : NO_B;                 \
    }                                                                                                         \
    at_c += BK;                                                                                               \
    while (at_c >= c) {                                                                                       \
      at_c -= c;                                                                                              \
      if (++tap_j == taps_w) tap_j = 0, ++tap_i;                                                              \
    }                                                                                                         \
  }
#if VA == 4
#define KEEP_A(s)                                                                                             \
  UNROLL for (int i = 0; i < COUNT_A; ++i) {                                                                  \
    __local float *to = as[s] + STEP_A * LDA + LINE_A(i);                                                     \
    to[0] = next_a[i].x, to[LDA] = next_a[i].y, to[2 * LDA] = next_a[i].z, to[3 * LDA] = next_a[i].w;         \
  }
#else
#define KEEP_A(s) UNROLL for (int i = 0; i < COUNT_A; ++i) as[s][STEP_A * LDA + LINE_A(i)] = next_a[i];
#endif

__kernel void conv_gemm(__global const T *restrict x, __global const T *restrict w, __global const T *restrict bias,
                        __global T *restrict y, long y_off, long y_n, long y_h, long y_w, long pixels, int groups, int o, int c, AXES,
                        int flags TREE_PARAMETERS) {
  __local float as[2][BK * LDA] __attribute__((aligned(16)));
  __local float bs[2][BK * BN] __attribute__((aligned(16)));
  /* For each row's pixel: the start of its image, and the position of its first tap. */
  __local int4 pixel_of[BM];
  PLACES
  const int columns = (o + BN - 1) / BN, n0 = get_group_id(0) % columns * BN, left = o - n0;
  const int g = get_group_id(2), channels = groups * c, k_end = taps_h * taps_w * c;
  const long p0 = (long)(get_group_id(0) / columns) * BM;
  x += g * c;
  w += (long)g * k_end * o + n0;
  for (int e = item; e < BM; e += ITEMS) {
    const long p = p0 + e;
    const int there = p < pixels;
    pixel_of[e] = (int4)(there ? (int)(p / out_w / out_h) * in_h * in_w * channels : 0,
                         there ? (int)(p / out_w % out_h) * sy + oy : -(1 << 30), (int)(p % out_w) * sx + ox, 0);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int at_c = STEP_A % c, tap_j = STEP_A / c % taps_w, tap_i = STEP_A / c / taps_w, s = 0;
  VecA next_a[COUNT_A];
  VecB next_b[COUNT_B];
  FETCH(0)
  KEEP_A(0)
  KEEP_B(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k0 = 0; k0 < k_end; k0 += BK) {
    const int more = k0 + BK < k_end;
    if (more) FETCH(k0 + BK)
    MULTIPLY(s)
    if (more) {
      KEEP_A(s ^ 1)
      KEEP_B(s ^ 1)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    s ^= 1;
  }
  y += y_off + g * o + n0;
  if (flags & BIAS) bias += g * o + n0;
  UNROLL for (int i = 0; i < TM; ++i) {
    const long p = p0 + ROW(i);
    if (p < pixels) {
      __global T *to = y + p / out_w / out_h * y_n + p / out_w % out_h * y_h + p % out_w * y_w;
      UNROLL for (int j = 0; j < TN / 4; ++j) {
#if VB == 4
        if (COLUMN(j) < left) {
          const float4 sum = flags & BIAS ? acc[i][j] + load4(bias + COLUMN(j)) : acc[i][j];
          store4(to + COLUMN(j), TREE_V(sum, p, g * o + n0 + COLUMN(j), groups * o));
        }
#else
        const float v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
        UNROLL for (int e = 0; e < 4; ++e) {
          const int column = COLUMN(j) + e;
          if (column < left) {
            const float sum = flags & BIAS ? v[e] + LD(bias, column) : v[e];
            ST(to, column, TREE_1(sum, p, g * o + n0 + column, groups * o));
          }
        }
#endif
      }
    }
  }
}

#undef LDA
#undef STEP_A
#undef LINE_A
#undef FETCH
#undef KEEP_A
#define LDA BM
/* Rows of A are k, and adjacent channels are adjacent in memory; an item reads the same channels of several pixels. */
#define STEP_A(i) ((item + (i) * ITEMS) / (BM / VA))
#define LINE_A (item % (BM / VA) * VA)
#define FETCH(s, p_at)                                                                                        \
  UNROLL for (int i = 0; i < COUNT_A; ++i) {                                                                  \
    const int4 pixel = pixel_of[s][STEP_A(i)];                                                                \
    const int iy = pixel.y + i_at, ix = pixel.z + j_at;                                                       \
    const int inside = some & ((uint)iy < (uint)in_h) & ((uint)ix < (uint)in_w);                              \
    next_a[i] = inside ? READ_A(x + (pixel.x + (iy * in_w + ix) * channels)) : NO_A;                          \
  }                                                                                                           \
  UNROLL for (int i = 0; i < COUNT_B; ++i) {                                                                  \
    const long p = (p_at) + STEP_B(i);                                                                        \
    next_b[i] = p < p1 && LINE_B < left ? READ_B(dy + p * groups * o + LINE_B) : NO_B;                        \
  }
#define KEEP_A(s)                                                                                             \
  UNROLL for (int i = 0; i < COUNT_A; ++i) *(__local VecA *)(as[s] + STEP_A(i) * LDA + LINE_A) = next_a[i];
/* Computes for the pixels of a slice the start of their image and their position in it; outside of the image past the part's end. */
#define LOCATE(s, p_at)                                                                                       \
  if (item < BK) {                                                                                            \
    const long p = (p_at) + item;                                                                             \
    const int there = p < p1;                                                                                 \
    pixel_of[s][item] = (int4)(there ? (int)(p / out_w / out_h) * in_h * in_w * channels : 0,                 \
                               there ? (int)(p / out_w % out_h) * sy : -(1 << 30), (int)(p % out_w) * sx, 0); \
  }

__kernel void conv_gemm_weights(__global const T *restrict x, __global const T *restrict dy, __global float *restrict part, long pixels,
                                int groups, int o, int c, AXES, long each_part, int parts) {
  __local float as[2][BK * LDA] __attribute__((aligned(16)));
  __local float bs[2][BK * BN] __attribute__((aligned(16)));
  __local int4 pixel_of[2][BK];
  PLACES
  const int columns = (o + BN - 1) / BN, n0 = get_group_id(0) % columns * BN, left = o - n0;
  const int m0 = get_group_id(0) / columns * BM, channels = groups * c, k_end = taps_h * taps_w * c;
  const int g = get_group_id(2) / parts, part_at = get_group_id(2) % parts;
  const long p0 = part_at * each_part, p1 = min(pixels, p0 + each_part);
  const int k = m0 + LINE_A, some = k < k_end, tap = k / c;
  const int i_at = tap / taps_w * dy_ + oy, j_at = tap % taps_w * dx_ + ox;
  x += g * c + k % c;
  dy += g * o + n0;
  int s = 0;
  VecA next_a[COUNT_A];
  VecB next_b[COUNT_B];
  LOCATE(0, p0)
  LOCATE(1, p0 + BK)
  barrier(CLK_LOCAL_MEM_FENCE);
  FETCH(0, p0)
  KEEP_A(0)
  KEEP_B(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (long start = p0; start < p1; start += BK) {
    const int more = start + BK < p1;
    if (more) {
      FETCH(s ^ 1, start + BK)
      /* The slice that is multiplied now was loaded with these positions. */
      LOCATE(s, start + 2 * BK)
    }
    MULTIPLY(s)
    if (more) {
      KEEP_A(s ^ 1)
      KEEP_B(s ^ 1)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    s ^= 1;
  }
  part += ((long)(part_at * groups + g) * k_end + m0) * o + n0;
  UNROLL for (int i = 0; i < TM; ++i) {
    if (m0 + ROW(i) < k_end) {
      __global float *to = part + (long)ROW(i) * o;
      UNROLL for (int j = 0; j < TN / 4; ++j) {
#if VB == 4
        if (COLUMN(j) < left) *(__global float4 *)(to + COLUMN(j)) = acc[i][j];
#else
        const float v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
        UNROLL for (int e = 0; e < 4; ++e) {
          if (COLUMN(j) + e < left) to[COLUMN(j) + e] = v[e];
        }
#endif
      }
    }
  }
}
