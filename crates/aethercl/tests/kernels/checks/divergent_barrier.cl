// Half of the group waits for the other half for ever
__kernel void k(__global int *y) {
  int l = get_local_id(0);
  if (l < 2)
    barrier(CLK_LOCAL_MEM_FENCE);
  y[l] = l;
}
