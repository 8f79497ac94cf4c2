// No contraction, denormals kept, division correctly rounded
__kernel void k(__global const float *x, __global float *y) {
  y[0] = x[0] * x[0] - x[1];
  y[1] = x[2] * 0.5f;
  y[2] = x[3] / x[4];
  y[3] = 1.0f / 0.0f - x[5];
  y[4] = x[5] * -0.0f;
}
