// An integer divided by a zero that only one work-item has
__kernel void k(__global const int *x, __global int *y) {
  int i = get_global_id(0);
  if (x[i] > 1) y[i] = 100 / x[i];
  y[i] += 100 % x[i];
}
