// break and continue where work-items differ
__kernel void k(__global int *y) {
  int i = get_global_id(0), sum = 0, last = -1;
  for (int j = 0; j < 10; j++) {
    if (j == i) continue;
    if (j > i + 3) break;
    sum += j;
    last = j;
  }
  y[2 * i] = sum;
  y[2 * i + 1] = last;
}
