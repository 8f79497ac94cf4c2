/* Matrix product for GPUs: C[z] = alpha * A[z] B[z] + (bias | 0) + (C[z] | 0), batch z, sums in f32.
 *
 * A work-group owns a tile of BM by BN of one batch of C, a work-item TM by TN of it in registers. BK steps of the sum at a time go through two
 * local buffers: while one is multiplied, the next is loaded from memory to registers. Work-groups process C in bands of 8 tile rows, so that
 * concurrent groups share rows of A and columns of B in the cache. Local memory is read (TM + TN) / (TM TN) times per multiplication, so small
 * tiles need 8 by 8 per item too. SLICES sets of items then own the same tile and process BK steps in turn. Their sums are added in a fixed
 * tree.
 *
 * Tiles rarely fill a device evenly. One group sums each of the first `full` tiles. Several groups share each of the `tail` tiles, each sums its
 * part of k into `part`, and matmul_tile_sum adds the parts in order. The result has the same bits on every run. With LAST (NVIDIA from sm_70
 * on), no second launch is needed: the last group of a tile to finish adds the parts, including its own, in the same order.
 *
 * With ASYNC (NVIDIA from sm_80 on, f32), copies go from memory to local memory without registers (cp.async), STAGES - 1 blocks ahead; elements
 * outside the matrices are read as zeros.
 *
 * a, b      T; element (i, j) of batch (z0, z1) at off + z0*s0 + z1*s1 + i*rs + j*cs, any strides.
 * bias      T (N), read when flags has BIAS.
 * c         T (Z, M, N), dense. With ADD_C, the product is added to it.
 * part      float (splits, tail, BM, BN), written if there is a tail.
 * tickets   int, with LAST: one for each tile of the tail, 0 before and after.
 * m n k z1  sizes; z1 is the inner batch count. k_part: steps of the sum per split, a multiple of BK.
 * Groups    full + tail * splits of WG = SLICES * (BM / TM) * (BN / TN) items. matmul_tile_sum: items over tail * BM * BN / 4.
 *
 * Defines: DTYPE; A_ALONG_K, B_ALONG_K: the axis of A or B with stride 1 is k (this selects the mapping of items, so that adjacent items read
 * adjacent elements); VA, VB 4 if 4 elements along that axis can be read at once: its size, all other strides and the start are multiples of 4,
 * otherwise 1. BM, BN, TM, TN multiples of 4. WHOLE_TILES (with ASYNC): tiles and slices divide m, n, k. LAST 0 or 1. SLICES a power of two; a
 * split's steps are a multiple of BK * SLICES.
 * Tuned: BK.
 *
 * Design: "Efficient GEMM in CUDA" (CUTLASS): tiles of groups and of registers, double buffering, rasterization by bands, split-K for the last
 * tiles; SLICES is its sliced-K.
 * Ceiling: f32 multiply-adds, 60 TFLOP/s on an H200. Reached there: 37 at 2048 x 2048 x 2048, 46 (0.87 to 0.92 of cuBLAS) at 4096 in its form
 * with asynchronous copies; a step of a tile of 64 by 64 takes 31 ns, 0.59 of the ceiling.
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
#ifndef SLICES
#define SLICES 1
#endif
#ifndef ASYNC
#define ASYNC 0
#endif
#ifndef WHOLE_TILES
#define WHOLE_TILES 0
#endif
#ifndef LAST
#define LAST 0
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
/* Transposed writes go down columns. The padding avoids bank conflicts. */
#define LDA (BM + 4 * A_ALONG_K)
#define LDB (BN + 4 * B_ALONG_K)
#define UNROLL _Pragma("unroll")
/* A generated epilogue: tree_v and tree_1 compute C's elements from the sums; they read and write TREE_PARAMETERS. VW is 4 then. */
#ifdef TREE
#define TREE_FIRST(v) ((v).s0)
#define WARM(p)
TREE
#define TREE_V(v, row, column) tree_v(v, row, column, n TREE_ARGUMENTS)
#define TREE_1(v, row, column) tree_1(v, row, column, n TREE_ARGUMENTS)
#else
#define TREE_PARAMETERS
#define TREE_ARGUMENTS
#define TREE_V(v, row, column) (v)
#define TREE_1(v, row, column) (v)
#endif

/* One BK slice of an operand, as ITEMS items read it: each item reads NEXT_x vectors of V_x elements. x: A or B; SIDE: BM or BN; line: m or n of
 * the first row or column; lines: their number. */
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
  KEEP_X(as(s), LDA, next_a, BM, VA, A_ALONG_K)                                                               \
  KEEP_X(bs(s), LDB, next_b, BN, VB, B_ALONG_K)

/* Returns the position of tile `index` of all batches: x the batch, y its first row, z its first column. */
static inline int3 place_of(int index, int m, int n) {
  const int rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN, tile = index % (rows * columns);
  const int band = tile / (BAND * columns), within = tile % (BAND * columns), high = min(rows - band * BAND, BAND);
  return (int3)(index / (rows * columns), (band * BAND + within % high) * BM, within / high * BN);
}

/* Stores four adjacent elements of a finished row, within C's edges: the epilogue of both kernels. `before`: rows of the previous batches. */
static inline void finish(__global T *c, __global const T *bias, ulong row, int n, int column, float4 sum, float alpha,
                          int flags, ulong before TREE_PARAMETERS) {
  float v[4] = {alpha * sum.x, alpha * sum.y, alpha * sum.z, alpha * sum.w};
  __global T *to = c + row * n + column;
  const int inside = min(n - column, 4);
  UNROLL for (int x = 0; x < 4; ++x) {
    if (x < inside && flags & BIAS) v[x] += LD(bias, column + x);
  }
  if (n % 4 == 0 && inside == 4) {
    float4 w = (float4)(v[0], v[1], v[2], v[3]);
    if (flags & ADD_C) w += load4(to);
    store4(to, TREE_V(w, before + row, column));
    return;
  }
  UNROLL for (int x = 0; x < 4; ++x) {
    if (x < inside) ST(to, x, TREE_1(flags & ADD_C ? v[x] + LD(to, x) : v[x], before + row, column + x));
  }
}

#if LAST
/* Vectors of four that an item adds per part, and the parts that it loads at once. */
#define EACH (BM * BN / 4 / (ITEMS * SLICES))
#define AT_ONCE (EACH < 16 ? 16 / EACH : 1)
#endif

__kernel void matmul_tile(__global const T *restrict a, __global const T *restrict b, __global const T *restrict bias,
                          __global T *restrict c, __global float *restrict part, long a_off, long b_off, int m, int n,
                          int k, int z1, long a_s0, long a_s1, long b_s0, long b_s1, long a_rs, long a_cs, long b_rs, long b_cs,
                          int k_part, int full, int tail, float alpha, int flags
#if LAST
                          , __global int *tickets
#endif
                          TREE_PARAMETERS) {
  __local float ring[SLICES][STAGES][BK * (LDA + LDB)] __attribute__((aligned(16)));
#define as(s) (ring[slice][s])
#define bs(s) (ring[slice][s] + BK * LDA)
  const int slice = get_local_id(0) / ITEMS, item = get_local_id(0) % ITEMS;
  const int group = get_group_id(0), whole = group < full;
  const int split = whole ? 0 : (group - full) / tail, index = whole ? group : full + (group - full) % tail;
  const int3 origin = place_of(index, m, n);
  const int m0 = origin.y, n0 = origin.z;
  const long z = origin.x;
  a += a_off + z / z1 * a_s0 + z % z1 * a_s1;
  b += b_off + z / z1 * b_s0 + z % z1 * b_s1;
  /* 32 adjacent items own 4 x 8 positions. A read then has few distinct addresses, which local memory broadcasts. */
  const int w = item / 32, l = item % 32;
  const int ty = w / (TX / 8) * 4 + l / 8, tx = w % (TX / 8) * 8 + l % 8;

  float4 acc[TM][TN / 4];
  UNROLL for (int i = 0; i < TM; ++i) {
    UNROLL for (int j = 0; j < TN / 4; ++j) acc[i][j] = (float4)(0.0f);
  }
  const int k_start = split * k_part, k_end = whole ? k : min(k, k_start + k_part), k_first = k_start + slice * BK;
  int s = 0;
#if ASYNC
  __global const float *from_a = a + (m0 + PLACE(BM, A_ALONG_K)) * a_rs + (k_first + STEP(BM, A_ALONG_K)) * a_cs;
  __global const float *from_b = b + (n0 + PLACE(BN, B_ALONG_K)) * b_cs + (k_first + STEP(BN, B_ALONG_K)) * b_rs;
  UNROLL for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (k_start + ahead * SLICES * BK < k_end) {
      SEND_BOTH(ahead, k_end - k_first - ahead * SLICES * BK)
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int k0 = k_start; k0 < k_end; k0 += SLICES * BK) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    if (k0 + (STAGES - 1) * SLICES * BK < k_end) {
      const int into = s == 0 ? STAGES - 1 : s - 1;
      SEND_BOTH(into, k_end - k0 - slice * BK - (STAGES - 1) * SLICES * BK)
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
  VecA next_a[VECTORS(BM, VA)];
  VecB next_b[VECTORS(BN, VB)];
  FETCH_BOTH(k_first)
  KEEP_BOTH(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k0 = k_start; k0 < k_end; k0 += SLICES * BK) {
    const int more = k0 + SLICES * BK < k_end;
    if (more) {
      FETCH_BOTH(k0 + (SLICES + slice) * BK)
    }
#endif
    UNROLL for (int u = 0; u < BK; ++u) {
      float4 va[TM / 4], vb[TN / 4];
      UNROLL for (int i = 0; i < TM / 4; ++i) {
        va[i] = *(__local const float4 *)(as(s) + u * LDA + (i * TY + ty) * 4);
      }
      UNROLL for (int j = 0; j < TN / 4; ++j) {
        vb[j] = *(__local const float4 *)(bs(s) + u * LDB + (j * TX + tx) * 4);
        const int turn = TURNED(u, B_ALONG_K);
        vb[j] = turn == 0 ? vb[j] : turn == 1 ? vb[j].yxwz : turn == 2 ? vb[j].zwxy : vb[j].wzyx;
      }
      UNROLL for (int i = 0; i < TM / 4; ++i) {
        UNROLL for (int j = 0; j < TN / 4; ++j) {
          const int at = i * 4, turn = TURNED(u, A_ALONG_K);
          acc[at + (0 ^ turn)][j] = fma((float4)(va[i].x), vb[j], acc[at + (0 ^ turn)][j]);
          acc[at + (1 ^ turn)][j] = fma((float4)(va[i].y), vb[j], acc[at + (1 ^ turn)][j]);
          acc[at + (2 ^ turn)][j] = fma((float4)(va[i].z), vb[j], acc[at + (2 ^ turn)][j]);
          acc[at + (3 ^ turn)][j] = fma((float4)(va[i].w), vb[j], acc[at + (3 ^ turn)][j]);
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

#if SLICES > 1
  __local float4 *sums = (__local float4 *)ring;
  UNROLL for (int apart = SLICES / 2; apart > 0; apart /= 2) {
    const int to = slice - apart;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int i = 0; i < TM; ++i) {
      UNROLL for (int j = 0; j < TN / 4; ++j)
        if (to >= 0 && to < apart) sums[((to * TM + i) * (TN / 4) + j) * ITEMS + item] = acc[i][j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int i = 0; i < TM; ++i) {
      UNROLL for (int j = 0; j < TN / 4; ++j)
        if (slice < apart) acc[i][j] += sums[((slice * TM + i) * (TN / 4) + j) * ITEMS + item];
    }
  }
#endif

  c += z * m * n;
#if LAST
  __local int is_last;
  __global const float *parts = part + (ulong)(index - full) * (BM * BN);
#endif
  if (!whole) part += ((ulong)split * tail + index - full) * (BM * BN);
#define PLACES(act)                                                                                           \
  UNROLL for (int i = 0; i < TM; ++i) {                                                                       \
    const int row = (i / 4 * TY + ty) * 4 + i % 4;                                                            \
    if (m0 + row < m) UNROLL for (int j = 0; j < TN / 4; ++j) {                                               \
      const int column = (j * TX + tx) * 4;                                                                   \
      act;                                                                                                    \
    }                                                                                                         \
  }
#define FINISH finish(c, bias, m0 + row, n, n0 + column, acc[i][j], alpha, flags, z * m TREE_ARGUMENTS)
  if (whole) {
    if (slice == 0) PLACES(FINISH)
    return;
  }
  if (slice == 0) PLACES(*(__global float4 *)(part + row * BN + column) = acc[i][j])
#if LAST
  const int splits = (get_num_groups(0) - full) / tail;
  barrier(CLK_GLOBAL_MEM_FENCE);
  if (get_local_id(0) == 0) {
    __global int *turn = tickets + index - full;
    is_last = turn_taken(turn) == splits - 1;
    if (is_last) *turn = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!is_last) return;
  float4 sum[EACH];
  UNROLL for (int e = 0; e < EACH; ++e) sum[e] = (float4)(0.0f);
  /* Loads several parts at once, so that their latencies overlap. */
  parts += get_local_id(0) * 4;
  for (int first = 0; first < splits; first += AT_ONCE) {
    float4 v[AT_ONCE][EACH];
    UNROLL for (int s = 0; s < AT_ONCE; ++s) {
      __global const float *from = parts + (ulong)(first + s < splits ? first + s : 0) * tail * (BM * BN);
      UNROLL for (int e = 0; e < EACH; ++e) v[s][e] = part_of(from + e * (ITEMS * SLICES * 4));
    }
    UNROLL for (int s = 0; s < AT_ONCE; ++s) {
      UNROLL for (int e = 0; e < EACH; ++e) sum[e] += first + s < splits ? v[s][e] : (float4)(0.0f);
    }
  }
  UNROLL for (int e = 0; e < EACH; ++e) {
    const int at = get_local_id(0) + e * (ITEMS * SLICES), row = at / (BN / 4), column = at % (BN / 4) * 4;
    if (m0 + row < m) finish(c, bias, m0 + row, n, n0 + column, sum[e], alpha, flags, z * m TREE_ARGUMENTS);
  }
#endif
}

/* Adds the parts of the tail's tiles in the order of k. */
__kernel void matmul_tile_sum(__global const float *restrict part, __global const T *restrict bias, __global T *restrict c,
                              int m, int n, int full, int tail, int splits, float alpha, int flags TREE_PARAMETERS) {
  const int at = get_global_id(0), tile = at / (BM * BN / 4), row = at / (BN / 4) % BM, column = at % (BN / 4) * 4;
  if (tile >= tail) return;
  const int3 origin = place_of(full + tile, m, n);
  if (origin.y + row >= m || origin.z + column >= n) return;
  float4 sum = (float4)(0.0f);
  for (int s = 0; s < splits; ++s)
    sum += *(__global const float4 *)(part + ((ulong)s * tail + tile) * (BM * BN) + row * BN + column);
  finish(c + (long)origin.x * m * n, bias, origin.y + row, n, origin.z + column, sum, alpha, flags, (ulong)origin.x * m TREE_ARGUMENTS);
}

/* Adds parts as large as C, for kernels that store them so; items over the `count` elements of C. */
__kernel void matmul_parts_sum(__global const float *restrict part, __global const T *restrict bias, __global T *restrict c,
                               ulong count, int n, int splits, float alpha, int flags) {
  const ulong at = get_global_id(0);
  if (at >= count) return;
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * count + at];
  sum *= alpha;
  if (flags & BIAS) sum += LD(bias, (int)(at % n));
  if (flags & ADD_C) sum += LD(c, at);
  ST(c, at, sum);
}
