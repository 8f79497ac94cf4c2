kernel void k(global int *out, int4 v) {
  if (v) out[0] = 1;
  while (v == 0) out[0] = 2;
  out[1] = any(v == 0) ? 1 : 2;
}
