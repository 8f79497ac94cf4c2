/* Matrix product, step 2 of 9: coalesced access.
 *
 * Changed    which item computes which element: dimension 0 is now the column. The arithmetic is the same.
 * Why        Items that differ in dimension 0 run together, in one warp on a GPU and in one vector on a CPU. They now read
 *            adjacent floats of a row of B, store adjacent floats of C, and share one element of A, which is
 *            broadcast: a warp's load is one or two transactions instead of one per lane.
 * Bound by   instructions: two loads and their addresses per multiply-add, and the caches that serve them. Every element of A
 *            is loaded n times, every element of B m times.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major; m, n, k: their sizes, at least 1
 * Defines    none
 * Launch     groups (ceil(n / 16), ceil(m / 16)) of 16 by 16 items: dimension 0 is the column, dimension 1 the row
 */
__kernel void matmul(__global const float *a, __global const float *b, __global float *c, uint m, uint n, uint k) {
  const size_t column = get_global_id(0), row = get_global_id(1);
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (uint l = 0; l < k; l++) sum = fma(a[row * k + l], b[(size_t)l * n + column], sum);
  c[row * n + column] = sum;
}
