// A reduction tree with the barrier in the wrong place
__kernel void k(__global const int *x, __global int *y) {
  __local int s[8];
  int l = get_local_id(0);
  s[l] = x[l];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = 4; h > 0; h >>= 1) {
    if (l < h) s[l] += s[l + h];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l == 0) y[0] = s[0];
}
