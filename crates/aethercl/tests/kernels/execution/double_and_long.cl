// 64-bit numbers in lanes
__kernel void k(__global const double *x, __global double *y, __global long *l) {
  int i = get_global_id(0);
  double d = x[i];
  y[i] = d < 0 ? -d * 2 : d / 3;
  long v = (long)(d * 1e12);
  l[2 * i] = v;
  l[2 * i + 1] = (v ^ (v >> 7)) % 1000003 + (v < 0 ? 1 : 0);
}
