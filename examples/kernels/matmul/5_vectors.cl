/* Matrix product, step 5 of 9: vector loads.
 *
 * Changed    Loads and stores move four floats. The tile of A is transposed in local memory, so that four rows of one step of the
 *            sum are adjacent, like four columns of B. An item's 8 rows and columns are two runs of four each.
 * Why        One instruction moves 16 bytes: 4 loads from local memory per 64 multiply-adds instead of 16, and a quarter of the
 *            global loads with their addresses and tests.
 * Bound by   the multiply-adds and the remaining other instructions, if enough groups fit on a compute unit to fill each other's
 *            pauses. If few fit, by waiting: a group requests a tile, stores it, waits at a barrier, and only then multiplies.
 *
 * A vector is one access only at an address that is a multiple of 16 bytes, so the rows' length must be a multiple of four.
 * Other matrices, and the edges, are accessed float by float. PAD keeps rows of ta 16-byte aligned and its transposed stores in
 * different banks.
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
#define LOADS (TILE * BK / 4 / ITEMS) /* vectors per tile that an item loads */
#define UNROLL _Pragma("unroll")

/* Loads four floats of a row at p, of which `left` are inside; the others are zeros. */
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
  __local float ta[BK][TILE + PAD] __attribute__((aligned(16))), tb[BK][TILE] __attribute__((aligned(16)));
  const uint x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const uint column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  const int a_aligned = k % 4 == 0, b_aligned = n % 4 == 0;
  float4 sum[8][2]; /* rows 4*y + i and 4*SIDE + 4*y + i, columns likewise with x */
  UNROLL for (uint i = 0; i < 8; i++) sum[i][0] = sum[i][1] = (float4)(0.0f);

  for (uint l0 = 0; l0 < k; l0 += BK) {
    UNROLL for (uint e = 0; e < LOADS; e++) {
      const uint at = item + e * ITEMS, row = at / (BK / 4), l = at % (BK / 4) * 4;
      const int left = row0 + row < m ? (int)k - (int)(l0 + l) : 0;
      const float4 v = four(a + (size_t)(row0 + row) * k + l0 + l, left, a_aligned);
      ta[l][row] = v.x;
      ta[l + 1][row] = v.y;
      ta[l + 2][row] = v.z;
      ta[l + 3][row] = v.w;
    }
    UNROLL for (uint e = 0; e < LOADS; e++) {
      const uint at = item + e * ITEMS, l = at / (TILE / 4), column = at % (TILE / 4) * 4;
      const int left = l0 + l < k ? (int)n - (int)(column0 + column) : 0;
      *(__local float4 *)&tb[l][column] = four(b + (size_t)(l0 + l) * n + column0 + column, left, b_aligned);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (uint l = 0; l < BK; l++) {
      const float4 a0 = *(__local const float4 *)&ta[l][4 * y], a1 = *(__local const float4 *)&ta[l][4 * (SIDE + y)];
      const float4 b0 = *(__local const float4 *)&tb[l][4 * x], b1 = *(__local const float4 *)&tb[l][4 * (SIDE + x)];
      const float va[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
      UNROLL for (uint i = 0; i < 8; i++) {
        sum[i][0] = fma((float4)(va[i]), b0, sum[i][0]);
        sum[i][1] = fma((float4)(va[i]), b1, sum[i][1]);
      }
    }
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
