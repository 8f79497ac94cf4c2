// A __constant buffer
__kernel void k(__constant int *c, __global int *y) {
  int i = get_global_id(0);
  y[i] = c[i] * c[0];
}
