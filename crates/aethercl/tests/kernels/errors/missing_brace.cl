kernel void k(global int *out) {
  if (out[0]) {
    out[1] = 3;
}
