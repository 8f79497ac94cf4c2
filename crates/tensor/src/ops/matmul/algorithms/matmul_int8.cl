/* Product of few rows by quantized rows for GPUs, in integers. Activations are rounded to bytes while they are staged, and codes are multiplied
 * by codes. matmul_gemv_ends.cl has the formula, matmul_int8_panels.cl the rounding.
 *
 * A group keeps KC steps of A at a time as bytes in local memory and streams B: LANES items share a line, and each processes groups of 32
 * elements in turn. The products of such a group are added exactly, as int. The items' sums are added in a fixed tree.
 *
 * a, b, bias, c, gamma, beta, eps, residual  as in matmul_int8_panels.cl, except that B's lines are rows of blocks in a file's order, or in planes,
 *           from b_off on
 * Groups    any number, which process blocks of WG / LANES columns in turn; WG items.
 *
 * Defines: those of matmul_gemv_ends.cl and of quant/codes.cl; LANES a power of two; KC a multiple of BLOCK. Tuned: WG.
 *
 * Design: that of matmul_gemv.cl, with dot products of four bytes.
 * Ceiling: memory bandwidth, with B read once.
 */
#ifndef LANES
#define LANES 32
#endif
#ifndef KC
#define KC 256
#endif
#define LINES (WG / LANES)
#define GROUPS (KC / 32)

/* Initial value of a group's sum, or the value that its minimum is multiplied by. */
#if LOW
typedef float START;
#define STARTS(scale, sum) ((scale) * (float)(sum))
#else
typedef int START;
#define STARTS(scale, sum) (-ZERO * (sum))
#endif

#if NORM
#define ELEMENT(i, j) fma((LD(a, (i) * a_rs + (j) * a_cs) - mean[i]) * by[i], LD(gamma, j) + (float)UNIT, SHIFT_1(j))
#else
#define ELEMENT(i, j) LD(a, (i) * a_rs + (j) * a_cs)
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void matmul_int8(
    __global const T *restrict a, __global const uchar *restrict b, __global const T *restrict bias, __global T *restrict c, long a_off,
    long b_off, long c_off, int n, int k, long a_rs, long a_cs, long b_cs, long c_rs, float alpha, int flags NORM_ARGS RESIDUAL_ARG STACK_ARGS) {
  __local int xs[M * KC / 4];
  __local float d[M * GROUPS];
  __local START start[M * GROUPS * HALVES];
  __local float red[PARTS * M * WG];
  const int item = get_local_id(0), lane = item % LANES, set = item / LANES;
  a += a_off;
  b += b_off;
#if STACK
  const ulong row_of_c = get_group_id(1);
  const uint id = ids[row_of_c];
  const int there = id < matrices;
  a += row_of_c / slots * a_rs;
  b += (there ? id : 0) * (ulong)n * PARTS * b_cs;
  c += row_of_c * c_rs;
#else
  const int there = 1;
#endif
#if NORM
  float mean[M], by[M];
  GROUP_SCRATCH(scratch);
  measure(mean, by, scratch, a, k, a_rs, a_cs, eps);
#endif
  for (int n0 = get_group_id(0) * LINES; n0 < n; n0 += get_num_groups(0) * LINES) {
    float acc[PARTS][M];
    /* Lines past the end repeat the last one. Their sums are not stored. */
    __global const uchar *line[PARTS];
    UNROLL for (int s = 0; s < PARTS; ++s) {
      line[s] = b + (min(n0 + set, n - 1) + s * n) * b_cs;
      UNROLL for (int i = 0; i < M; ++i) acc[s][i] = 0.0f;
    }
    for (int k0 = 0; k0 < k; k0 += KC) {
      const int groups = min(KC, k - k0) / 32;
      if (k > KC || n0 == get_group_id(0) * LINES) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int e = item; e < M * groups; e += WG) {
          const int i = e / groups, j = e % groups, at = k0 + 32 * j;
          /* Magnitudes of floats have the order of their bits, and NaNs are above all of them. */
          uint most = 0;
          for (int l = 0; l < 32; ++l) most = max(most, as_uint((float)(ELEMENT(i, at + l))) & 0x7fffffffu);
          const int finite = most < 0x7f800000u;
          /* Below 2^-100 all elements become zero, since the factor must be finite. */
          const float top = finite && most >= 0x0d800000u ? as_float(most) : 0.0f;
          const float factor = top > 0.0f ? 127.0f / top : 0.0f, scale = finite ? top / 127.0f : NAN;
          d[i * GROUPS + j] = scale;
          for (int h = 0; h < HALVES; ++h) {
            int sum = 0;
            for (int w = h * (8 / HALVES); w < (h + 1) * (8 / HALVES); ++w) {
              uint four = 0;
              UNROLL for (int l = 0; l < 4; ++l) {
                /* The bits of the float 3 * 2^22 + x are those of 3 * 2^22, plus x rounded to the nearest even integer. */
                const float x = finite ? ELEMENT(i, at + 4 * w + l) : 0.0f;
                const int q = as_int(fma(x, factor, 12582912.0f)) - 0x4b400000;
                sum += q;
                four |= ((uint)q & 255u) << (8 * l);
              }
              xs[i * (KC / 4) + 8 * j + w] = as_int(four);
            }
            start[(i * GROUPS + j) * HALVES + h] = STARTS(scale, sum);
          }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
      for (int j = lane; j < groups; j += LANES) {
#if PLANES
        const int g = k0 / 32 + j;
#else
        const int of = k0 / 32 + j, g = of % (BLOCK / 32);
#endif
        UNROLL for (int s = 0; s < PARTS; ++s) {
#if PLANES
          const PlaneRow block = {line[s], k};
#else
          BLOCK_AT block = line[s] + of / (BLOCK / 32) * BYTES;
#endif
          UNROLL for (int h = 0; h < HALVES; ++h) {
            int sum[M];
            UNROLL for (int i = 0; i < M; ++i) sum[i] = LOW ? 0 : (int)start[(i * GROUPS + j) * HALVES + h];
            UNROLL for (int w = h * (8 / HALVES); w < (h + 1) * (8 / HALVES); ++w) {
              const U four = codes(block, g, w);
              UNROLL for (int i = 0; i < M; ++i) sum[i] = dot4(sum[i], four, xs[i * (KC / 4) + 8 * j + w]);
            }
            const float by_h = scale(block, g, h);
#if LOW
            const float from = low(block, g, h);
#endif
            UNROLL for (int i = 0; i < M; ++i) {
              acc[s][i] = fma((float)sum[i], by_h * d[i * GROUPS + j], acc[s][i]);
#if LOW
              acc[s][i] = fma(from, start[(i * GROUPS + j) * HALVES + h], acc[s][i]);
#endif
            }
          }
        }
      }
    }
    /* Adds the sums of a line's items, all lines and rows at a time. */
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int s = 0; s < PARTS; ++s) {
      UNROLL for (int i = 0; i < M; ++i) red[(s * M + i) * WG + item] = acc[s][i];
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (lane < apart) {
        UNROLL for (int s = 0; s < PARTS * M; ++s) red[s * WG + item] += red[s * WG + item + apart];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = item; e < LINES * M; e += WG) {
      const int row = e / LINES, column = n0 + e % LINES;
      const float sum = red[row * WG + e % LINES * LANES], value = red[((PARTS - 1) * M + row) * WG + e % LINES * LANES];
      if (column < n) {
        const ulong at = c_off + row * c_rs + column;
        END_ELEMENT(there ? sum : 0.0f, there ? value : 0.0f, row, column, at);
      }
    }
  }
}
