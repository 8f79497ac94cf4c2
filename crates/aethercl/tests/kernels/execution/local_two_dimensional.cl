// A tile turned through local memory, one column wider against bank conflicts
__kernel void k(__global const int *x, __global int *y) {
  __local int t[4][5];
  int c = get_local_id(0), r = get_local_id(1);
  t[r][c] = x[get_global_id(1) * 8 + get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[(get_group_id(0) * 4 + r) * 8 + get_group_id(1) * 4 + c] = t[c][r];
}
