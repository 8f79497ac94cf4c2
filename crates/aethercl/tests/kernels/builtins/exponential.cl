// e^x and its kin, with overflow, underflow and the sign of zero
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 4 + 0] = exp(x[i]);
  y[i * 4 + 1] = exp2(x[i]);
  y[i * 4 + 2] = exp10(x[i]);
  y[i * 4 + 3] = expm1(x[i]);
}
