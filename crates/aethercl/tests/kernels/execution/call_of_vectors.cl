// Functions with vectors, changed parameters, and calls in calls
float4 scale(float4 v, float s) { v *= s; return v; }
float total(float4 v) { return v.x + v.y + v.z + v.w; }
int count(int n) { int c = 0; while (n > 0) { n &= n - 1; c++; } return c; }
__kernel void k(__global const float4 *x, __global float *y) {
  int i = get_global_id(0);
  y[i] = total(scale(scale(x[0], i), 0.5f)) + count(i);
}
