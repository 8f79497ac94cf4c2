/* C = A B, matrices of n by n floats, n a multiple of TILE. A group of TILE by TILE items computes one tile of C. It copies a tile
 * of A and one of B to local memory, where every value is read TILE times, then the next two. */
#define TILE 8

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void matmul(__global const float *a, __global const float *b,
                                                                         __global float *c, uint n) {
  __local float ta[TILE][TILE], tb[TILE][TILE];
  const uint x = get_local_id(0), y = get_local_id(1);
  const uint column = get_global_id(0), row = get_global_id(1);
  float sum = 0.0f;
  for (uint k = 0; k < n; k += TILE) {
    ta[y][x] = a[row * n + k + x];
    tb[y][x] = b[(k + y) * n + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < TILE; i++) sum = fma(ta[y][i], tb[i][x], sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[row * n + column] = sum;
}
