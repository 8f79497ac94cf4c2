/* Product of few rows for GPUs, where reading B is all that takes time: see matmul_gemv_ends.cl for what it computes.
 *
 * A group keeps KC steps of A at a time as floats in local memory, normalised where that is asked for, and its items stream B past them in
 * vectors of 16 bytes, each byte once.
 * B_ALONG_K 1: LANES items share a line of B (a column), WG / LANES lines at a time, SIDE lines to each set of items.
 * B_ALONG_K 0: ACROSS items own VW neighbouring columns each, WG / ACROSS sets of items take every so many'th step of the sum.
 * The items' sums join in a fixed tree through local memory, so the same bits come on every run.
 *
 * a         T; element (i, k) at a_off + i*a_rs + k*a_cs
 * b         T; element (k, j) at b_off + k*b_rs + j*b_cs, b_rs or b_cs 1 as B_ALONG_K says
 * bias      T (N), or (2N) with GATED; read when flags has BIAS
 * c         T (M, N), dense
 * part      float (splits, M, N): with SPLIT, where dimension 1 of the groups shares the sum out, k_part steps each. Epilogues are left to
 *           whoever adds the parts up.
 * gamma, beta  T (K), with NORM, and eps
 * residual  T (M, N), with RESIDUAL
 * Groups    any number in dimension 0, which take blocks of LINES columns in turn; WG items.
 *
 * Defines: those of matmul_gemv_ends.cl, LANES or ACROSS (powers of two), SIDE, KC (a multiple of VW), SPLIT. ALIGNED_VECTORS where vectors of B start at
 * multiples of their size. Tuned: WG.
 *
 * Design: a tall and skinny product bound by the reading of B (Chen et al. 2019, "TSM2").
 * Ceiling: B read once, the memory's bandwidth.
 */
#ifndef LANES
#define LANES 32
#endif
#ifndef ACROSS
#define ACROSS 8
#endif
#ifndef SIDE
#define SIDE 1
#endif
#ifndef KC
#define KC 1024
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#if B_ALONG_K
#define SETS (WG / LANES)
#define LINES (SETS * SIDE)
#define SUMS (SIDE * PARTS)
#else
#define SETS (WG / ACROSS)
#define LINES (ACROSS * VW)
#define SUMS PARTS
#endif
#define LDX(p) (*(__local const FV *)(p))

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void matmul_gemv(
    __global const T *restrict a, __global const B_T *restrict b, __global const T *restrict bias, __global T *restrict c,
    __global float *restrict part, long a_off, long b_off, int n, int k, long a_rs, long a_cs, long b_rs, long b_cs, int k_part, float alpha,
    int flags NORM_ARGS RESIDUAL_ARG) {
  __local float xs[M * KC] __attribute__((aligned(32)));
  const int item = get_local_id(0);
#if B_ALONG_K
  const int lane = item % LANES, set = item / LANES;
  __local float red[SUMS * M * WG];
#else
  const int lane = item % ACROSS, set = item / ACROSS;
  __local float red[WG * VW];
#endif
  a += a_off;
  b += b_off;
#if NORM
  float mean[M], by[M];
  GROUP_SCRATCH(scratch);
  measure(mean, by, scratch, a, k, a_rs, a_cs, eps);
#endif
  const int k_first = SPLIT ? get_group_id(1) * k_part : 0, k_last = SPLIT ? min(k, k_first + k_part) : k;
  const int again = k_last - k_first > KC; /* A does not fit as a whole */

  for (int n0 = get_group_id(0) * LINES; n0 < n; n0 += get_num_groups(0) * LINES) {
#if B_ALONG_K
    FV acc[SUMS][M];
    /* Lines past the end repeat the last one: their sums go nowhere. */
    __global const B_T *line[SUMS];
    UNROLL for (int s = 0; s < SUMS; ++s) line[s] = b + (min(n0 + set * SIDE + s % SIDE, n - 1) + s / SIDE * n) * b_cs;
#else
    FV acc[SUMS][M];
    const int column = n0 + lane * VW, inside = min(VW, n - column);
#endif
    UNROLL for (int s = 0; s < SUMS; ++s) {
      UNROLL for (int i = 0; i < M; ++i) acc[s][i] = (FV)(0.0f);
    }
    for (int k0 = k_first; k0 < k_last; k0 += KC) {
      const int kc = min(KC, k_last - k0);
      if (again || n0 == get_group_id(0) * LINES) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < M; ++i) {
          for (int j = item; j < kc; j += WG) {
            float x = LD(a, i * a_rs + (k0 + j) * a_cs);
#if NORM
            x = fma((x - mean[i]) * by[i], LD(gamma, k0 + j) + (float)UNIT, SHIFT_1(k0 + j));
#endif
            xs[i * KC + j] = x;
          }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
#if B_ALONG_K
      int j = lane * VW;
      _Pragma("unroll 4") for (; j + VW <= kc; j += LANES * VW) {
        UNROLL for (int s = 0; s < SUMS; ++s) {
          const FV w = LINE(line[s], k0 + j);
          UNROLL for (int i = 0; i < M; ++i) acc[s][i] = fma(w, LDX(xs + i * KC + j), acc[s][i]);
        }
      }
#if !QUANT /* whose lines are whole blocks */
      if (j < kc) {
        UNROLL for (int s = 0; s < SUMS; ++s) {
          const FV w = load_part(line[s] + k0 + j, kc - j);
          UNROLL for (int i = 0; i < M; ++i) {
            float x[VW];
            for (int l = 0; l < VW; ++l) x[l] = j + l < kc ? xs[i * KC + j + l] : 0.0f;
            acc[s][i] = fma(w, LDV_F32(x), acc[s][i]);
          }
        }
      }
#endif
#else
      if (inside == VW) {
        _Pragma("unroll 4") for (int j = set; j < kc; j += SETS) {
          UNROLL for (int s = 0; s < SUMS; ++s) {
            const FV w = LDV(b, (k0 + j) * b_rs + s * n + column);
            UNROLL for (int i = 0; i < M; ++i) acc[s][i] = fma(w, (FV)(xs[i * KC + j]), acc[s][i]);
          }
        }
      } else if (inside > 0) {
        for (int j = set; j < kc; j += SETS) {
          UNROLL for (int s = 0; s < SUMS; ++s) {
            const FV w = load_part(b + (k0 + j) * b_rs + s * n + column, inside);
            UNROLL for (int i = 0; i < M; ++i) acc[s][i] = fma(w, (FV)(xs[i * KC + j]), acc[s][i]);
          }
        }
      }
#endif
    }

#if B_ALONG_K
    /* The sums of a line's items, all lines and rows at a time. */
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int s = 0; s < SUMS; ++s) {
      UNROLL for (int i = 0; i < M; ++i) red[(s * M + i) * WG + item] = sum_lanes(acc[s][i]);
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (lane < apart) {
        UNROLL for (int s = 0; s < SUMS * M; ++s) red[s * WG + item] += red[s * WG + item + apart];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    /* Item e ends line e % LINES of row e / LINES. */
    for (int e = item; e < LINES * M; e += WG) {
      const int row = e / LINES, of = e % LINES, column = n0 + of;
      const float sum = red[(of % SIDE * M + row) * WG + of / SIDE * LANES];
      const float value = GATED ? red[((SUMS - SIDE + of % SIDE) * M + row) * WG + of / SIDE * LANES] : 0.0f;
#else
    for (int row = 0; row < M; ++row) {
      /* VW sums of a column by each of WG / LINES items, then those. */
      float ends[PARTS];
      UNROLL for (int s = 0; s < SUMS; ++s) {
        barrier(CLK_LOCAL_MEM_FENCE);
        STV_F32(red + item * VW, acc[s][row]);
        barrier(CLK_LOCAL_MEM_FENCE);
        float sum = 0.0f;
        const int of = item % LINES, from = item / LINES * VW;
        UNROLL for (int j = 0; j < VW; ++j) sum += red[(from + j) * LINES + of];
        barrier(CLK_LOCAL_MEM_FENCE);
        red[item] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        ends[s] = 0.0f;
        if (item < LINES) {
          for (int j = item; j < WG; j += LINES) ends[s] += red[j];
        }
      }
      const int column = n0 + item;
      const float sum = ends[0], value = GATED ? ends[PARTS - 1] : 0.0f;
      if (item < LINES)
#endif
      if (column < n) {
        const ulong at = (ulong)row * n + column;
#if SPLIT
        part[((ulong)get_group_id(1) * M + row) * n + column] = sum;
#else
        END_ELEMENT(sum, value, column, at);
#endif
      }
    }
  }
}
