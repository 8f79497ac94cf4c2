/* Matrix product, step 1 of 9: three loops. The two outer ones are the work-items, so each item makes one element of C.
 *
 * Changed    nothing before it: this is the definition, C[i][j] = sum over l of A[i][l] B[l][j].
 * Bound by   memory access. Neighbouring items (dimension 0) have neighbouring rows, so a warp's loads of A lie k floats apart and
 *            its stores to C n floats apart: each lane takes a memory transaction of its own, of which it uses 4 bytes.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major; m, n, k: their sizes, any from 1 on
 * Defines    none
 * Launch     groups (ceil(m / 16), ceil(n / 16)) of 16 by 16 items: dimension 0 is the row, dimension 1 the column
 */
__kernel void matmul(__global const float *a, __global const float *b, __global float *c, uint m, uint n, uint k) {
  const size_t row = get_global_id(0), column = get_global_id(1);
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (uint l = 0; l < k; l++) sum = fma(a[row * k + l], b[(size_t)l * n + column], sum);
  c[row * n + column] = sum;
}
