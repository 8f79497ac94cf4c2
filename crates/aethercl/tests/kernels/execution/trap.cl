// A launch that must not go on stops with the line
__kernel void k(__global int *y) {
  if (y[0] == 0) __builtin_trap();
  y[0] = 1;
}
