kernel void k(global int *out, int n) {
  int a[n];
  int b[0];
  int c[-1];
  out[0] = a[0];
}
