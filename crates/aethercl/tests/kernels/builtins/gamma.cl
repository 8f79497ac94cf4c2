// Gamma, its logarithm, error functions
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 4 + 0] = tgamma(x[i]);
  y[i * 4 + 1] = lgamma(x[i]);
  y[i * 4 + 2] = erf(x[i]);
  y[i * 4 + 3] = erfc(x[i]);
}
