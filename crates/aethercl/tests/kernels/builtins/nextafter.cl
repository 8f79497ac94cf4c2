// The next number, across zero and into denormals
__kernel void k(__global const float *x, __global const float *z, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 1 + 0] = nextafter(x[i], z[i]);
}
