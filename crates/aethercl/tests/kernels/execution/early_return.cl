// Work-items that returned do nothing any more
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  y[i] = 1;
  if (i >= 5) return;
  y[i] = 2;
  for (int j = 0; j < 3; j++) {
    if (i == j) return;
    y[i] += 10;
  }
  y[i] = 3;
}
