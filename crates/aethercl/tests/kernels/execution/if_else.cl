// Both sides of an if, each for its work-items
__kernel void k(__global int *y) {
  int i = get_global_id(0);
  if (i & 1) y[i] = i * 10;
  else if (i & 2) y[i] = -i;
  else y[i] = 7;
}
