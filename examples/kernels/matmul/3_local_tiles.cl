/* Matrix product, step 3 of 9: tiles in local memory.
 *
 * Changed    A work-group computes a 16 by 16 tile of C. It loops over k, 16 steps at a time: its items copy a tile of A and one of
 *            B to local memory together, wait for each other, and multiply from there.
 * Why        Each float that is loaded from global memory is used by 16 items: global loads fall by a factor of 16.
 * Bound by   local memory: still two loads per multiply-add, now from local memory, and two barriers per 16 steps. On a
 *            CPU, local memory is ordinary memory. The benefit there is that a tile is contiguous in the L1 cache, while
 *            a column of B has one cache line, and often one page, per row.
 *
 * Outside of A and B the tiles are 0, which adds nothing to the sums, so the inner loop needs no test.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major; m, n, k: their sizes, at least 1
 * Defines    none
 * Launch     groups (ceil(n / 16), ceil(m / 16)) of 16 by 16 items
 */
#define TILE 16

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void matmul(__global const float *a, __global const float *b,
                                                                          __global float *c, uint m, uint n, uint k) {
  __local float ta[TILE][TILE], tb[TILE][TILE];
  const uint x = get_local_id(0), y = get_local_id(1);
  const size_t column = get_global_id(0), row = get_global_id(1);
  float sum = 0.0f;
  for (uint l0 = 0; l0 < k; l0 += TILE) {
    ta[y][x] = row < m && l0 + x < k ? a[row * k + l0 + x] : 0.0f;
    tb[y][x] = l0 + y < k && column < n ? b[(size_t)(l0 + y) * n + column] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE); /* both tiles are complete */
    for (uint l = 0; l < TILE; l++) sum = fma(ta[y][l], tb[l][x], sum);
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read both tiles */
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
