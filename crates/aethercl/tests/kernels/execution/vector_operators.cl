// Operators on vectors, with a scalar for all lanes
__kernel void k(__global const int4 *x, __global int4 *y, __global const char4 *c, __global char4 *d) {
  int4 a = x[0], b = x[1];
  y[0] = a + b * 2;
  y[1] = a / b - a % b;
  y[2] = (a << 2) | (b >> 1);
  y[3] = ~a ^ b;
  y[4] = a > b;
  y[5] = a && (b - 3);
  y[6] = !(a - 7);
  y[7] = -a++ + --b;
  d[0] = c[0] + c[0];
  d[1] = c[0] << 1;
  d[2] = c[0] == (char4)(1, 100, -100, 4);
}
