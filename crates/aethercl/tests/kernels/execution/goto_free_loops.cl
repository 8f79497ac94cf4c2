// Loops without end and with all parts empty
__kernel void k(__global int *y) {
  int i = get_global_id(0), n = 0;
  for (;;) {
    if (++n * n > i * 10) break;
  }
  int m = n;
  while (1) {
    if (m-- <= i) break;
    if (m == 2) { m = -5; break; }
  }
  y[2 * i] = n;
  y[2 * i + 1] = m;
}
