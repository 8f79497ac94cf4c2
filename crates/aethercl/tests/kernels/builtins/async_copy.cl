// Copies by the whole group between global and local memory
__kernel void k(__global const int *x, __global int *y) {
  __local int s[8];
  event_t e = async_work_group_copy(s, x + get_group_id(0) * 8, 8, 0);
  wait_group_events(1, &e);
  int l = get_local_id(0);
  int v = s[7 - l];
  barrier(CLK_LOCAL_MEM_FENCE);
  s[l] = v * 10;
  barrier(CLK_LOCAL_MEM_FENCE);
  e = async_work_group_copy(y + get_group_id(0) * 8, s, 8, 0);
  wait_group_events(1, &e);
}
