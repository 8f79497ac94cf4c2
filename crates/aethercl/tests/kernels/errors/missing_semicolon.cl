kernel void k(global int *out) {
  int a = 1
  out[0] = a;
  out[1] = 2
}
