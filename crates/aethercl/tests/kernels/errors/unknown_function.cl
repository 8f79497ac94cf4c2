kernel void k(global float *out) {
  out[0] = sqr(2.0f);
  out[1] = get_global_idx(0);
  out[2] = fmaxx(1.0f, 2.0f);
}
