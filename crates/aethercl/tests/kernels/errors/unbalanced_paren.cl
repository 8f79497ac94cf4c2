kernel void k(global int *out) {
  out[0] = (1 + 2;
  out[1] = 3;
}
