// A loop that never ends is stopped, with its line
__kernel void k(__global int *y) {
  while (y[0] == 0)
    y[1] = 1;
}
