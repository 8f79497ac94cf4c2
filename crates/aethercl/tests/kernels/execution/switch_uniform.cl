// A switch that all work-items take the same way
__kernel void k(__global int *y, int n) {
  int v = 0;
  for (int j = 0; j < n; j++) {
    switch (j) {
      case 1: v += 1; break;
      case -1: v += 1000;
      case 2: v += 20;
      default: v += 300;
    }
  }
  y[get_global_id(0)] = v;
}
