// Logarithms of zero, negative numbers and denormals
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 5 + 0] = log(x[i]);
  y[i * 5 + 1] = log2(x[i]);
  y[i * 5 + 2] = log10(x[i]);
  y[i * 5 + 3] = log1p(x[i]);
  y[i * 5 + 4] = logb(x[i]);
}
