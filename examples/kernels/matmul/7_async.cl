/* Matrix product, step 7 of 9: asynchronous copies.
 *
 * Changed    Tiles move from global to local memory without passing through registers. On NVIDIA from sm_80 on, each item issues
 *            cp.async, which returns at once. On other devices, the group calls OpenCL's async_work_group_copy. Hardware with a copy
 *            engine (and some drivers) runs it in parallel with the arithmetic, others as an ordinary loop.
 * Why        Tiles in flight do not occupy registers and no instruction stores them, so tiles can be twice as deep (BK 16) at the same
 *            occupancy, with half the barriers.
 * Bound by   f32 multiply-adds, if the copies run in parallel: 4 vector loads per 64 multiply-adds remain. If the driver
 *            implements the copies as a loop, by that loop.
 *
 * cp.async copies 4 or 16 bytes to one address, so A, which is transposed by the copy, is copied float by float; bytes outside of the
 * matrix become zeros. async_work_group_strided_copy gathers a column of A. It cannot pad, so the tiles are cleared first
 * if the group is at an edge of C, and the last tile is multiplied only up to its end.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major, at 16-byte addresses; m, n, k: their sizes, at least 1
 * Defines    SIDE: items of a group along each side, 8 or 16; NVIDIA_CC: compute capability, 80 for sm_80, 0 for other vendors
 * Launch     groups (ceil(n / (8*SIDE)), ceil(m / (8*SIDE))) of SIDE by SIDE items
 */
#ifndef SIDE
#define SIDE 8
#endif
#ifndef NVIDIA_CC
#define NVIDIA_CC 0
#endif
#define TILE (8 * SIDE)
#define BK 16
#define PAD 4
#define ITEMS (SIDE * SIDE)
#define UNROLL _Pragma("unroll")

#if NVIDIA_CC >= 80
/* Copies `bytes` of SIZE bytes from p, and fills the rest with zeros. */
#define COPY(CACHE, SIZE, to, p, bytes)                                                                     \
  asm volatile("cp.async." CACHE ".shared.global [%0], [%1], " SIZE ", %2;" ::"r"((uint)(size_t)(to)), "l"(p), "r"(bytes) : "memory")
#define ASK(to, l0)                                                                                         \
  {                                                                                                         \
    for (uint e = item; e < TILE * BK; e += ITEMS) {                                                        \
      const uint row = row0 + e / BK, l = (l0) + e % BK;                                                    \
      COPY("ca", "4", &ta[to][e % BK][e / BK], a + (size_t)row * k + l, row < m && l < k ? 4 : 0);          \
    }                                                                                                       \
    for (uint e = item; n % 4 == 0 && e < BK * TILE / 4; e += ITEMS) {                                      \
      const uint l = (l0) + e / (TILE / 4), column = column0 + e % (TILE / 4) * 4;                          \
      COPY("cg", "16", &tb[to][e / (TILE / 4)][e % (TILE / 4) * 4], b + (size_t)l * n + column, l < k && column < n ? 16 : 0); \
    }                                                                                                       \
    for (uint e = item; n % 4 != 0 && e < BK * TILE; e += ITEMS) {                                          \
      const uint l = (l0) + e / TILE, column = column0 + e % TILE;                                          \
      COPY("ca", "4", &tb[to][e / TILE][e % TILE], b + (size_t)l * n + column, l < k && column < n ? 4 : 0);\
    }                                                                                                       \
    asm volatile("cp.async.commit_group;" ::: "memory");                                                    \
  }
#define WAIT asm volatile("cp.async.wait_group 0;" ::: "memory")
#else
#define ASK(to, l0)                                                                                         \
  for (uint l = 0; l < min((uint)BK, k - (l0)); l++) {                                                      \
    asked = async_work_group_strided_copy(ta[to][l], a + (size_t)row0 * k + (l0) + l, min((uint)TILE, m - row0), k, asked); \
    asked = async_work_group_copy(tb[to][l], b + (size_t)((l0) + l) * n + column0, min((uint)TILE, n - column0), asked);    \
  }
#define WAIT wait_group_events(1, &asked), asked = none
#endif

static inline void keep_four(__global float *p, float4 v, int left, int aligned) {
  if (aligned && left >= 4) {
    *(__global float4 *)p = v;
    return;
  }
  if (left > 0) p[0] = v.x;
  if (left > 1) p[1] = v.y;
  if (left > 2) p[2] = v.z;
  if (left > 3) p[3] = v.w;
}
/* Multiplies step l of the tiles in buffer `now`. */
#define MULTIPLY(l)                                                                                          \
  {                                                                                                          \
    const float4 a0 = *(__local const float4 *)&ta[now][l][4 * y], a1 = *(__local const float4 *)&ta[now][l][4 * (SIDE + y)]; \
    const float4 b0 = *(__local const float4 *)&tb[now][l][4 * x], b1 = *(__local const float4 *)&tb[now][l][4 * (SIDE + x)]; \
    const float va[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};                                    \
    UNROLL for (uint i = 0; i < 8; i++) {                                                                    \
      sum[i][0] = fma((float4)(va[i]), b0, sum[i][0]);                                                       \
      sum[i][1] = fma((float4)(va[i]), b1, sum[i][1]);                                                       \
    }                                                                                                        \
  }

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void matmul(__global const float *a, __global const float *b,
                                                                          __global float *c, uint m, uint n, uint k) {
  __local float ta[2][BK][TILE + PAD] __attribute__((aligned(16))), tb[2][BK][TILE] __attribute__((aligned(16)));
  const uint x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const uint column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  float4 sum[8][2];
  UNROLL for (uint i = 0; i < 8; i++) sum[i][0] = sum[i][1] = (float4)(0.0f);
#if NVIDIA_CC < 80
  const event_t none = 0;
  event_t asked = none;
  if (row0 + TILE > m || column0 + TILE > n) {
    for (uint e = item; e < 2 * BK * (TILE + PAD); e += ITEMS) (&ta[0][0][0])[e] = 0.0f;
    for (uint e = item; e < 2 * BK * TILE; e += ITEMS) (&tb[0][0][0])[e] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
  ASK(0, 0)
  uint now = 0;
  for (uint l0 = 0; l0 < k; l0 += BK, now ^= 1) {
    WAIT;
    barrier(CLK_LOCAL_MEM_FENCE); /* this tile is complete, and all items have read the other buffer */
    if (l0 + BK < k) ASK(now ^ 1, l0 + BK)
    if (NVIDIA_CC >= 80 || l0 + BK <= k) {
      UNROLL for (uint l = 0; l < BK; l++) MULTIPLY(l)
    } else {
      for (uint l = 0; l < k - l0; l++) MULTIPLY(l)
    }
  }

  UNROLL for (uint i = 0; i < 8; i++) {
    const uint row = row0 + i / 4 * 4 * SIDE + 4 * y + i % 4;
    UNROLL for (uint j = 0; j < 2; j++) {
      const uint column = column0 + 4 * (j * SIDE + x);
      if (row < m) keep_four(c + (size_t)row * n + column, sum[i][j], (int)n - (int)column, n % 4 == 0);
    }
  }
}
