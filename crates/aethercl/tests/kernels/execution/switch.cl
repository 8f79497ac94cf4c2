// Fall through, default in the middle, break, and a loop around
__kernel void k(__global int *y) {
  int i = get_global_id(0), v = 0;
  for (int round = 0; round < 2; round++) {
    switch (i) {
      case 0: v += 1;
      case 1: v += 10; break;
      default: v += 100;
      case 3: v += 1000; break;
      case 4: continue;
      case 5: case 6: v += 5;
    }
    v += 100000;
  }
  y[i] = v;
}
