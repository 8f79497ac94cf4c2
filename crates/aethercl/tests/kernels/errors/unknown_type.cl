kernel void k(global flot *out) {
  out[0] = 1;
}

kernel void l(global int *out) {
  real x = 1;
  out[0] = x;
}
