// Five ways to a whole number; halves go to even, away from zero, up or down
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 5 + 0] = ceil(x[i]);
  y[i * 5 + 1] = floor(x[i]);
  y[i * 5 + 2] = trunc(x[i]);
  y[i * 5 + 3] = round(x[i]);
  y[i * 5 + 4] = rint(x[i]);
}
