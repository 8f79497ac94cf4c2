/* Matrix product, step 4 of 9: register tiles.
 *
 * Changed    An item computes 8 by 8 elements of C instead of one, so a group of SIDE by SIDE items computes a tile of 8*SIDE by 8*SIDE.
 *            For each step of the sum, an item reads 8 floats of A and 8 of B from local memory and multiplies all pairs.
 * Why        64 multiply-adds per 16 loads instead of one per two: loads from local memory fall by a factor of 8, and with the larger
 *            tile, loads from global memory fall by another 8*SIDE/16. The 64 sums are independent, so the arithmetic units
 *            do not wait for previous results.
 * Bound by   instructions that are not multiply-adds: each of those 16 loads moves 4 bytes. The 64 sums need 64 registers, so fewer
 *            warps are resident, and while the group waits for its next tiles there is less other work.
 *
 * An item's rows and columns are SIDE apart, so adjacent items read adjacent words of tb without bank conflicts.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major; m, n, k: their sizes, at least 1
 * Defines    SIDE: items of a group along each side, 8 or 16
 * Launch     groups (ceil(n / (8*SIDE)), ceil(m / (8*SIDE))) of SIDE by SIDE items
 */
#ifndef SIDE
#define SIDE 8
#endif
#define OWN 8 /* rows and columns per item */
#define TILE (OWN * SIDE)
#define BK 8 /* steps of the sum per tile */
#define ITEMS (SIDE * SIDE)
#define UNROLL _Pragma("unroll") /* arrays only become registers if all indices are constants */

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void matmul(__global const float *a, __global const float *b,
                                                                          __global float *c, uint m, uint n, uint k) {
  __local float ta[TILE][BK], tb[BK][TILE];
  const uint x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const uint column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  float sum[OWN][OWN];
  UNROLL for (uint i = 0; i < OWN; i++)
    UNROLL for (uint j = 0; j < OWN; j++) sum[i][j] = 0.0f;

  for (uint l0 = 0; l0 < k; l0 += BK) {
    for (uint e = item; e < TILE * BK; e += ITEMS) {
      const uint row = e / BK, l = e % BK;
      ta[row][l] = row0 + row < m && l0 + l < k ? a[(size_t)(row0 + row) * k + l0 + l] : 0.0f;
    }
    for (uint e = item; e < BK * TILE; e += ITEMS) {
      const uint l = e / TILE, column = e % TILE;
      tb[l][column] = l0 + l < k && column0 + column < n ? b[(size_t)(l0 + l) * n + column0 + column] : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (uint l = 0; l < BK; l++) {
      float va[OWN], vb[OWN];
      UNROLL for (uint i = 0; i < OWN; i++) va[i] = ta[y + i * SIDE][l];
      UNROLL for (uint j = 0; j < OWN; j++) vb[j] = tb[l][x + j * SIDE];
      UNROLL for (uint i = 0; i < OWN; i++)
        UNROLL for (uint j = 0; j < OWN; j++) sum[i][j] = fma(va[i], vb[j], sum[i][j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  UNROLL for (uint i = 0; i < OWN; i++)
    UNROLL for (uint j = 0; j < OWN; j++) {
      const uint row = row0 + y + i * SIDE, column = column0 + x + j * SIDE;
      if (row < m && column < n) c[(size_t)row * n + column] = sum[i][j];
    }
}
