// Lanes by letter and by number, read and stored to, also twice the same
__kernel void k(__global const int4 *x, __global int4 *y) {
  int4 a = x[0];
  y[0] = a.wzyx;
  a.xz = a.zx;
  y[1] = a;
  a.s13 += (int2)(100, 200);
  y[2] = a;
  y[3].lo = a.hi;
  y[3].odd = a.even;
  int8 b = (int8)(a, x[0]);
  y[4] = b.s0246;
  y[5] = b.even + b.odd;
  a.x = a.y = a.z;
  y[6] = a.xxyy;
}
