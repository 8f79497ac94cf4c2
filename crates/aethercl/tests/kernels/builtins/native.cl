// The native and half forms are as exact as the others here
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 9 + 0] = native_exp(x[i]);
  y[i * 9 + 1] = native_log(x[i]);
  y[i * 9 + 2] = native_sin(x[i]);
  y[i * 9 + 3] = native_sqrt(x[i]);
  y[i * 9 + 4] = native_recip(x[i]);
  y[i * 9 + 5] = native_divide(x[i], 3.0f);
  y[i * 9 + 6] = half_exp2(x[i]);
  y[i * 9 + 7] = half_rsqrt(x[i]);
  y[i * 9 + 8] = native_powr(x[i], 2.0f);
}
