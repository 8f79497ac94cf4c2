// Integer division truncates towards zero, also for powers of two.
__kernel void k(__global const int *x, __global int *y, __global uint *u, __global long *l) {
  int i = get_global_id(0), a = x[i];
  y[4 * i] = a / 3;
  y[4 * i + 1] = a % 3;
  y[4 * i + 2] = a / 4;
  y[4 * i + 3] = a % 4;
  u[2 * i] = (uint)a / 8;
  u[2 * i + 1] = (uint)a % 10;
  l[i] = (long)a * 1000000007 / -16;
}
