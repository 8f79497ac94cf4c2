// Integers that a float cannot hold are rounded as named
__kernel void k(__global const int *x, __global float4 *y, __global const ulong *u, __global float4 *z) {
  size_t g = get_global_id(0);
  y[g] = (float4)(convert_float_rte(x[g]), convert_float_rtz(x[g]), convert_float_rtp(x[g]), convert_float_rtn(x[g]));
  z[g] = (float4)(convert_float_rte(u[g]), convert_float_rtz(u[g]), convert_float_rtp(u[g]), convert_float_rtn(u[g]));
}
