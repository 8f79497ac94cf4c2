// One place, several types
typedef union { float f; uint u; uchar c[4]; } bits;
__kernel void k(__global const float *x, __global uint *y) {
  int i = get_global_id(0);
  bits b;
  b.f = x[i];
  b.c[3] ^= 0x80;
  y[2 * i] = b.u;
  y[2 * i + 1] = b.c[2];
}
