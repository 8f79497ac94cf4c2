// fmin and fmax leave NaN out; minmag and maxmag compare sizes; copysign takes a sign
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 5 + 0] = fmin(x[i], z[i]);
  y[i * 5 + 1] = fmax(x[i], z[i]);
  y[i * 5 + 2] = minmag(x[i], z[i]);
  y[i * 5 + 3] = maxmag(x[i], z[i]);
  y[i * 5 + 4] = copysign(x[i], z[i]);
}
