/* Attention, step 1 of 6: the softmax of a row, by one item.
 *
 * y[r][i] = exp(x[r][i] - max of row r) / sum over j of exp(x[r][j] - max of row r). The maximum is subtracted so that no exponential
 * overflows; it cancels in the quotient.
 *
 * Changed    nothing before it: three passes over the row, for the maximum, the sum, and the quotients.
 * Bound by   memory access. Neighbouring items read neighbouring rows, so a warp's loads lie n floats apart and use 4 bytes of each
 *            memory transaction. There are only as many items as rows, each with three times n loads to wait for.
 *
 * Arguments  x, y (R,N): f32, row-major; rows, n: their sizes, any from 1 on
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
