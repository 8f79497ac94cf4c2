// fmod keeps the sign of x, remainder rounds the quotient, fdim stops at zero
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 3 + 0] = fmod(x[i], z[i]);
  y[i * 3 + 1] = remainder(x[i], z[i]);
  y[i * 3 + 2] = fdim(x[i], z[i]);
}
