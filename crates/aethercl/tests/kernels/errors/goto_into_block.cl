kernel void k(global int *out) {
  goto inside;
  for (int i = 0; i < 4; i++) {
  inside:
    out[i] = 1;
  }
}
