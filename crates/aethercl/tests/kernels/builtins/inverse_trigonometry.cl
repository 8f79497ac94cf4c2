// Arc functions, NaN outside of their domain
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 6 + 0] = asin(x[i]);
  y[i * 6 + 1] = acos(x[i]);
  y[i * 6 + 2] = atan(x[i]);
  y[i * 6 + 3] = asinpi(x[i]);
  y[i * 6 + 4] = acospi(x[i]);
  y[i * 6 + 5] = atanpi(x[i]);
}
