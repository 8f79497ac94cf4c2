// A buffer that nothing ever wrote
__kernel void k(__global int *x, __global int *y) {
  y[get_global_id(0)] = x[get_global_id(0)];
}
