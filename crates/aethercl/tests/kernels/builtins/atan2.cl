// The quadrant comes from both signs, zeros included
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 2 + 0] = atan2(x[i], z[i]);
  y[i * 2 + 1] = atan2pi(x[i], z[i]);
}
