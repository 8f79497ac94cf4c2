// An index below zero
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  y[i - 1] = i;
}
