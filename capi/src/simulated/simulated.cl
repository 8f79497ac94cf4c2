// C = A · B with A (m, k), B (k, n), C (m, n), all row-major, in f32 or f64. Sizes are ulong. Work-item (j, i) computes C[i, j] and sums from
// 0 to k-1; items outside of C do nothing. No defines.

__kernel void matrix_multiply_f32(__global const float *a, __global const float *b, __global float *c, ulong m, ulong n, ulong k) {
  ulong j = get_global_id(0), i = get_global_id(1);
  if (i >= m || j >= n) return;
  float sum = 0.0f;
  for (ulong p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
  c[i * n + j] = sum;
}

__kernel void matrix_multiply_f64(__global const double *a, __global const double *b, __global double *c, ulong m, ulong n, ulong k) {
  ulong j = get_global_id(0), i = get_global_id(1);
  if (i >= m || j >= n) return;
  double sum = 0.0;
  for (ulong p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
  c[i * n + j] = sum;
}
