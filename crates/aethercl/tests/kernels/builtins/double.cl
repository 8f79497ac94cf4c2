// Doubles have all functions, too
__kernel void k(__global const double *x, __global double *y) {
  size_t i = get_global_id(0);
  y[i * 8 + 0] = exp(x[i]);
  y[i * 8 + 1] = log(x[i]);
  y[i * 8 + 2] = sin(x[i]);
  y[i * 8 + 3] = pow(x[i], 1.5);
  y[i * 8 + 4] = fma(x[i], x[i], 1.0);
  y[i * 8 + 5] = sqrt(x[i]);
  y[i * 8 + 6] = tanh(x[i]);
  y[i * 8 + 7] = rint(x[i]);
}
