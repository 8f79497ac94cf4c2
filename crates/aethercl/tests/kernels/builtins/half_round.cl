// vstore_half rounds to even unless another rounding is named
__kernel void k(__global const float *x, __global half *y) {
  size_t i = get_global_id(0);
  vstore_half(x[i], 5 * i, y);
  vstore_half_rte(x[i], 5 * i + 1, y);
  vstore_half_rtz(x[i], 5 * i + 2, y);
  vstore_half_rtp(x[i], 5 * i + 3, y);
  vstore_half_rtn(x[i], 5 * i + 4, y);
}
