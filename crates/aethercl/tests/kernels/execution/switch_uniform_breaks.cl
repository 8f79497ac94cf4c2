// A switch that all work-items take the same way and some leave before others: in a loop, and after a fall through
__kernel void k(__global int *y, int n) {
  int id = get_global_id(0), v = 0;
  for (int j = 0; j < n; j++) {
    switch (j) {
      case 0:
        if (id & 1) break;
        v += 1;
        break;
      case 1:
        if (id & 2) break;
        v += 10;
      case 2:
        if (id == 0) continue;
        v += 100;
        break;
      default:
        if (id == 3) continue;
        v += 1000;
    }
    v += 10000;
  }
  y[id] = v;
}
