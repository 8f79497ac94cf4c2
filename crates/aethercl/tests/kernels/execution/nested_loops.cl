// break leaves the inner loop only; a counter of the outer one stays in step
__kernel void k(__global int *y) {
  int i = get_global_id(0), count = 0;
  for (int a = 0; a < 4; a++) {
    for (int b = 0; ; b++) {
      if (b == i) break;
      if (b > a) { count += 100; break; }
      count++;
    }
    if (count > 300) break;
  }
  y[i] = count;
}
