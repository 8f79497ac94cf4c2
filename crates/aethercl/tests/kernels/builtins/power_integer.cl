// Integer powers and roots
__kernel void k(__global const float *x, __global const int *n, __global float *y) {
  size_t i = get_global_id(0);
  y[3 * i] = pown(x[i], n[i]);
  y[3 * i + 1] = rootn(x[i], n[i]);
  y[3 * i + 2] = ldexp(x[i], n[i]);
}
