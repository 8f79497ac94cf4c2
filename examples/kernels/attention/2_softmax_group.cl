/* Attention, step 2 of 6: the softmax of a row, computed by a work-group.
 *
 * Changed    128 items share a row. Each processes every 128th element; maximum and sum are reduced over the group by a tree in local
 *            memory: half of the items add a value of the other half, then a quarter, and so on.
 * Why        Adjacent items read adjacent floats, so every byte of a transaction is used, and 128 loads of a row are in flight
 *            at a time instead of one.
 * Bound by   memory and special functions: the row is read three times (the second and third time from a cache, if it fits),
 *            and each exponential is computed twice. For short rows, by the two reductions with 8 barriers each. A CPU runs
 *            the items of a group one after the other and does not benefit: step 1 is faster there.
 *
 * Arguments  x, y (R,N): f32, row-major; rows, n: their sizes, at least 1
 * Defines    none
 * Launch     groups (rows) of 128 items
 */
#define ITEMS 128

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void softmax(__global const float *x, __global float *y, uint rows,
                                                                         uint n) {
  __local float part[ITEMS];
  const uint item = get_local_id(0);
  x += get_group_id(0) * (size_t)n;
  y += get_group_id(0) * (size_t)n;

  float top = -FLT_MAX;
  for (uint i = item; i < n; i += ITEMS) top = fmax(top, x[i]);
  part[item] = top;
  for (uint half_of = ITEMS / 2; half_of > 0; half_of /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < half_of) part[item] = fmax(part[item], part[item + half_of]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  top = part[0];
  barrier(CLK_LOCAL_MEM_FENCE); /* all have read it; now it is used again */

  float sum = 0.0f;
  for (uint i = item; i < n; i += ITEMS) sum += exp(x[i] - top);
  part[item] = sum;
  for (uint half_of = ITEMS / 2; half_of > 0; half_of /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < half_of) part[item] += part[item + half_of];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float by = 1.0f / part[0];
  for (uint i = item; i < n; i += ITEMS) y[i] = exp(x[i] - top) * by;
}
