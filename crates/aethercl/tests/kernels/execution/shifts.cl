// Shift counts are taken modulo the width
__kernel void k(__global const int *n, __global int *y, __global ulong *l, __global uchar2 *c) {
  int i = get_global_id(0);
  y[2 * i] = -1000 >> n[i];
  y[2 * i + 1] = 3 << n[i];
  l[i] = (1UL << n[i]) + (0x8000000000000000UL >> n[i]);
  c[i] = (uchar2)(200, 3) >> (uchar2)(n[i]);
}
