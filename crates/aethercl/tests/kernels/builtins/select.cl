// select takes the last operand by the sign of a vector's lanes, by any bit of a scalar
__kernel void k(__global int4 *y, __global float2 *f, __global uchar4 *c, __global long *l) {
  y[0] = select((int4)(1, 2, 3, 4), (int4)(10, 20, 30, 40), (int4)(-1, 0, 1, 0x80000000));
  y[1] = (int4)(select(5, 6, 1), select(5, 6, 0), select(5, 6, -1), select(5, 6, 2));
  f[0] = select((float2)(1.0f), (float2)(2.0f), (int2)(0, -1));
  f[1] = bitselect((float2)(1.0f, -1.0f), (float2)(-3.0f, 3.0f), as_float2((uint2)(0x80000000u)));
  c[0] = select((uchar4)(1, 2, 3, 4), (uchar4)(9), (uchar4)(0x80, 0x7f, 0xff, 0));
  l[0] = select(1L, 2L, 0x8000000000000000L);
}
