// After a loop, a variable has the value of the work-item's last iteration
__kernel void k(__global int *y) {
  int i = get_global_id(0), seen = -1, rounds = 0;
  for (int j = 0; j < 5; j++) {
    rounds = j;
    if (j == i) break;
    seen = j * 2;
  }
  y[2 * i] = seen;
  y[2 * i + 1] = rounds;
}
