// Conversions work lane by lane
__kernel void k(__global const float4 *x, __global int4 *i, __global uchar4 *u, __global double4 *d) {
  i[0] = convert_int4(x[0]);
  u[0] = convert_uchar4_sat_rte(x[0]);
  d[0] = convert_double4(x[0]);
}
