// The last work-item reads one element too many
__kernel void k(__global const float *x, __global float *y) {
  int i = get_global_id(0);
  y[i] = x[i + 1] - x[i];
}
