/* The norms of norm.cl, which has the formulas, shapes and arguments, for GPUs: a row is held in the registers of its items.
 *
 * N is a define, a multiple of VW; the argument n is ignored. VW elements are 16 bytes of T. ITEMS adjacent items own a row: item l its vectors
 * l, l + ITEMS, …, K of them. A group of WG = ITEMS * ROWS items holds ROWS rows and advances by the rows of all groups. Each tensor is read
 * once, by loads of 16 bytes. The next row is loaded before this one is summed, since memory needs about 30 KiB in flight per compute unit. The
 * mean and the squared distances from it are both computed from registers, so the variance stays exact.
 * norm_fwd         y, mean, rstd
 * norm_bwd         dx (RESIDUAL_GRAD 1: plus residual_grad); each item sums the terms of dgamma and dbeta of its columns over all its rows. The
 *                  group's rows are added in order and are written once, as slice p of the parts
 * norm_bwd_params  item (i, y) of a group owns 4 columns i and slices y, y + Y, …; the Y sums are added in a fixed tree
 * ROWS_AHEAD rows are prefetched before they are loaded (backward, NVIDIA): lines on their way to the last-level cache take no registers. NVIDIA
 * 1 adds a hardware group's items by shuffles (sm_70) and rounds to bf16 by one instruction (sm_80), both written in PTX. Otherwise local memory
 * and barriers are used. Sums are float.
 *
 * Design: a persistent kernel with rows in registers, as in Apex's FastLayerNorm; two-pass variance (Chan, Golub and LeVeque 1983).
 * Ceiling: x read and y written once, in the backward x, dy and dx. H200, rows of 768 in bf16, 65536 of them: 3.7 and 3.5 of 4.8 TB/s, 2.7 with
 * RESIDUAL_GRAD; 16384 of them, with the parameters' sums in a second launch: 3.6 and 2.5.
 */
#ifndef CENTER
#define CENTER 1
#endif
#ifndef RESIDUAL_GRAD
#define RESIDUAL_GRAD 0
#endif
#ifndef N
#define N 768
#define ITEMS 32
#define ROWS 8
#endif
#define K ((N + ITEMS * VW - 1) / (ITEMS * VW))
/* Only the last vector of an item may be past the row's end. */
#define OWNS(k) ((k) + 1 < K || N % (ITEMS * VW) == 0 || ((k) * ITEMS + l) * VW < N)

#if NVIDIA
#define JOINED (ITEMS < 32 ? ITEMS : 32)
#define SUMS (ITEMS > 32 ? ITEMS / 32 : 1)
#else
#define JOINED 1
#define SUMS ITEMS
#endif
/* Sums that every item reads. If there are more, they are first folded to this number. */
#define FOLDED 16
#define READ_SUMS (SUMS > FOLDED ? FOLDED : SUMS)
/* Bytes of a cache line. */
#define LINE 128
/* Rows that a group's backward prefetches ahead of those that it loads. */
#ifndef ROWS_AHEAD
#define ROWS_AHEAD 0
#endif
/* Items of a group of norm_bwd_params. */
#define ADDERS 256

/* Loads item l's vectors of row p of T; zeros beyond the last row. */
static inline void load_row(uint4 *to, __global const T *p, uint l, bool there) {
#pragma unroll
  for (uint k = 0; k < K; k++)
    to[k] = there && OWNS(k) ? ((__global const uint4 *)p)[k * ITEMS + l] : (uint4)(0u);
}

/* Prefetches item l's lines of row p to the last-level cache. Unlike loading a row ahead, this takes no registers. */
static inline void ask_row(__global const T *p, uint l, bool there) {
#if NVIDIA && ROWS_AHEAD
#pragma unroll
  for (uint k = 0; k < K; k++)
    if (there && l % (LINE / 16) == 0 && OWNS(k))
      asm volatile("prefetch.global.L2 [%0];" : : "l"((__global const uint4 *)p + k * ITEMS + l));
#endif
}

/* Hides the origin of v from the compiler. It would otherwise keep the floats of packed vectors, which take twice the registers of the vectors. */
static inline uint4 forget(uint4 v) {
#if NVIDIA
  uint x = v.x, y = v.y, z = v.z, w = v.w;
  asm volatile("" : "+r"(x), "+r"(y), "+r"(z), "+r"(w));
  v = (uint4)(x, y, z, w);
#endif
  return v;
}

/* Returns the sum over a row's items, with the same bits in each of them; every item of the group must call it. */
static inline float2 row_sum(float2 v, __local float2 *s, uint l) {
#if NVIDIA
#pragma unroll
  for (uint lanes = JOINED / 2; lanes > 0; lanes >>= 1) {
    float a = v.x, b = v.y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(a) : "f"(a), "r"(lanes));
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(b) : "f"(b), "r"(lanes));
    v += (float2)(a, b);
  }
#endif
#if SUMS > 1
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l % JOINED == 0) s[l / JOINED] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
#if SUMS > FOLDED
  if (l < FOLDED) {
    v = s[l];
    for (uint i = l + FOLDED; i < SUMS; i += FOLDED) v += s[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l < FOLDED) s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  v = s[0];
#pragma unroll
  for (uint i = 1; i < READ_SUMS; i++) v += s[i];
#endif
  return v;
}

/* Returns sum / n, rounded about once. Divisions on GPUs may be off by 2.5 ulp, and in a row of equal elements 1 / sqrt(eps) multiplies this
 * error. */
static inline float mean_of(float sum, float n) {
  const float mean = sum / n;
  return fma(fma(-mean, n, sum), 1.0f / n, mean);
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
norm_fwd(__global const T *restrict x, __global const T *restrict gamma,
#if CENTER
         __global const T *restrict beta, __global T *restrict y, __global float *restrict mean,
#else
         __global T *restrict y,
#endif
         __global float *restrict rstd, ulong rows, ulong n, float eps) {
  __local float2 scratch[ROWS * SUMS];
  const uint l = get_local_id(0) % ITEMS, own = get_local_id(0) / ITEMS;
  __local float2 *s = scratch + own * SUMS;
  const ulong stride = get_num_groups(0) * ROWS;
  ulong row = get_group_id(0) * ROWS + own;
  uint4 next[K], weight[K];
  load_row(next, x + row * N, l, row < rows);
  load_row(weight, gamma, l, true);
#if CENTER
  uint4 bias[K];
  load_row(bias, beta, l, true);
#endif
  for (ulong first = get_group_id(0) * ROWS; first < rows; first += stride, row += stride) {
    FV v[K];
#pragma unroll
    for (uint k = 0; k < K; k++) v[k] = unpack(next[k]);
    load_row(next, x + (row + stride) * N, l, row + stride < rows);
#if CENTER
    FV sum = v[0];
#pragma unroll
    for (uint k = 1; k < K; k++) sum += v[k];
    const float m = mean_of(row_sum((float2)(sum_lanes(sum), 0.0f), s, l).x, N);
#pragma unroll
    for (uint k = 0; k < K; k++) v[k] = OWNS(k) ? v[k] - m : (FV)(0.0f);
#endif
    FV squares = v[0] * v[0];
#pragma unroll
    for (uint k = 1; k < K; k++) squares = fma(v[k], v[k], squares);
    const float r = 1.0f / sqrt(row_sum((float2)(sum_lanes(squares), 0.0f), s, l).x / N + eps);
    __global uint4 *out = (__global uint4 *)(y + row * N);
#pragma unroll
    for (uint k = 0; k < K; k++) {
      weight[k] = forget(weight[k]);
#if CENTER
      bias[k] = forget(bias[k]);
      const FV result = fma(v[k] * r, unpack(weight[k]), unpack(bias[k]));
#else
      const FV result = v[k] * r * unpack(weight[k]);
#endif
      if (row < rows && OWNS(k)) out[k * ITEMS + l] = pack(result);
    }
    if (row < rows && l == 0) {
      rstd[row] = r;
#if CENTER
      mean[row] = m;
#endif
    }
  }
}

/* Adds the group's rows' sums of VW columns in order and writes them. */
static inline void join_rows(__local FV *s, FV v, __global float *to, bool owns) {
#if ROWS > 1
  const uint at = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  s[at] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (at >= ITEMS) owns = false;
#pragma unroll
  for (uint i = 1; i < ROWS; i++) v += owns ? s[at + i * ITEMS] : (FV)(0.0f);
#endif
  if (!owns) return;
  __global float4 *out = (__global float4 *)to;
#if VW == 8
  out[0] = v.lo;
  out[1] = v.hi;
#else
  out[0] = v;
#endif
}

/* Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma and xhat = (x - mean) * rstd, without mean(g) if CENTER is 0.
 * dgamma = sum(dy * xhat), dbeta = sum(dy). */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
norm_bwd(__global const T *restrict x, __global const T *restrict gamma, __global const T *restrict dy,
#if RESIDUAL_GRAD
         __global const T *restrict residual_grad,
#endif
#if CENTER
         __global const float *restrict mean,
#endif
         __global const float *restrict rstd, __global T *restrict dx, __global float *restrict part_gamma,
#if CENTER
         __global float *restrict part_beta,
#endif
         ulong rows, ulong n) {
  __local float2 scratch[ROWS * SUMS];
  const uint l = get_local_id(0) % ITEMS, own = get_local_id(0) / ITEMS;
  __local float2 *s = scratch + own * SUMS;
  const ulong stride = get_num_groups(0) * ROWS;
  ulong row = get_group_id(0) * ROWS + own;
  FV dgamma[K], dbeta[K];
#pragma unroll
  for (uint k = 0; k < K; k++) dgamma[k] = dbeta[k] = (FV)(0.0f);
  uint4 weight[K];
  load_row(weight, gamma, l, true);
  uint4 next_x[K], next_dy[K];
  float next_r = 0.0f;
#if CENTER
  float next_m = 0.0f;
#endif
#define LOAD_NEXT(at)                                                                                      \
  {                                                                                                        \
    const bool there = (at) < rows;                                                                        \
    load_row(next_x, x + (at) * N, l, there);                                                              \
    load_row(next_dy, dy + (at) * N, l, there);                                                            \
    next_r = there ? rstd[at] : 0.0f;                                                                      \
    LOAD_MEAN(at)                                                                                          \
  }
#if CENTER
#define LOAD_MEAN(at) next_m = there ? mean[at] : 0.0f;
/* The difference comes first: x * r - m * r would cancel if the mean is many deviations away from 0. */
#define XHAT(x) (((x) - m) * r)
#else
#define LOAD_MEAN(at)
#define XHAT(x) ((x) * r)
#endif
  LOAD_NEXT(row)
  for (ulong first = get_group_id(0) * ROWS; first < rows; first += stride, row += stride) {
    uint4 xs[K], dys[K];
#pragma unroll
    for (uint k = 0; k < K; k++) {
      xs[k] = next_x[k];
      dys[k] = next_dy[k];
    }
    const float r = next_r;
#if CENTER
    const float m = next_m;
#endif
#if RESIDUAL_GRAD
    /* Loaded before the sums are computed, if enough registers are left: longer rows spilled. */
    uint4 residual_grads[K];
    if (SUMS == 1) load_row(residual_grads, residual_grad + row * N, l, row < rows);
#endif
    LOAD_NEXT(row + stride)
    const ulong later = row + ROWS_AHEAD * stride, latest = later + stride;
    ask_row(x + latest * N, l, latest < rows);
    ask_row(dy + latest * N, l, latest < rows);
#if RESIDUAL_GRAD
    ask_row(residual_grad + later * N, l, later < rows);
#endif
    FV sum_g = (FV)(0.0f), sum_gx = sum_g;
#pragma unroll
    for (uint k = 0; k < K; k++) {
      weight[k] = forget(weight[k]);
      const FV g = unpack(dys[k]) * unpack(weight[k]);
      sum_g += g;
      sum_gx = fma(g, XHAT(unpack(xs[k])), sum_gx);
    }
    const float2 mean_g = row_sum((float2)(sum_lanes(sum_g), sum_lanes(sum_gx)), s, l) / N;
    __global uint4 *out = (__global uint4 *)(dx + row * N);
#if RESIDUAL_GRAD
    if (SUMS > 1) load_row(residual_grads, residual_grad + row * N, l, row < rows);
#endif
#pragma unroll
    for (uint k = 0; k < K; k++) {
      xs[k] = forget(xs[k]);
      dys[k] = forget(dys[k]);
      weight[k] = forget(weight[k]);
      const FV d = unpack(dys[k]), xhat = XHAT(unpack(xs[k]));
      dgamma[k] = fma(d, xhat, dgamma[k]);
#if CENTER
      dbeta[k] += d;
      FV result = r * fma(xhat, (FV)(-mean_g.y), fma(d, unpack(weight[k]), (FV)(-mean_g.x)));
#else
      FV result = r * fma(xhat, (FV)(-mean_g.y), d * unpack(weight[k]));
#endif
#if RESIDUAL_GRAD
      result += unpack(residual_grads[k]);
#endif
      if (row < rows && OWNS(k)) out[k * ITEMS + l] = pack(result);
    }
  }
  __local FV columns[ROWS > 1 ? WG : 1];
#pragma unroll
  for (uint k = 0; k < K; k++) {
    const ulong at = get_group_id(0) * N + (k * ITEMS + l) * VW;
    join_rows(columns, dgamma[k], part_gamma + at, OWNS(k));
#if CENTER
    join_rows(columns, dbeta[k], part_beta + at, OWNS(k));
#endif
  }
}

static inline void store_columns(__global T *p, float4 v) {
  ST(p, 0, v.x);
  ST(p, 1, v.y);
  ST(p, 2, v.z);
  ST(p, 3, v.w);
}

/* The sums of 4 columns: of dgamma, then of dbeta. */
#if CENTER
typedef float8 COLUMNS;
#else
typedef float4 COLUMNS;
#endif

__kernel void norm_bwd_params(__global const float *restrict part_gamma,
#if CENTER
                              __global const float *restrict part_beta, __global T *restrict dgamma,
                              __global T *restrict dbeta,
#else
                              __global T *restrict dgamma,
#endif
                              ulong parts, ulong n) {
  __local COLUMNS sums[ADDERS];
  const ulong i = get_global_id(0), y = get_local_id(1);
  const int across = get_local_size(0), at = y * across + get_local_id(0);
  const bool there = i < N / 4;
  COLUMNS sum = 0.0f;
  if (there) {
#pragma unroll 4
    for (ulong p = y; p < parts; p += get_local_size(1)) {
      const float4 g = ((__global const float4 *)part_gamma)[p * (N / 4) + i];
#if CENTER
      sum += (float8)(g, ((__global const float4 *)part_beta)[p * (N / 4) + i]);
#else
      sum += g;
#endif
    }
  }
  sums[at] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = get_local_size(1) / 2; h > 0; h >>= 1) {
    if (y < h) sums[at] += sums[at + h * across];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (y > 0 || !there) return;
#if CENTER
  store_columns(dgamma + i * 4, sums[at].lo);
  store_columns(dbeta + i * 4, sums[at].hi);
#else
  store_columns(dgamma + i * 4, sums[at]);
#endif
}
