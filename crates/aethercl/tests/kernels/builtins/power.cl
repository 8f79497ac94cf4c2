// pow of negative and special bases; powr knows only positive ones
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 2 + 0] = pow(x[i], z[i]);
  y[i * 2 + 1] = powr(x[i], z[i]);
}
