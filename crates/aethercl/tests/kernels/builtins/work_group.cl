// Functions of the whole group
__kernel void k(__global const int *x, __global int *y) {
  int i = get_global_id(0), v = x[i];
  y[6 * i] = work_group_reduce_add(v);
  y[6 * i + 1] = work_group_scan_inclusive_add(v);
  y[6 * i + 2] = work_group_scan_exclusive_max(v);
  y[6 * i + 3] = work_group_broadcast(v, 1);
  y[6 * i + 4] = work_group_any(v == 3) * 10 + work_group_all(v >= 0);
  y[6 * i + 5] = work_group_reduce_min(v);
}
