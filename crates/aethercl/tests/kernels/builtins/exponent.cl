// ilogb gives the exponent as an integer, also of denormals; nan makes one
__kernel void k(__global const float *x, __global int *n, __global float *y) {
  size_t i = get_global_id(0);
  n[i] = ilogb(x[i]);
  y[i] = nan((uint)i);
}
