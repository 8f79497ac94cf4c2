// Square and cube roots, reciprocal root, hypotenuse without overflow
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 4 + 0] = sqrt(x[i]);
  y[i * 4 + 1] = cbrt(x[i]);
  y[i * 4 + 2] = rsqrt(x[i]);
  y[i * 4 + 3] = hypot(x[i], z[i]);
}
