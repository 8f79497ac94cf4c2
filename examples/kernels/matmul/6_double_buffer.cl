/* Matrix product, step 6 of 9: double buffering.
 *
 * Changed    There are two buffers per tile. Before a tile is multiplied, the next one is requested, into registers; after the
 *            multiplication it is stored to the other buffer. One barrier per tile remains instead of two.
 * Why        A load must be complete when its result is used, not when it is issued. The multiplication in between hides its
 *            latency with several hundred multiply-adds of the same item.
 * Bound by   issue slots: each float moves from memory to a register to local memory, with two instructions that compute nothing.
 *            The registers for the next tile are occupied during the whole multiplication and reduce occupancy.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major, at 16-byte addresses; m, n, k: their sizes, at least 1
 * Defines    SIDE: items of a group along each side, 8 or 16
 * Launch     groups (ceil(n / (8*SIDE)), ceil(m / (8*SIDE))) of SIDE by SIDE items
 */
#ifndef SIDE
#define SIDE 8
#endif
#define TILE (8 * SIDE)
#define BK 8
#define PAD 4
#define ITEMS (SIDE * SIDE)
#define LOADS (TILE * BK / 4 / ITEMS)
#define UNROLL _Pragma("unroll")

static inline float4 four(__global const float *p, int left, int aligned) {
  if (aligned && left >= 4) return *(__global const float4 *)p;
  return (float4)(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}
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

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void matmul(__global const float *a, __global const float *b,
                                                                          __global float *c, uint m, uint n, uint k) {
  __local float ta[2][BK][TILE + PAD] __attribute__((aligned(16))), tb[2][BK][TILE] __attribute__((aligned(16)));
  const uint x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const uint column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  const int a_aligned = k % 4 == 0, b_aligned = n % 4 == 0;
  float4 sum[8][2], next_a[LOADS], next_b[LOADS];
  UNROLL for (uint i = 0; i < 8; i++) sum[i][0] = sum[i][1] = (float4)(0.0f);

  /* Request the tiles from step l0 on, and store them to buffer `to`. */
#define LOAD(l0)                                                                                             \
  UNROLL for (uint e = 0; e < LOADS; e++) {                                                                  \
    const uint at = item + e * ITEMS, row = at / (BK / 4), la = (l0) + at % (BK / 4) * 4;                    \
    const uint lb = (l0) + at / (TILE / 4), column = column0 + at % (TILE / 4) * 4;                          \
    const int left_a = row0 + row < m ? (int)k - (int)la : 0, left_b = lb < k ? (int)n - (int)column : 0;    \
    next_a[e] = four(a + (size_t)(row0 + row) * k + la, left_a, a_aligned);                                  \
    next_b[e] = four(b + (size_t)lb * n + column, left_b, b_aligned);                                        \
  }
#define KEEP(to)                                                                                             \
  UNROLL for (uint e = 0; e < LOADS; e++) {                                                                  \
    const uint at = item + e * ITEMS, row = at / (BK / 4), l = at % (BK / 4) * 4;                            \
    ta[to][l][row] = next_a[e].x;                                                                            \
    ta[to][l + 1][row] = next_a[e].y;                                                                        \
    ta[to][l + 2][row] = next_a[e].z;                                                                        \
    ta[to][l + 3][row] = next_a[e].w;                                                                        \
    *(__local float4 *)&tb[to][at / (TILE / 4)][at % (TILE / 4) * 4] = next_b[e];                            \
  }
  LOAD(0)
  KEEP(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  uint now = 0;
  for (uint l0 = 0; l0 < k; l0 += BK) {
    const int more = l0 + BK < k;
    if (more) LOAD(l0 + BK)
    UNROLL for (uint l = 0; l < BK; l++) {
      const float4 a0 = *(__local const float4 *)&ta[now][l][4 * y], a1 = *(__local const float4 *)&ta[now][l][4 * (SIDE + y)];
      const float4 b0 = *(__local const float4 *)&tb[now][l][4 * x], b1 = *(__local const float4 *)&tb[now][l][4 * (SIDE + x)];
      const float va[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
      UNROLL for (uint i = 0; i < 8; i++) {
        sum[i][0] = fma((float4)(va[i]), b0, sum[i][0]);
        sum[i][1] = fma((float4)(va[i]), b1, sum[i][1]);
      }
    }
    now ^= 1;
    if (more) KEEP(now) /* all items finished with this buffer before the last barrier */
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  UNROLL for (uint i = 0; i < 8; i++) {
    const uint row = row0 + i / 4 * 4 * SIDE + 4 * y + i % 4;
    UNROLL for (uint j = 0; j < 2; j++) {
      const uint column = column0 + 4 * (j * SIDE + x);
      if (row < m) keep_four(c + (size_t)row * n + column, sum[i][j], (int)n - (int)column, b_aligned);
    }
  }
}
