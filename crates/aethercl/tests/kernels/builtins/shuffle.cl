// Lanes by number; numbers count modulo the lanes there are
__kernel void k(__global const int4 *x, __global int4 *y, __global uint4 *m, __global char8 *c) {
  y[0] = shuffle(x[0], (uint4)(3, 2, 1, 0));
  y[1] = shuffle2(x[0], x[1], (uint4)(0, 4, 1, 5));
  y[2] = shuffle(x[0], m[0]);
  y[3] = shuffle2(x[0], x[1], m[0]);
  c[0] = shuffle((char4)(1, 2, 3, 4), (uchar8)(0, 0, 1, 1, 2, 2, 3, 3));
}
