/* Matrix product for GPUs: C[z] = alpha * A[z] B[z] + (bias | 0) + (C[z] | 0), batch z, sums in f32.
 *
 * A work-group owns a tile of BM by BN of one batch of C, a work-item TM by TN of it in registers. BK steps of the sum at a time go
 * through two local buffers: while one is multiplied, the next is on its way from memory in registers. Work-groups walk C in
 * bands of 8 tile rows, so that those running together share rows of A and columns of B in the cache.
 *
 * Where C has too few tiles to fill a device (gradients of weights), `splits` groups share a tile: each sums its part of k
 * into `part`, and matmul_tile_sum adds the parts in order. The result has the same bits on every run.
 *
 * With ASYNC (NVIDIA from sm_80 on, f32) copies go from memory to local memory without registers (cp.async), STAGES - 1 slices
 * ahead; elements outside the matrices arrive as zeros.
 *
 * a, b      T; element (i, j) of batch (z0, z1) at off + z0*s0 + z1*s1 + i*rs + j*cs, any strides.
 * bias      T (N), read when flags has BIAS.
 * c         T (Z, M, N), dense. With ADD_C it is added to.
 * part      float (splits, Z, M, N), written when splits > 1; c, bias, alpha and flags then belong to matmul_tile_sum.
 * m n k z1  sizes; z1 is the inner batch count. k_part: steps of the sum a split does, in whole BK.
 * Groups    (tiles, splits, Z) of WG = (BM / TM) * (BN / TN) items. matmul_tile_sum: items over Z*M*N.
 *
 * Defines: DTYPE; A_ALONG_K, B_ALONG_K: the axis of A or B with stride 1 is k (it decides who reads what, so that
 * neighbours read neighbours); VA, VB 4 where 4 elements along that axis can be read at once: its size, all other strides
 * and the start are multiples of 4, else 1. BM, BN, TM, TN in fours. Tuned: BK.
 */
#ifndef A_ALONG_K
#define A_ALONG_K 1
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 0
#endif
#ifndef VA
#define VA 1
#endif
#ifndef VB
#define VB 1
#endif
#ifndef BM
#define BM 64
#endif
#ifndef BN
#define BN 64
#endif
#ifndef BK
#define BK 16
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 4
#endif
#ifndef ASYNC
#define ASYNC 0
#endif
#if ASYNC
#define STAGES 3
#else
#define STAGES 2
#endif
#define ADD_C 1
#define BIAS 2
#define TX (BN / TN)
#define TY (BM / TM)
#define ITEMS (TX * TY)
#define BAND 8
/* Transposing writes go down columns: padding spreads them over the banks. */
#define LDA (BM + 4 * A_ALONG_K)
#define LDB (BN + 4 * B_ALONG_K)
#define UNROLL _Pragma("unroll")

/* Four neighbours at an address that is a multiple of four elements. */
static inline float4 load4(__global const T *p) {
#if DTYPE == 0
  return *(__global const float4 *)p;
#elif DTYPE == 1
  const ushort4 bits = *(__global const ushort4 *)p;
  return vload_half4(0, (const half *)&bits);
#else
  return as_float4(convert_uint4(*(__global const ushort4 *)p) << 16);
#endif
}

/* One BK slice of an operand, as far as ITEMS items read it: each NEXT_x vectors of V_x.
 * x: A or B; SIDE: BM or BN; line: m or n of the first row or column; lines: their number. */
#define VECTORS(SIDE, V) ((SIDE) * BK / (V) / ITEMS)
#define LINE_OF(e, SIDE, V, ALONG_K) ((ALONG_K) ? (e) / (BK / (V)) : (e) % ((SIDE) / (V)) * (V))
#define STEP_OF(e, SIDE, V, ALONG_K) ((ALONG_K) ? (e) % (BK / (V)) * (V) : (e) / ((SIDE) / (V)))

#define FETCH(to, p, line, lines, line_stride, k_stride, SIDE, V, ALONG_K, k_at)                              \
  UNROLL for (int i = 0; i < VECTORS(SIDE, V); ++i) {                                                         \
    const int e = item + i * ITEMS;                                                                           \
    const int at = (line) + LINE_OF(e, SIDE, V, ALONG_K), step = (k_at) + STEP_OF(e, SIDE, V, ALONG_K);       \
    const int inside = at < (lines) && step < k_end;                                                          \
    __global const T *from = (p) + at * (line_stride) + step * (k_stride);                                    \
    FETCH_##V(to, i, from, inside)                                                                            \
  }
#define FETCH_4(to, i, from, inside) to[i] = inside ? load4(from) : (float4)(0.0f);
#define FETCH_1(to, i, from, inside) to[i] = inside ? LD(from, 0) : 0.0f;

#define KEEP(tile, LD_TILE, from, SIDE, V, ALONG_K)                                                           \
  UNROLL for (int i = 0; i < VECTORS(SIDE, V); ++i) {                                                         \
    const int e = item + i * ITEMS;                                                                           \
    const int at = LINE_OF(e, SIDE, V, ALONG_K), step = STEP_OF(e, SIDE, V, ALONG_K);                         \
    __local float *to = (tile) + step * (LD_TILE) + at;                                                       \
    KEEP_##V(to, from[i], LD_TILE, ALONG_K)                                                                   \
  }
#define KEEP_1(to, v, LD_TILE, ALONG_K) *to = v;
#define KEEP_4(to, v, LD_TILE, ALONG_K)                                                                       \
  if (ALONG_K) {                                                                                              \
    to[0] = v.x, to[LD_TILE] = v.y, to[2 * (LD_TILE)] = v.z, to[3 * (LD_TILE)] = v.w;                         \
  } else {                                                                                                    \
    *(__local float4 *)to = v;                                                                                \
  }

#if VA == 4
typedef float4 VecA;
#else
typedef float VecA;
#endif
#if VB == 4
typedef float4 VecB;
#else
typedef float VecB;
#endif
/* One more expansion, so that VA and VB are numbers before they are pasted. */
#define FETCH_X(to, p, line, lines, ls, ks, SIDE, V, ALONG_K, k_at) FETCH(to, p, line, lines, ls, ks, SIDE, V, ALONG_K, k_at)
#define KEEP_X(tile, LD_TILE, from, SIDE, V, ALONG_K) KEEP(tile, LD_TILE, from, SIDE, V, ALONG_K)

#define FETCH_BOTH(k_at)                                                                                      \
  FETCH_X(next_a, a, m0, m, a_rs, a_cs, BM, VA, A_ALONG_K, k_at)                                              \
  FETCH_X(next_b, b, n0, n, b_cs, b_rs, BN, VB, B_ALONG_K, k_at)
#define KEEP_BOTH(s)                                                                                          \
  KEEP_X(as[s], LDA, next_a, BM, VA, A_ALONG_K)                                                               \
  KEEP_X(bs[s], LDB, next_b, BN, VB, B_ALONG_K)

#if ASYNC
/* `bytes` of 16 or 4, the rest zeros. */
static inline void copy16(__local float *to, __global const float *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint)(size_t)to), "l"(from), "r"(bytes));
}
static inline void copy4(__local float *to, __global const float *from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint)(size_t)to), "l"(from), "r"(bytes));
}
/* Where k is contiguous, elements are copied one by one and neighbours lie LD_TILE apart: every eighth step has its
 * lines exchanged, so that the writes spread over the banks; PLACED undoes it. */
#define LINE_PLACE(at, step) ((at) ^ ((step) >> 3 & 3))
#define PLACED(v, step, ALONG_K) \
  (!(ALONG_K) || ((step) >> 3 & 3) == 0 ? (v) : ((step) >> 3 & 3) == 1 ? (v).yxwz : ((step) >> 3 & 3) == 2 ? (v).zwxy : (v).wzyx)
/* An item's first place in a slice; the others lie LINES_APART lines or STEPS_APART steps further. */
#define LINES_APART (ITEMS / BK)
#define STEPS_APART(SIDE) (ITEMS / (SIDE / 4))
#define PLACE(SIDE, ALONG_K) ((ALONG_K) ? item / BK : item % (SIDE / 4) * 4)
#define STEP(SIDE, ALONG_K) ((ALONG_K) ? item % BK : item / (SIDE / 4))
#define SEND(tile, LD_TILE, from, line, lines, line_stride, k_stride, SIDE, ALONG_K, left)                    \
  {                                                                                                           \
    __global const float *next = from;                                                                        \
    const int place = PLACE(SIDE, ALONG_K), step = STEP(SIDE, ALONG_K);                                       \
    if (ALONG_K) {                                                                                            \
      UNROLL for (int i = 0; i < SIDE / LINES_APART; ++i) {                                                   \
        copy4((tile) + step * (LD_TILE) + LINE_PLACE(place + i * LINES_APART, step), next,                    \
              (line) + place + i * LINES_APART < (lines) && step < (left) ? 4 : 0);                           \
        next += LINES_APART * (line_stride);                                                                  \
      }                                                                                                       \
    } else {                                                                                                  \
      const int bytes = min(max(((lines) - (line) - place) * 4, 0), 16);                                      \
      UNROLL for (int i = 0; i < BK / STEPS_APART(SIDE); ++i) {                                               \
        copy16((tile) + (step + i * STEPS_APART(SIDE)) * (LD_TILE) + place, next,                             \
               step + i * STEPS_APART(SIDE) < (left) ? bytes : 0);                                            \
        next += STEPS_APART(SIDE) * (k_stride);                                                               \
      }                                                                                                       \
    }                                                                                                         \
    from += BK * (k_stride);                                                                                  \
  }
/* The next slice into buffer s; `left` steps of the sum are left from it on. */
#define SEND_BOTH(s, left)                                                                                    \
  SEND(as[s], LDA, from_a, m0, m, a_rs, a_cs, BM, A_ALONG_K, left)                                            \
  SEND(bs[s], LDB, from_b, n0, n, b_cs, b_rs, BN, B_ALONG_K, left)
#else
#define PLACED(v, step, ALONG_K) (v)
#endif

/* One finished element: the epilogue of both kernels. */
static inline void finish(__global T *c, __global const T *bias, ulong at, int column, float sum, float alpha, int flags) {
  float v = alpha * sum;
  if (flags & BIAS) v += LD(bias, column);
  if (flags & ADD_C) v += LD(c, at);
  ST(c, at, v);
}

__kernel void matmul_tile(__global const T *restrict a, __global const T *restrict b, __global const T *restrict bias,
                          __global T *restrict c, __global float *restrict part, long a_off, long b_off, int m, int n,
                          int k, int z1, long a_s0, long a_s1, long b_s0, long b_s1, long a_rs, long a_cs, long b_rs, long b_cs,
                          int k_part, float alpha, int flags) {
  __local float as[STAGES][BK * LDA] __attribute__((aligned(16)));
  __local float bs[STAGES][BK * LDB] __attribute__((aligned(16)));
  const int item = get_local_id(0);
  const int rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN, tile = get_group_id(0);
  const int band = tile / (BAND * columns), within = tile % (BAND * columns), high = min(rows - band * BAND, BAND);
  const int m0 = (band * BAND + within % high) * BM, n0 = within / high * BN;
  const long z = get_group_id(2);
  a += a_off + z / z1 * a_s0 + z % z1 * a_s1;
  b += b_off + z / z1 * b_s0 + z % z1 * b_s1;
  /* 32 neighbours own 4 x 8 places: few distinct addresses a read, so local memory broadcasts. */
  const int w = item / 32, l = item % 32;
  const int ty = w / (TX / 8) * 4 + l / 8, tx = w % (TX / 8) * 8 + l % 8;

  float4 acc[TM][TN / 4];
  UNROLL for (int i = 0; i < TM; ++i) {
    UNROLL for (int j = 0; j < TN / 4; ++j) acc[i][j] = (float4)(0.0f);
  }
  const int k_start = get_group_id(1) * k_part, k_end = min(k, k_start + k_part);
  int s = 0;
#if ASYNC
  __global const float *from_a = a + (m0 + PLACE(BM, A_ALONG_K)) * a_rs + (k_start + STEP(BM, A_ALONG_K)) * a_cs;
  __global const float *from_b = b + (n0 + PLACE(BN, B_ALONG_K)) * b_cs + (k_start + STEP(BN, B_ALONG_K)) * b_rs;
  UNROLL for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (k_start + ahead * BK < k_end) {
      SEND_BOTH(ahead, k_end - k_start - ahead * BK)
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int k0 = k_start; k0 < k_end; k0 += BK) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    if (k0 + (STAGES - 1) * BK < k_end) {
      const int into = s == 0 ? STAGES - 1 : s - 1;
      SEND_BOTH(into, k_end - k0 - (STAGES - 1) * BK)
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
  VecA next_a[VECTORS(BM, VA)];
  VecB next_b[VECTORS(BN, VB)];
  FETCH_BOTH(k_start)
  KEEP_BOTH(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k0 = k_start; k0 < k_end; k0 += BK) {
    const int more = k0 + BK < k_end;
    if (more) {
      FETCH_BOTH(k0 + BK)
    }
#endif
    UNROLL for (int u = 0; u < BK; ++u) {
      float4 va[TM / 4], vb[TN / 4];
      UNROLL for (int i = 0; i < TM / 4; ++i) {
        va[i] = *(__local const float4 *)(as[s] + u * LDA + (i * TY + ty) * 4);
        va[i] = PLACED(va[i], u, A_ALONG_K);
      }
      UNROLL for (int j = 0; j < TN / 4; ++j) {
        vb[j] = *(__local const float4 *)(bs[s] + u * LDB + (j * TX + tx) * 4);
        vb[j] = PLACED(vb[j], u, B_ALONG_K);
      }
      UNROLL for (int i = 0; i < TM / 4; ++i) {
        UNROLL for (int j = 0; j < TN / 4; ++j) {
          acc[i * 4 + 0][j] = fma((float4)(va[i].x), vb[j], acc[i * 4 + 0][j]);
          acc[i * 4 + 1][j] = fma((float4)(va[i].y), vb[j], acc[i * 4 + 1][j]);
          acc[i * 4 + 2][j] = fma((float4)(va[i].z), vb[j], acc[i * 4 + 2][j]);
          acc[i * 4 + 3][j] = fma((float4)(va[i].w), vb[j], acc[i * 4 + 3][j]);
        }
      }
    }
#if ASYNC
    s = s == STAGES - 1 ? 0 : s + 1;
#else
    if (more) {
      KEEP_BOTH(s ^ 1)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    s ^= 1;
#endif
  }

  const ulong plane = (ulong)m * n;
  const int whole = get_num_groups(1) == 1;
  if (whole) c += z * plane;
  else part += (get_group_id(1) * get_num_groups(2) + z) * plane;
  UNROLL for (int i = 0; i < TM; ++i) {
    const int row = m0 + (i / 4 * TY + ty) * 4 + i % 4;
    if (row < m) {
      UNROLL for (int j = 0; j < TN / 4; ++j) {
        const int column = n0 + (j * TX + tx) * 4;
        const float v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
        UNROLL for (int x = 0; x < 4; ++x) {
          if (column + x < n) {
            const ulong at = (ulong)row * n + column + x;
            if (whole) finish(c, bias, at, column + x, v[x], alpha, flags);
            else part[at] = v[x];
          }
        }
      }
    }
  }
}

/* C from the parts of its sums, added in the order of k. planes = Z, splits = their number. */
__kernel void matmul_tile_sum(__global const float *restrict part, __global const T *restrict bias, __global T *restrict c,
                              ulong count, int n, int splits, float alpha, int flags) {
  const ulong at = get_global_id(0);
  if (at >= count) return;
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * count + at];
  finish(c, bias, at, (int)(at % n), sum, alpha, flags);
}
