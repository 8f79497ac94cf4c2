/* Matrix product, step 1 of 9: three loops. The two outer loops are the work-items, so each item computes one element of C.
 *
 * Changed    first version: this is the definition, C[i][j] = sum over l of A[i][l] B[l][j].
 * Bound by   memory access. Adjacent items (dimension 0) have adjacent rows, so a warp's loads of A are k floats apart and
 *            its stores to C n floats apart: each lane needs a separate memory transaction, of which it uses 4 bytes.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): f32, row-major; m, n, k: their sizes, at least 1
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
