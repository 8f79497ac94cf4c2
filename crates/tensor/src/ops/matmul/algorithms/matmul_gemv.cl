/* Product of few rows for GPUs, limited by reading B: matmul_gemv_ends.cl has the formula.
 *
 * A group keeps KC steps of A at a time as floats in local memory, normalized if requested. Its items stream B in vectors of 16 bytes and read
 * each byte once.
 * B_ALONG_K 1: LANES items share a line of B (a column), WG / LANES lines at a time, SIDE lines per set of items.
 * B_ALONG_K 0: ACROSS items own VW adjacent columns each; the WG / ACROSS sets of items process the steps of the sum in turn.
 * The items' sums are added in a fixed tree through local memory, so every run gives the same bits.
 *
 * a         T; element (i, k) at a_off + i*a_rs + k*a_cs
 * b         T; element (k, j) at b_off + k*b_rs + j*b_cs; b_rs is 1 with B_ALONG_K 1, otherwise b_cs is 1
 * bias      T (N), or (2N) with GATED; read when flags has BIAS
 * c         T (M, N), dense
 * part      float (splits, M, N), elements in the order of C: with SPLIT. Dimension 1 of the groups splits the sum, k_part steps each.
 *           The epilogue is applied where the parts are added: by the last group of a block of columns with LAST, in order, otherwise by a launch.
 * tickets   int, with LAST: one for each block of columns, 0 before and after.
 * gamma, beta  T (K), with NORM, and eps
 * residual  T (M, N), with RESIDUAL
 * Groups    any number in dimension 0, which process blocks of LINES columns in turn, with LAST one block each; WG items.
 *
 * Defines: those of matmul_gemv_ends.cl, LANES or ACROSS (powers of two), SIDE, KC (a multiple of VW), SPLIT, LAST (tickets.cl). ALIGNED_VECTORS
 * if vectors of B start at multiples of their size. Tuned: WG.
 *
 * Design: a tall and skinny product limited by reading B (Chen et al. 2019, "TSM2").
 * Ceiling: memory bandwidth, with B read once.
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
#ifndef LAST
#define LAST 0
#endif
#if LAST
#define TICKETS_ARG , __global int *tickets
#else
#define TICKETS_ARG
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
/* Elements of a row of A that an item stages. */
#define STAGE_STEPS ((KC + WG - 1) / WG)
#if !B_ALONG_K
/* Rows whose sums are added at a time, a power of two: as many as `red` holds and as leave two items or more per element. */
#define LESS(a, b) ((a) < (b) ? (a) : (b))
#define ROWS_AT_ONCE LESS(LESS(4096 / (WG * VW), WG / LINES), M == 1 ? 1 : M == 2 ? 2 : M <= 4 ? 4 : 8)
#define ENDS_AT_ONCE (ROWS_AT_ONCE * LINES)
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void matmul_gemv(
    __global const T *restrict a, __global const B_T *restrict b, __global const T *restrict bias, __global T *restrict c,
    __global float *restrict part, long a_off, long b_off, int n, int k, long a_rs, long a_cs, long b_rs, long b_cs, int k_part, float alpha,
    int flags NORM_ARGS RESIDUAL_ARG STACK_ARGS TICKETS_ARG) {
  __local float xs[M * KC] __attribute__((aligned(32)));
  const int item = get_local_id(0);
#if LAST
  __local int is_last;
#endif
#if B_ALONG_K
  const int lane = item % LANES, set = item / LANES;
  __local float red[SUMS * M * WG];
#else
  const int lane = item % ACROSS, set = item / ACROSS;
  __local float red[ROWS_AT_ONCE * WG * VW], half_sums[WG];
#endif
  a += a_off;
  b += b_off;
#if STACK
  const ulong row_of_c = get_group_id(1);
  const uint id = ids[row_of_c];
  const int there = id < matrices;
  a += row_of_c / slots * a_rs;
  b += (there ? id : 0) * (ulong)n * PARTS * b_cs;
  c += row_of_c * n;
#else
  const int there = 1;
#endif
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
    /* Lines past the end repeat the last one. Their sums are not stored. */
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
        /* All loads are issued before the first is needed. */
        float x[M][STAGE_STEPS];
        UNROLL for (int i = 0; i < M; ++i) {
          UNROLL for (int u = 0; u < STAGE_STEPS; ++u) {
            const int j = item + u * WG;
            x[i][u] = j < kc ? LD(a, i * a_rs + (k0 + j) * a_cs) : 0.0f;
          }
        }
        UNROLL for (int i = 0; i < M; ++i) {
          UNROLL for (int u = 0; u < STAGE_STEPS; ++u) {
            const int j = item + u * WG;
            if (j >= kc) continue;
#if NORM
            x[i][u] = fma((x[i][u] - mean[i]) * by[i], LD(gamma, k0 + j) + (float)UNIT, SHIFT_1(k0 + j));
#endif
            xs[i * KC + j] = x[i][u];
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
    /* Adds the sums of a line's items, all lines and rows at a time. */
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
    /* Item e completes line e % LINES of row e / LINES. */
    for (int e = item; e < LINES * M; e += WG) {
      const int row = e / LINES, of = e % LINES, column = n0 + of;
      const float sum = red[(of % SIDE * M + row) * WG + of / SIDE * LANES];
      const float value = GATED ? red[((SUMS - SIDE + of % SIDE) * M + row) * WG + of / SIDE * LANES] : 0.0f;
#else
    /* Adds the sums of ROWS_AT_ONCE rows through local memory, red[row][set][column]. WG / ENDS_AT_ONCE items add each element. */
    UNROLL for (int row0 = 0; row0 < M; row0 += ROWS_AT_ONCE) {
      float ends[PARTS];
      UNROLL for (int s = 0; s < SUMS; ++s) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int r = 0; r < ROWS_AT_ONCE; ++r) {
          if (row0 + r < M) STV_F32(red + (r * WG + item) * VW, acc[s][row0 + r < M ? row0 + r : 0]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int end = item % ENDS_AT_ONCE, sets = row0 + end / LINES < M ? SETS : 0;
        __local const float *from = red + end / LINES * SETS * LINES + end % LINES;
        float sum = 0.0f;
        _Pragma("unroll 8") for (int j = item / ENDS_AT_ONCE; j < sets; j += WG / ENDS_AT_ONCE) sum += from[j * LINES];
        half_sums[item] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        ends[s] = 0.0f;
        if (item < ENDS_AT_ONCE) {
          for (int j = item; j < WG; j += ENDS_AT_ONCE) ends[s] += half_sums[j];
        }
      }
      const int row = row0 + item / LINES, column = n0 + item % LINES;
      const float sum = ends[0], value = GATED ? ends[PARTS - 1] : 0.0f;
      if (item < ENDS_AT_ONCE && row < M)
#endif
      if (column < n) {
#if SPLIT
        part[(ulong)get_group_id(1) * M * n + AT(row, column)] = sum;
#else
        END_ELEMENT(there ? sum : 0.0f, there ? value : 0.0f, row, column, AT(row, column));
#endif
      }
    }
#if LAST
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (item == 0) {
      __global int *turn = tickets + n0 / LINES;
      is_last = turn_taken(turn) == (int)get_num_groups(1) - 1;
      if (is_last) *turn = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!is_last) return;
    for (int e = item; e < LINES * M; e += WG) {
      const int row = SWAPPED ? e % M : e / LINES, column = n0 + (SWAPPED ? e / M : e % LINES);
      if (column >= n) continue;
      __global const float *from = part + AT(row, column);
      float sum = 0.0f;
      _Pragma("unroll 8") for (int s = 0; s < (int)get_num_groups(1); ++s) sum += part_1_of(from + (ulong)s * M * n);
      END_ELEMENT(sum, 0.0f, row, column, AT(row, column));
    }
#endif
  }
}
