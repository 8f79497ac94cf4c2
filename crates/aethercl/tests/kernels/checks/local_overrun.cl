// The next local array lies behind: hardware would not notice
__kernel void k(__global int *y) {
  __local int a[4], b[4];
  int l = get_local_id(0);
  b[l] = 1;
  barrier(CLK_LOCAL_MEM_FENCE);
  a[l + 2] = 5;
  barrier(CLK_LOCAL_MEM_FENCE);
  y[l] = b[l];
}
