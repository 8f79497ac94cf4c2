// fma rounds once, mad and a * b + c here twice
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 3 + 0] = fma(x[i], z[i], -1.0f);
  y[i * 3 + 1] = mad(x[i], z[i], -1.0f);
  y[i * 3 + 2] = x[i] * z[i] + -1.0f;
}
