// The same bytes as another type
__kernel void k(__global const float *x, __global uint *u, __global uchar4 *c, __global double *d, __global short2 *s) {
  u[0] = as_uint(x[0]);
  c[0] = as_uchar4(x[0]);
  d[0] = as_double(as_uint2((float2)(x[1], x[2])));
  s[0] = as_short2(0x8000ffff);
  u[1] = as_uint((uchar4)(1, 2, 3, 4));
}
