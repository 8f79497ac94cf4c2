// Local memory that the host asks for, and two-dimensional groups
__kernel void k(__global const int *x, __global int *y, __local int *s) {
  int w = get_local_size(0), c = get_local_id(0), r = get_local_id(1);
  s[r * w + c] = x[r * w + c];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[c * get_local_size(1) + r] = s[r * w + c];
}
