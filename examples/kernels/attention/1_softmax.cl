/* Attention, step 1 of 6: the softmax of a row, computed by one work-item.
 *
 * y[r][i] = exp(x[r][i] - max of row r) / sum over j of exp(x[r][j] - max of row r). The maximum is subtracted so that no exponential
 * overflows; it cancels in the quotient.
 *
 * Changed    first version: three passes over the row, for the maximum, the sum, and the quotients.
 * Bound by   memory access. Adjacent items read adjacent rows, so a warp's loads are n floats apart and use 4 bytes of each
 *            memory transaction. There is one item per row, and each waits for three times n loads.
 *
 * Arguments  x, y (R,N): f32, row-major; rows, n: their sizes, at least 1
 * Defines    none
 * Launch     groups (ceil(rows / 64)) of 64 items, one item per row
 */
__kernel void softmax(__global const float *x, __global float *y, uint rows, uint n) {
  const size_t row = get_global_id(0);
  if (row >= rows) return;
  x += row * n;
  y += row * n;
  float top = -FLT_MAX;
  for (uint i = 0; i < n; i++) top = fmax(top, x[i]);
  float sum = 0.0f;
  for (uint i = 0; i < n; i++) sum += exp(x[i] - top);
  for (uint i = 0; i < n; i++) y[i] = exp(x[i] - top) / sum;
}
