// A rounding can be named: to even, to zero, up, down
__kernel void k(__global const float *x, __global int4 *y) {
  size_t g = get_global_id(0);
  y[g] = (int4)(convert_int_rte(x[g]), convert_int_rtz(x[g]), convert_int_rtp(x[g]), convert_int_rtn(x[g]));
}
