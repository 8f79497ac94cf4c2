// The right side of && and || runs only where it decides
__kernel void k(__global int *y, __global const int *x) {
  int i = get_global_id(0), n = 0;
  if (i < 4 && x[i] > 1) n += 1;
  if (i >= 4 || x[i] == 0) n += 10;
  int a = i > 2 && ++n > 5;
  int b = i > 5 || (n += 100);
  y[3 * i] = n;
  y[3 * i + 1] = a;
  y[3 * i + 2] = b;
}
