// With cl_khr_fp16 halves calculate; every result is rounded to a half
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void k(__global const half *x, __global half *y) {
  y[0] = x[0] + x[1];
  y[1] = x[0] * x[2];
  y[2] = fma(x[0], x[0], x[2]);
  y[3] = -x[1] / x[2];
  y[4] = sqrt(x[2]);
  y[5] = x[0] < x[1] ? x[0] : x[1];
  y[6] = (half)(int)x[2];
  y[7] = fmax(x[0], x[3]);
}
