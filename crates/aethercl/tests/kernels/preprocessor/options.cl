#ifndef N
#error N must be given
#endif
#ifdef GONE
#error GONE was undefined
#endif

kernel void options(global int *out) {
  out[0] = N;
  out[1] = SQUARE(5);
  out[2] = FLAG;
  int a1 = 4;
  out[3] = a1;
}
