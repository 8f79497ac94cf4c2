kernel void k(global int *out, int count) {
  out[0] = cuont;
  out[1] = cout + count;
}
