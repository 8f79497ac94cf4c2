// Products of 24-bit numbers
__kernel void k(__global const int *x, __global int *y, __global uint *u) {
  size_t i = get_global_id(0);
  y[i] = mad24(x[i], 3, 1);
  u[i] = mul24((uint)x[i] & 0xffffffu, 5u);
}
