// Small integers calculate as int; what does not fit wraps on the way back
__kernel void k(__global const uchar *x, __global int *y, __global uchar *z) {
  uchar a = x[0], b = x[1];
  y[0] = a + b;
  y[1] = a - b;
  y[2] = ~a;
  z[0] = a + b;
  z[1] = a << 1;
  a += 100;
  y[3] = a;
  short s = 30000;
  s += 30000;
  y[4] = s;
  y[5] = (a > -1) + (4000000000u > -1);
  y[6] = 'a' + (char)200;
}
