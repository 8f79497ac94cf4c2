// The stride counts elements of the global side
__kernel void k(__global const int *x, __global int *y) {
  __local int s[4];
  event_t e = async_work_group_strided_copy(s, x, 4, 3, 0);
  wait_group_events(1, &e);
  e = async_work_group_strided_copy(y, s, 4, 2, 0);
  wait_group_events(1, &e);
}
