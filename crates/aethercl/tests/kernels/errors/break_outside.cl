kernel void k(global int *out) {
  break;
  if (out[0]) continue;
}
