// A variable that only some paths set
__kernel void k(__global const int *x, __global int *y) {
  int i = get_global_id(0), v;
  if (x[i] > 1) v = x[i];
  y[i] = v;
}
