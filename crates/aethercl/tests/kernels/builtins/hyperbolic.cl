// Hyperbolic functions and their inverses
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 6 + 0] = sinh(x[i]);
  y[i * 6 + 1] = cosh(x[i]);
  y[i * 6 + 2] = tanh(x[i]);
  y[i * 6 + 3] = asinh(x[i]);
  y[i * 6 + 4] = acosh(x[i]);
  y[i * 6 + 5] = atanh(x[i]);
}
