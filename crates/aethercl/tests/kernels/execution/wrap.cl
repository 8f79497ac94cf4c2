// Integers wrap, signed ones too
__kernel void k(__global const int *x, __global int *y, __global ulong *l) {
  y[0] = x[0] + 1;
  y[1] = x[0] * x[0];
  y[2] = -x[1];
  y[3] = x[1] - 1;
  l[0] = (ulong)x[1] * (ulong)x[1] + 18446744073709551615UL;
}
